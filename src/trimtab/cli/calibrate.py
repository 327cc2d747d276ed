"""`trimtab calibrate`: from a log to the setting of the guard that fits it."""

from __future__ import annotations

import sys
from contextlib import suppress

import click

from trimtab.analysis.comparison import open_logs
from trimtab.calibration.calibrate import calibrate_log
from trimtab.cli.output import STANDARD_OUTPUT, OutputFile, refuse_logs, write_output
from trimtab.cli.progress import stage_progress
from trimtab.report import as_json
from trimtab.report.calibration import render
from trimtab.report.console import make_console


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
@click.option(
    "--json",
    "json_file",
    type=OutputFile(allow_standard_output=True),
    metavar="FILE",
    help="Write what was found as strict JSON; - for standard output, where nothing else is then printed.",
)
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
    (log, notices), *others = open_logs([path])
    refuse_logs({"--json": json_file}, places=[log.path])
    notices = [*notices, *(f"{other.log.path} is another run: name the file to read it" for other in others)]
    with stage_progress(log.size_bytes) as progress:
        calibration = calibrate_log(log, top=top, notices=notices, progress=progress)

    if json_file:
        write_output(json_file, as_json.dumps(calibration))
    if json_file != STANDARD_OUTPUT:
        with suppress(BrokenPipeError):
            render(calibration, console=make_console(sys.stdout))
    return 0
