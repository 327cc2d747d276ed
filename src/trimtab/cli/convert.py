"""`trimtab convert`: a log of ours into a `rewind.jsonl`, and a log of another tool into a run folder."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from trimtab import __version__
from trimtab.analysis.lookup import find_logs
from trimtab.cli.output import STANDARD_OUTPUT, OutputFile, new_log_file, output_folder, write_file, write_output
from trimtab.cli.progress import stage_progress
from trimtab.errors import UsageError
from trimtab.log import foreign
from trimtab.log.folder import is_run_folder
from trimtab.log.foreign.rewind_writer import write_rewind
from trimtab.log.reader import Log, open_log
from trimtab.log.run_copy import copy_to_runs
from trimtab.report import as_json
from trimtab.report.console import make_console
from trimtab.report.terminal import say
from trimtab.text import plain

VERSION = 1
"""Of the JSON document."""

_FILE_SUFFIXES = (".jsonl", ".json", ".ndjson")


@click.command("convert")
@click.argument("source", metavar="SOURCE")
@click.argument("dest", metavar="DEST")
@click.option(
    "--json",
    "json_file",
    type=OutputFile(allow_standard_output=True),
    metavar="FILE",
    help="Write what was written, and what was lost, as strict JSON; - for standard output.",
)
def command(source: str, dest: str, *, json_file: str | None) -> int:
    """Turns a log of Trimtab into a rewind.jsonl, and any other log that rewind reads into a run folder.

    SOURCE is a run id, a run folder or a log. Of a run, DEST is the file to write. Of a rewind.jsonl, and of logs that
    hold steps alone, it is an output folder: each run gets a folder DEST/trimtab/RUN_ID. What the other format cannot
    hold is counted, line by line. Nothing is overwritten.

    \b
    Example:
        trimtab convert runs/a a.jsonl
        trimtab convert rewind.jsonl runs/b
        trimtab convert trainer_state.json runs/c
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    log, notices = _open(source)
    is_own = _is_own(log)
    if not is_own and dest.endswith(_FILE_SUFFIXES):
        raise UsageError(_why_no_file(log))
    with stage_progress(log.size_bytes) as progress:
        if is_own:
            path = new_log_file(dest)
            with write_file(path) as file:
                lines = write_rewind(log, file, progress=progress)
            document = _document(log, "rewind.jsonl", [dest], **lines._asdict())
        else:
            folder = output_folder(dest)
            made = not folder.exists()
            folder.mkdir(exist_ok=True)
            try:
                runs = copy_to_runs(log, folder, version=__version__, progress=progress)
            except BaseException:
                if made:
                    with suppress(OSError):
                        folder.rmdir()
                raise
            fields = runs._asdict()
            document = _document(log, "run", list(fields.pop("paths")), **fields)
    document["notices"] = [*notices, *log.notices(), *document["notices"]]

    if json_file:
        write_output(json_file, as_json.dumps_document(document))
    if json_file != STANDARD_OUTPUT:
        with suppress(BrokenPipeError):
            _draw(document)
    return 0


def _open(name: str) -> tuple[Log, list[str]]:
    found = find_logs(name)
    if len(found.paths) > 1:
        raise UsageError(f"{name} holds {len(found.paths)} logs: {', '.join(found.paths)}. Name one of them.")
    return open_log(found.paths[0]), list(found.notices)


def _is_own(log: Log) -> bool:
    """Whether Trimtab wrote a log: a run folder, or a journal, which no other format knows."""
    place = Path(log.path)
    if place.is_dir():
        return is_run_folder(place)
    return foreign.format_of(place, foreign.read_head(place)) is None


def _why_no_file(log: Log) -> str:
    if log.has_rows:
        return f"{log.path} is a rewind.jsonl already. Name a folder, for a run folder in it."
    return (
        f"{log.path} holds steps and no rows, and a rewind.jsonl is made of rows: nothing was written. Name a folder, "
        "for a run folder in it."
    )


def _document(log: Log, kind: str, paths: list[str], **counts: Any) -> dict[str, Any]:
    return {"version": VERSION, "source": log.path, "format": kind, "paths": paths, **counts}


def _draw(document: dict[str, Any]) -> None:
    console = make_console(sys.stdout)
    for path in document["paths"]:
        say(console, f"Wrote {plain(path)}")
    names = (
        ("num_attempts", "attempt", "attempts"),
        ("num_micro_batches", "micro-batch", "micro-batches"),
        ("num_rows", "row record", "row records"),
        ("num_steps", "step record", "step records"),
        ("num_events", "event", "events"),
    )
    counts = [(document.get(name, 0), one, many) for name, one, many in names]
    say(console, ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count))
    for notice in document["notices"]:
        say(console, f"Note: {plain(notice)}")
