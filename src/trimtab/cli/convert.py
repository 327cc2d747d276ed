"""`trimtab convert`: a log of ours into a `rewind.jsonl`, and a log of another tool into a run folder."""

from __future__ import annotations

import click
from rich.console import Console

from trimtab.cli.output import answer, json_option, log_file, output_folder
from trimtab.cli.progress import stage_progress
from trimtab.conversion.convert import convert_log, open_one, target_of
from trimtab.conversion.values import Conversion
from trimtab.report.lines import say, tell
from trimtab.report.written import say_written
from trimtab.text import plain


@click.command("convert")
@click.argument("source", metavar="SOURCE")
@click.argument("dest", metavar="DEST")
@json_option("Write what was written, and what was lost, as strict JSON; - for standard output.")
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
    log, notices = open_one(source)
    place = log_file(dest) if target_of(log, dest) == "rewind.jsonl" else output_folder(dest)
    with stage_progress(log.size_bytes) as progress:
        written = convert_log(log, place, notices=notices, progress=progress)

    def draw(console: Console) -> None:
        _draw(written, console=console)
        if json_file:
            say_written(console, json_file)

    answer(written.to_dict, json_file=json_file, draw=draw)
    return 0


def _draw(written: Conversion, *, console: Console) -> None:
    for path in written.paths:
        say_written(console, path)
    counts = (
        (written.num_attempts, "attempt", "attempts"),
        (written.num_micro_batches, "micro-batch", "micro-batches"),
        (written.num_rows, "row record", "row records"),
        (written.num_steps, "step record", "step records"),
        (written.num_events, "event", "events"),
    )
    say(console, ", ".join(f"{count} {one if count == 1 else many}" for count, one, many in counts if count))
    for notice in written.notices:
        tell(console, f"Note: {plain(notice)}")
