"""`trimtab gate`: whether the chunk that a run ended with may be built upon."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final, NamedTuple

import click
from rich.console import Console

from trimtab.analysis.lookup import find_logs
from trimtab.cli.checkpoint_places import is_checkpoint
from trimtab.cli.checkpoints_of_run import folder_of_run, output_of
from trimtab.cli.output import answer, json_option, refuse_logs
from trimtab.cli.progress import with_progress
from trimtab.errors import CheckpointError
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
    help="The folder that holds the checkpoints. [default: the output folder in which the log lies, or one in it]",
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
    found, notices = find_logs(run).newest()
    log = open_log(found)
    refuse_logs({"--json": json_file}, places=[log.path])
    place = _place_of(log, checkpoints)

    def judge(progress: Progress | None) -> GateReport:
        return judge_chunk(log, checkpoints=place.folder, looked_in=place.looked_in, since=since, progress=progress)

    read = [Path(log.path), *([] if place.newest is None else [place.newest])]
    report = with_progress(read, judge)
    report = dataclasses.replace(report, notices=(*map(plain, notices), *report.notices))

    def draw(console: Console) -> None:
        draw_gates(report, strict=strict, console=console)
        if json_file:
            say(console, "")
            say_written(console, json_file)

    answer(lambda: report.to_dict(strict=strict), json_file=json_file, draw=draw)
    return 0 if report.passed(strict=strict) else EXIT_FAILED


class _Place(NamedTuple):
    """Where the checkpoints are.

    Attributes:
        folder: The folder that holds them; None where none was found.
        looked_in: Where it was looked for; None: nowhere.
        newest: What is read of it, as far as that is known before the log was read; None where nothing is.
    """

    folder: Path | None
    looked_in: Path | None = None
    newest: Path | None = None


def _place_of(log: Log, named: str | None) -> _Place:
    """Looks for the folder with the run's checkpoints.

    Raises:
        CheckpointError: The folder that was named is a checkpoint, or cannot be listed, or several in it hold
            checkpoints of the run.
    """
    run_id = log.header.run_id
    if named is not None:
        looked_in = Path(named)
        if is_checkpoint(looked_in):
            raise CheckpointError(
                f"{plain(named)} is a checkpoint itself, and that of the chunk's last step is judged. Name the folder "
                f"that holds it: --checkpoints {plain(str(looked_in.absolute().parent))}"
            )
        scan(looked_in)  # refused here, and not after the log was read
    elif is_run_folder(Path(log.path)):
        looked_in = output_of(Path(log.path))
    else:
        return _Place(None)
    found = None if run_id is None else folder_of_run(looked_in, run_id, how="Name one with --checkpoints")
    if found is not None:
        return _Place(found.folder, looked_in, found.newest)
    # Of the one that was named it is told what stands in it instead.
    return _Place(None if named is None else Path(named), looked_in)
