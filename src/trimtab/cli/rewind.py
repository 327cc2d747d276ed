"""`trimtab rewind`: from a log to the rows behind its spike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import click

from trimtab.analysis.findings import LEADING_ROWS, rewind_log
from trimtab.analysis.lookup import find_logs
from trimtab.analysis.shared import SharedSpike, find_shared
from trimtab.analysis.spikes import MAX_SPIKES, RULES
from trimtab.cli.output import STANDARD_OUTPUT, OutputFile, make_console, write_output
from trimtab.errors import UsageError
from trimtab.log.reader import Log, open_log
from trimtab.report import as_json, terminal
from trimtab.report.drop_list import drop_list
from trimtab.report.shared import render_shared
from trimtab.values import Findings

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
@click.option("--no-preview", is_flag=True, help="Do not mention that rows are shown without their text.")
@click.option(
    "--drop-list",
    "drop_file",
    type=OutputFile(allow_standard_output=False),
    metavar="FILE",
    help="Write the rows that made a finding (half of the step's loss, or not finite) as JSON.",
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
    no_preview: bool,
    drop_file: str | None,
    json_file: str | None,
    fail_on: str | None,
) -> int:
    """Names the dataset rows behind a loss spike, from the log alone.

    Give nothing for the newest run on this machine, a run id or its beginning, a run folder, a folder that holds
    runs, or a rewind.jsonl. Several are compared: what spikes at the same rows in more than one is the data's doing.

    \b
    Example:
        trimtab rewind runs/a --json report.json
        trimtab rewind runs/a --step 1200 --top 20
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    runs: list[tuple[Log, Findings]] = []
    for name in paths or (None,):
        found = find_logs(name)
        for place in found.paths:
            log = open_log(place)
            with _progress(log) as progress:
                findings = rewind_log(
                    log,
                    rule=rule,
                    step=step,
                    top=top,
                    num_leading=MAX_SPIKES if drop_file else LEADING_ROWS,
                    notices=found.notices,
                    progress=progress,
                )
            runs.append((log, findings))

    if drop_file:
        _write_drop_list(drop_file, runs)
    answer = [findings for _, findings in runs]
    shared = find_shared(answer)
    if json_file != STANDARD_OUTPUT:
        _draw(answer, shared=shared, previews=not no_preview)
    if json_file and len(answer) == 1:
        write_output(json_file, as_json.dumps(answer[0]))
    elif json_file:
        write_output(json_file, as_json.dumps_runs(answer, shared=[spike.to_dict() for spike in shared]))

    failing = FAILING_SEVERITIES.get(fail_on or "", ())
    found_some = any(spike.severity in failing for findings in answer for spike in findings.spikes)
    return EXIT_FINDINGS if found_some else 0


def _write_drop_list(destination: str, runs: list[tuple[Log, Findings]]) -> None:
    if len(runs) > 1:
        raise UsageError("--drop-list takes one run at a time: the rows of two runs may be of different datasets.")
    (log, findings), *_ = runs
    fingerprint = log.header.dataset_fingerprint
    write_output(destination, as_json.dumps_document(drop_list(findings, dataset_fingerprint=fingerprint)))


def _draw(answer: list[Findings], *, shared: Sequence[SharedSpike], previews: bool) -> None:
    console = make_console()
    for index, findings in enumerate(answer):
        if index:
            terminal.say(console, "")
        terminal.render(findings, console=console, previews=previews)
    if len(answer) > 1:
        render_shared(shared, num_runs=len(answer), console=console)


@contextmanager
def _progress(log: Log) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while a large log is read, where a person watches."""
    if log.size_bytes < PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    # Imported here: it is a tenth of the time that a small log takes, which never shows a bar.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    console = Console(stderr=True, markup=False, emoji=False, highlight=False)
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("reading the log", total=log.size_bytes)
        yield lambda num_done, num_bytes: bar.update(task, completed=num_done, total=num_bytes)
