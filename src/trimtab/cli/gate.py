"""`trimtab gate`: whether the chunk that a run ended with may be built upon."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from trimtab.analysis.lookup import find_logs
from trimtab.cli.checkpoints_of_run import folders_of_run, outputs_of
from trimtab.cli.output import answer, json_option, refuse_logs
from trimtab.cli.progress import with_progress
from trimtab.errors import CheckpointError
from trimtab.gates.checkpoint_written import SAVE
from trimtab.gates.judging import judge_chunk
from trimtab.gates.values import GateReport
from trimtab.log.folder import is_run_folder
from trimtab.log.reader import Log, open_log
from trimtab.report.gates import draw_gates
from trimtab.report.lines import say
from trimtab.report.written import say_written
from trimtab.resume.checksum import Progress
from trimtab.resume.names import scan
from trimtab.text import plain

EXIT_FAILED: Final = 3


@click.command("gate")
@click.argument("run", metavar="[RUN | PATH]", required=False)
@click.option(
    "--since",
    type=click.IntRange(min=0),
    metavar="STEP",
    help="The chunk begins with the step after this one. [default: where the run last stopped in good order]",
)
@click.option(
    "--checkpoints",
    "checkpoints",
    metavar="DIR",
    help="The folder that holds the checkpoints. [default: the run's output folder, or one in it]",
)
@click.option("--strict", is_flag=True, help="A gate of which nothing is known holds the next chunk back too.")
@json_option("Write the gates as strict JSON; - for standard output, where nothing else is then printed.")
def command(run: str | None, *, since: int | None, checkpoints: str | None, strict: bool, json_file: str | None) -> int:
    """Judges the chunk that a run ended with, and its checkpoint: may the next chunk start?

    A chunk is what was trained since the run last stopped in good order. RUN is given as trimtab rewind takes it;
    nothing stands for the newest run on this machine. Exits with 0 where no gate failed, and with 3 where one did: then
    do not start the next chunk. What nobody recorded is unknown, and is told as such; with --strict that is 3 as well.
    Nothing that a log or a checkpoint names is loaded, imported or run.

    \b
    Example:
        trimtab gate && python train.py
        trimtab gate runs/a --strict --json gates.json
        trimtab gate runs/a --since 500
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    place, notices = find_logs(run).newest()
    log = open_log(place)
    refuse_logs({"--json": json_file}, places=[log.path])
    folder, missing = _checkpoints(log, checkpoints)

    def judge(progress: Progress | None) -> GateReport:
        return judge_chunk(log, checkpoints=folder, missing=missing, since=since, progress=progress)

    report = with_progress([Path(log.path), *_newest(folder)], judge)
    report = dataclasses.replace(report, notices=(*map(plain, notices), *report.notices))

    def draw(console: Console) -> None:
        draw_gates(report, strict=strict, console=console)
        if json_file:
            say(console, "")
            say_written(console, json_file)

    answer(lambda: report.to_dict(strict=strict), json_file=json_file, draw=draw)
    return 0 if report.passed(strict=strict) else EXIT_FAILED


def _checkpoints(log: Log, named: str | None) -> tuple[Path | None, str]:
    """The folder that holds the run's checkpoints, and where there is none why not.

    Raises:
        CheckpointError: The folder that was named cannot be listed, or several in it hold checkpoints of the run.
    """
    run_id = log.header.run_id
    if named is not None:
        scan(Path(named))  # refused here, and not after the log was read
        return _holding([Path(named)], run_id) or Path(named), ""
    if not is_run_folder(Path(log.path)):
        return None, ""
    outs = outputs_of(Path(log.path), log.header)
    where = " or ".join(plain(str(out)) for out in outs)
    missing = f"no checkpoint of this run is in {where}, or in the folders in there"
    return _holding(outs, run_id), f"{missing}: {SAVE}, or name the folder that holds them with --checkpoints DIR"


def _holding(outs: Sequence[Path], run_id: str | None) -> Path | None:
    """The folder with the checkpoints of a run; None where there is none."""
    folders = [] if run_id is None else [folder for out in outs for folder in folders_of_run(out, run_id)]
    if len(folders) > 1:
        where = ", ".join(plain(str(folder)) for folder in folders)
        raise CheckpointError(
            f"Checkpoints of this run are in {len(folders)} folders. Name one with --checkpoints: {where}"
        )
    return next(iter(folders), None)


def _newest(folder: Path | None) -> list[Path]:
    """What is read of a folder, as far as its names tell."""
    return [] if folder is None else [name.path for name in scan(folder).found[:1]]
