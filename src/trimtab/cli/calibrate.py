"""`trimtab calibrate`: from a log to the setting of the guard that fits it."""

from __future__ import annotations

import click
from rich.console import Console

from trimtab.analysis.lookup import find_logs
from trimtab.calibration.calibrate import calibrate_log
from trimtab.cli.output import answer, json_option, refuse_logs
from trimtab.cli.progress import stage_progress
from trimtab.log.reader import open_log
from trimtab.report.calibration import render
from trimtab.report.lines import say
from trimtab.report.written import say_written


@click.command("calibrate")
@click.argument("path", metavar="[RUN | PATH]", required=False)
@click.option(
    "--top",
    type=click.IntRange(min=1),
    default=3,
    show_default=True,
    metavar="K",
    help="Skipped steps named a setting.",
)
@json_option("Write what was found as strict JSON; - for standard output, where nothing else is then printed.")
def command(path: str | None, *, top: int, json_file: str | None) -> int:
    """Replays a log under many settings of the guard: what each would have skipped, and the one to choose.

    Reads whatever trimtab rewind reads. Of a log with rows the micro-batches are judged, as a guard judges them; of
    any other the steps, which scatter less. A guard that acts changes what comes after it, and a replay does not: a
    run that a spike threw off its course goes on being off it here.

    \b
    Example:
        trimtab calibrate runs/a
        trimtab calibrate metrics.csv --json calibration.json
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    newest, notices = find_logs(path).newest()
    log = open_log(newest)
    refuse_logs({"--json": json_file}, places=[log.path])
    with stage_progress(log.size_bytes) as progress:
        calibration = calibrate_log(log, top=top, notices=notices, progress=progress)

    def draw(console: Console) -> None:
        render(calibration, console=console)
        if json_file:
            say(console, "")
            say_written(console, json_file)

    answer(calibration.to_dict, json_file=json_file, draw=draw)
    return 0
