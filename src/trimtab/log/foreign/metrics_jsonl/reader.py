"""Reads a metric file in JSONL, line by line.

Enters: a path. Leaves: `Metrics`. Invariant: every line that is not blank is in a record, an event or a notice; a last
line without an end is told apart from a bad one in the middle. Memory is one block of lines and what `Entries` takes.
"""

from __future__ import annotations

from pathlib import Path

from trimtab.log.foreign.left_out import on_open_line
from trimtab.log.foreign.line_blocks import MAX_LINE_BYTES, line_blocks
from trimtab.log.foreign.objects import read_object
from trimtab.log.foreign.steps.entries import Entries
from trimtab.log.foreign.steps.source import Metrics, Progress


def read_jsonl(path: Path, *, progress: Progress | None = None) -> Metrics:
    """Reads the whole file.

    Args:
        path: The file.
        progress: Called now and then with the number of bytes done.

    Raises:
        OSError: It cannot be read.
    """
    entries = Entries("line", "lines")
    open_line = None
    with path.open("rb") as file:
        for lines in line_blocks(file):
            if lines.too_long:
                entries.left_out.add(lines.first_line, f"longer than {MAX_LINE_BYTES >> 20} MB")
                continue
            data = lines.data
            if not lines.has_end:
                open_line, data = lines.first_line if data.strip() else None, b""
            for number, line in enumerate(data.split(b"\n"), start=lines.first_line):
                if not line.strip():
                    continue
                entry = read_object(line)
                if entry is not None:
                    entries.take(entry, place=number)
                else:
                    entries.left_out.add(number, "not a JSON object")
            if progress:
                progress(lines.end_byte)
    metrics = entries.metrics()
    return metrics._replace(notices=[*metrics.notices, *on_open_line(open_line)])
