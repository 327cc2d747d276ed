"""`trimtab rewind`: from a log to the rows behind its spike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click
from rich.console import Console

from trimtab.analysis.comparison import compare_logs, open_logs
from trimtab.analysis.drop_list import drop_list
from trimtab.analysis.findings import LEADING_ROWS
from trimtab.analysis.previews import HOW_TO_PART, SEVERAL_DATASETS, with_all_previews
from trimtab.analysis.spikes import MAX_SPIKES, RULES
from trimtab.cli.data import open_named_data
from trimtab.cli.output import (
    OutputFile,
    answer,
    json_option,
    refuse_logs,
    refuse_one_file_for_two,
    write_output,
)
from trimtab.cli.progress import stage_progress
from trimtab.cli.row import show_row
from trimtab.errors import LogError, UsageError
from trimtab.findings import Comparison
from trimtab.report import as_json, terminal
from trimtab.report.lines import say, tell
from trimtab.report.shared import render_shared
from trimtab.report.written import drop_list_in_words, say_written

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
@json_option("Write what was found as strict JSON; - for standard output, where nothing else is then printed.")
@click.option(
    "--fail-on",
    type=click.Choice(tuple(FAILING_SEVERITIES)),
    help="Exit with 3 if there is a finding of this severity or a worse one, a spike or of the run's health; notices "
    "never count.",
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
    Several are compared: what spikes at the same rows in more than one is the data's doing. What a watch would warn
    of (routers, evaluations, the loss scale, the pace) is told too, from whatever of it the log holds.

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
    if drop_file and not logs[0].log.has_rows:
        # An empty list would say that there is nothing to drop.
        raise LogError(
            f"{logs[0].log.path}: this log holds no rows, only steps: nothing can be dropped, and no list was written. "
            "Leave --drop-list away, or attach Trimtab to a run to record its rows."
        )
    rows_at_hand = open_named_data(data) if data is not None else None
    if row is not None:
        show_row(row, log=logs[0].log, data=rows_at_hand, with_text=not no_preview, json_file=json_file)
        return 0

    with stage_progress(sum(named.log.size_bytes for named in logs)) as show:
        found = compare_logs(
            logs,
            rule=rule,
            step=step,
            top=top,
            num_leading=MAX_SPIKES if drop_file else LEADING_ROWS,
            progress=(lambda num_bytes, num_all: show("reading the log", num_bytes, num_all)) if show else None,
        )
    if not no_preview:
        found = with_all_previews(found, logs=[named.log for named in logs], data=rows_at_hand)

    listed = None
    if drop_file:
        log = logs[0].log
        if log.restarts():
            raise LogError(
                f"{log.path}: {SEVERAL_DATASETS}; no list was written. First {HOW_TO_PART}, then name one of them."
            )
        listed = drop_list(found.runs[0], header=log.header, ids=log.id_columns())
        write_output(drop_file, as_json.dumps_document(listed))

    def draw(console: Console) -> None:
        _draw(found, console=console)
        _draw_written(json_file, drop_file, listed, console=console)

    answer((found if len(found.runs) > 1 else found.runs[0]).to_dict, json_file=json_file, draw=draw)
    failing = FAILING_SEVERITIES.get(fail_on or "", ())
    severities = {spike.severity for run in found.runs for spike in run.spikes}
    severities |= {finding.severity for run in found.runs for finding in run.health}
    found_some = not severities.isdisjoint(failing)
    return EXIT_FINDINGS if found_some else 0


def _refuse_contradictions(*, row: str | None, data: str | None, no_preview: bool, **others: object) -> None:
    """Refuses options of which one would silence the other."""
    if data is not None and no_preview:
        raise UsageError("--data is for the rows' text, and --no-preview leaves it out: give one of them.")
    silenced = [name for name, value in others.items() if value is not None]
    if row is not None and silenced:
        options = {"step": "--step", "drop_file": "--drop-list", "fail_on": "--fail-on"}
        raise UsageError(f"--row shows one row alone; {options[silenced[0]]} is for findings: leave one of them away.")


def _draw(found: Comparison, *, console: Console) -> None:
    for index, findings in enumerate(found.runs):
        if index:
            say(console, "")
        terminal.render(findings, console=console)
    if len(found.runs) > 1:
        render_shared(found, console=console)
    elif found.runs[0].spikes and found.runs[0].rows:
        say(console, "")
        more = "--step N lists the rows of another step, --row ROW shows one, --drop-list FILE the rows to leave out."
        tell(console, f"More: {more}")


def _draw_written(
    json_file: str | None, drop_file: str | None, listed: Mapping[str, Any] | None, *, console: Console
) -> None:
    if json_file or drop_file:
        say(console, "")
    if json_file:
        say_written(console, json_file)
    if drop_file and listed is not None:
        say_written(console, drop_file, what=drop_list_in_words(listed, path=drop_file))
