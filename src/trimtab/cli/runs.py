"""`trimtab runs`: the runs recorded on this machine."""

from __future__ import annotations

import datetime
import os

import click
from rich.console import Console
from rich.text import Text

from trimtab import registry
from trimtab.analysis.lookup import run_place
from trimtab.cli.output import answer, json_option
from trimtab.log.folder import RUNS_NAME
from trimtab.registry import RegisteredRun
from trimtab.report.lines import WIDE, draw_table, make_table, say, tell
from trimtab.report.written import say_written
from trimtab.text import plain

MIN_WHERE = 24
"""Characters of a path shown at least, however narrow the terminal."""


@click.command("runs")
@json_option("Write the list as JSON; - for standard output, where nothing else is then printed.")
def command(json_file: str | None) -> int:
    """Lists the runs recorded on this machine, the newest first.

    \b
    Example:
        trimtab runs
        trimtab rewind 20261129-2103       any unique beginning of an id will do
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    runs = registry.runs()
    places = [run_place(run) for run in runs]

    def draw(console: Console) -> None:
        _draw(runs, places, console=console)
        if json_file:
            say_written(console, json_file)

    entries = [_entry(run, place) for run, place in zip(runs, places, strict=True)]
    answer(lambda: {"version": 1, "runs": entries}, json_file=json_file, draw=draw)
    return 0


def _draw(runs: list[RegisteredRun], places: list[str | None], *, console: Console) -> None:
    if not runs:
        say(console, "No run is registered on this machine. Try it out with: trimtab demo")
        return
    heads = [(plain(run.run_id), _started(run), plain(run.backend)) for run in runs]
    gap = 3 if console.width >= WIDE else 2
    others = sum(max(map(len, cells)) + gap for cells in zip(("run", "started", "backend"), *heads, strict=True))
    room = max(console.width - others, MIN_WHERE)
    table = make_table([("run", False), ("started", False), ("backend", False), ("where", False)], console=console)
    any_short = False
    for run, place, head in zip(runs, places, heads, strict=True):
        gone = "" if place is not None else "gone from "
        whole = plain(_named_here(place or run.path, run_id=run.run_id))
        where = _shortened(whole, length=room - len(gone))
        any_short |= where != whole
        table.add_row(*map(Text, (*head, gone + where)))
    draw_table(table, console=console)
    if any_short:
        tell(console, "... stands for a part of a folder that does not fit; --json has it whole.")


def _named_here(path: str, *, run_id: str) -> str:
    """The output folder of a run, seen from the current folder where that is shorter; else its run folder.

    The run's own folder below it says nothing that the run id does not.
    """
    shown = path.removesuffix(f"{os.sep}{RUNS_NAME}{os.sep}{run_id}")
    try:
        return min(shown, os.path.relpath(shown), key=len)
    except (OSError, ValueError):  # the current folder is gone, or on another drive
        return shown


def _shortened(text: str, *, length: int) -> str:
    """A path, its middle left out where it is longer than `length`: its ends tell runs apart."""
    if len(text) <= length:
        return text
    num_kept = length - len("...")
    return f"{text[: num_kept // 3]}...{text[num_kept // 3 - num_kept :]}"


def _entry(run: RegisteredRun, place: str | None) -> dict[str, object]:
    return {
        "run_id": run.run_id,
        "created": run.created,
        "backend": run.backend,
        "task": run.task,
        "path": place if place is not None else run.path,
        "exists": place is not None,
    }


def _started(run: RegisteredRun) -> str:
    """Local time to the minute; a clock that makes no sense is a dash."""
    try:
        return datetime.datetime.fromtimestamp(run.created).astimezone().strftime("%Y-%m-%d %H:%M")
    except (OverflowError, OSError, ValueError):
        return "-"
