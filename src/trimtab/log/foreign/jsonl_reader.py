"""Reads a metric file in JSONL, line by line.

Enters: a path. Leaves: `Metrics`. Invariant: every line that is not blank is in a record, an event or a notice; a last
line that is torn is told apart from a bad one in the middle. Memory is one block of lines and what `Entries` takes.
"""

from __future__ import annotations

from pathlib import Path

from trimtab.log.foreign.entries import Entries
from trimtab.log.foreign.line_blocks import MAX_LINE_BYTES, line_blocks
from trimtab.log.foreign.objects import read_object
from trimtab.log.foreign.rewind_lines import BYTE_ORDER_MARK
from trimtab.log.foreign.step_source import Metrics, Progress


def read_jsonl(path: Path, *, progress: Progress | None = None) -> Metrics:
    """Reads the whole file.

    Args:
        path: The file.
        progress: Called now and then with the number of bytes done.

    Raises:
        OSError: It cannot be read.
    """
    entries = Entries("line", "lines")
    torn_line = None
    with path.open("rb") as file:
        for lines in line_blocks(file):
            if lines.too_long:
                entries.left_out.add(lines.first_line, f"longer than {MAX_LINE_BYTES >> 20} MB")
                continue
            data = lines.data.removeprefix(BYTE_ORDER_MARK) if lines.first_line == 1 else lines.data
            split = data.split(b"\n")
            for number, line in enumerate(split, start=lines.first_line):
                if not line.strip():
                    continue
                entry = read_object(line)
                if entry is not None:
                    entries.take(entry, place=number)
                elif number == lines.first_line + len(split) - 1:
                    # Behind the last line feed of the file: every other block ends in one, and then in nothing.
                    torn_line = number
                else:
                    entries.left_out.add(number, "not a JSON object")
            if progress:
                progress(lines.end_byte)
    metrics = entries.metrics()
    torn = [] if torn_line is None else [f"the last line ({torn_line}) is torn and was left out"]
    return metrics._replace(notices=[*metrics.notices, *torn])
