"""`trimtab rewind`: from a log to the rows behind its spike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import click

from trimtab.analysis.comparison import compare_logs, open_logs
from trimtab.analysis.drop_list import drop_list
from trimtab.analysis.findings import LEADING_ROWS
from trimtab.analysis.previews import with_all_previews
from trimtab.analysis.spikes import MAX_SPIKES, RULES
from trimtab.cli.data import open_named_data
from trimtab.cli.output import (
    STANDARD_OUTPUT,
    OutputFile,
    refuse_logs,
    refuse_one_file_for_two,
    write_output,
)
from trimtab.cli.row import show_row
from trimtab.errors import UsageError
from trimtab.findings import Comparison
from trimtab.report import as_json, terminal
from trimtab.report.console import make_console
from trimtab.report.shared import render_shared

PROGRESS_FROM_BYTES = 20_000_000
"""Smaller logs are read in about a second."""

EXIT_FINDINGS = 3
FAILING_SEVERITIES = {"warning": ("critical", "warning"), "critical": ("critical",)}


@click.command("rewind")
@click.argument("paths", metavar="[RUN | PATH]...", nargs=-1)
@click.option("--step", type=int, metavar="N", help="List the rows of this step, spike or not.")
@click.option("--top", type=click.IntRange(min=1), default=10, show_default=True, metavar="K", help="Rows listed.")
@click.option(
    "--rule",
    type=click.Choice(RULES),
    default="robust",
    show_default=True,
    help="robust: above the median of the last 100 steps by 10 robust scales. median: above twice that of the last 20.",
)
@click.option("--row", metavar="ROW", help="Show this row alone: where it occurred, and all of it that is at hand.")
@click.option(
    "--data",
    metavar="FILE|MODULE:FUNCTION",
    help="The dataset, for the rows' text: .jsonl, .json, .csv, .txt, .parquet, .arrow, a folder that save_to_disk "
    "left, or a function that returns it. Shown only if it is the one that was trained on.",
)
@click.option("--no-preview", is_flag=True, help="Show no text of the data, and open none.")
@click.option(
    "--drop-list",
    "drop_file",
    type=OutputFile(allow_standard_output=False),
    metavar="FILE",
    help="Write the rows that made a finding of the loss (half of the step's, or not finite) as JSON.",
)
@click.option(
    "--json",
    "json_file",
    type=OutputFile(allow_standard_output=True),
    metavar="FILE",
    help="Write what was found as strict JSON; - for standard output, where nothing else is then printed.",
)
@click.option(
    "--fail-on",
    type=click.Choice(tuple(FAILING_SEVERITIES)),
    help="Exit with 3 if there is a finding of this severity or a worse one; notices never count.",
)
def command(
    paths: tuple[str, ...],
    *,
    step: int | None,
    top: int,
    rule: str,
    row: str | None,
    data: str | None,
    no_preview: bool,
    drop_file: str | None,
    json_file: str | None,
    fail_on: str | None,
) -> int:
    """Names the dataset rows behind a loss spike, from the log alone.

    Give nothing for the newest run on this machine, a run id or its beginning, a run folder, a folder that holds
    runs, or a log of another tool: rewind.jsonl, trainer_state.json, metrics as CSV or JSONL, TensorBoard, text.
    Several are compared: what spikes at the same rows in more than one is the data's doing.

    \b
    Example:
        trimtab rewind runs/a --json report.json
        trimtab rewind runs/a --step 1200 --top 20
        trimtab rewind runs/a --row 1215 --data train.jsonl
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    _refuse_contradictions(row=row, step=step, data=data, no_preview=no_preview, drop_file=drop_file, fail_on=fail_on)
    destinations = {"--drop-list": drop_file, "--json": json_file}
    refuse_one_file_for_two(destinations)
    logs = open_logs(paths or (None,))
    refuse_logs(destinations, places=[named.log.path for named in logs])
    if drop_file and len(logs) > 1:
        raise UsageError("--drop-list takes one run at a time: the rows of two runs may be of different datasets.")
    if row is not None and len(logs) > 1:
        raise UsageError("--row takes one run at a time: the rows of two runs may be of different datasets.")
    rows_at_hand = open_named_data(data) if data is not None else None
    if row is not None:
        show_row(row, log=logs[0].log, data=rows_at_hand, with_text=not no_preview, json_file=json_file)
        return 0

    with _progress(sum(named.log.size_bytes for named in logs)) as progress:
        found = compare_logs(
            logs,
            rule=rule,
            step=step,
            top=top,
            num_leading=MAX_SPIKES if drop_file else LEADING_ROWS,
            progress=progress,
        )
    if not no_preview:
        found = with_all_previews(found, logs=[named.log for named in logs], data=rows_at_hand)

    if drop_file:
        log = logs[0].log
        listed = drop_list(found.runs[0], header=log.header, ids=log.id_columns())
        write_output(drop_file, as_json.dumps_document(listed))
    if json_file:
        write_output(json_file, as_json.dumps(found if len(found.runs) > 1 else found.runs[0]))
    if json_file != STANDARD_OUTPUT:
        # Last: whoever reads this may stop in the middle, and still gets the files and the verdict.
        with suppress(BrokenPipeError):
            _draw(found)

    failing = FAILING_SEVERITIES.get(fail_on or "", ())
    found_some = any(spike.severity in failing for findings in found.runs for spike in findings.spikes)
    return EXIT_FINDINGS if found_some else 0


def _refuse_contradictions(*, row: str | None, data: str | None, no_preview: bool, **others: object) -> None:
    """Refuses options of which one would silence the other."""
    if data is not None and no_preview:
        raise UsageError("--data is for the rows' text, and --no-preview leaves it out: give one of them.")
    silenced = [name for name, value in others.items() if value is not None]
    if row is not None and silenced:
        options = {"step": "--step", "drop_file": "--drop-list", "fail_on": "--fail-on"}
        raise UsageError(f"--row shows one row alone; {options[silenced[0]]} is for findings: leave one of them away.")


def _draw(found: Comparison) -> None:
    console = make_console(sys.stdout)
    for index, findings in enumerate(found.runs):
        if index:
            terminal.say(console, "")
        terminal.render(findings, console=console)
    if len(found.runs) > 1:
        render_shared(found, console=console)
    elif found.runs[0].spikes and found.runs[0].rows:
        terminal.say(console, "")
        more = "--step N lists the rows of another step, --row ROW shows one, --drop-list FILE the rows to leave out."
        terminal.say(console, f"More: {more}")


@contextmanager
def _progress(size_bytes: int) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while large logs are read, where a person watches."""
    if size_bytes < PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    # Imported here: it is a tenth of the time that a small log takes, which never shows a bar.
    from rich.progress import DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    # Figures, no bar: rich draws one with characters that are no ASCII.
    percent = TextColumn("{task.percentage:>3.0f} %")
    columns = (TextColumn("{task.description}"), percent, DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(sys.stderr), transient=True) as bar:
        task = bar.add_task("reading the log", total=size_bytes)
        yield lambda num_done, num_bytes: bar.update(task, completed=num_done, total=num_bytes)
