"""`trimtab rewind`: from a log to the rows behind its spike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import click

from trimtab.analysis.findings import LEADING_ROWS, rewind_log
from trimtab.analysis.lookup import find_logs
from trimtab.analysis.shared import SharedSpike, find_shared, num_different
from trimtab.analysis.spikes import MAX_SPIKES, RULES
from trimtab.cli.output import (
    STANDARD_OUTPUT,
    OutputFile,
    refuse_logs,
    refuse_one_file_for_two,
    write_output,
)
from trimtab.errors import UsageError
from trimtab.log.reader import Log, open_log
from trimtab.report import as_json, terminal
from trimtab.report.console import make_console
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
    destinations = {"--drop-list": drop_file, "--json": json_file}
    refuse_one_file_for_two(destinations)
    opened = _open_logs(paths)
    refuse_logs(destinations, places=[named.log.path for named in opened])
    if drop_file and len(opened) > 1:
        raise UsageError("--drop-list takes one run at a time: the rows of two runs may be of different datasets.")

    runs: list[tuple[Log, Findings]] = []
    for log, notices in opened:
        with _progress(log) as progress:
            findings = rewind_log(
                log,
                rule=rule,
                step=step,
                top=top,
                num_leading=MAX_SPIKES if drop_file else LEADING_ROWS,
                notices=notices,
                progress=progress,
            )
        runs.append((log, findings))

    if drop_file:
        log, findings = runs[0]
        fingerprint = log.header.dataset_fingerprint
        write_output(drop_file, as_json.dumps_document(drop_list(findings, dataset_fingerprint=fingerprint)))
    answer = [findings for _, findings in runs]
    shared = find_shared(answer)
    if json_file and len(answer) == 1:
        write_output(json_file, as_json.dumps(answer[0]))
    elif json_file:
        write_output(json_file, as_json.dumps_runs(answer, shared=[spike.to_dict() for spike in shared]))
    if json_file != STANDARD_OUTPUT:
        # Last: whoever reads this may stop in the middle, and still gets the files and the verdict.
        with suppress(BrokenPipeError):
            _draw(answer, shared=shared, previews=not no_preview)

    failing = FAILING_SEVERITIES.get(fail_on or "", ())
    found_some = any(spike.severity in failing for findings in answer for spike in findings.spikes)
    return EXIT_FINDINGS if found_some else 0


class _Named(NamedTuple):
    """A log that was named, and what is to be said of the naming."""

    log: Log
    notices: list[str]


def _open_logs(names: tuple[str, ...]) -> list[_Named]:
    """Opens what was named, each log once: a log beside itself would look like two runs that agree in everything."""
    opened: list[_Named] = []
    for name in names or (None,):
        found = find_logs(name)
        for place in found.paths:
            log = open_log(place)
            first = next((named for named in opened if Path(named.log.path).samefile(log.path)), None)
            if first is None:
                opened.append(_Named(log, list(found.notices)))
            else:
                first.notices.append(f"{name} is this log too: it was read once")
    return opened


def _draw(answer: list[Findings], *, shared: Sequence[SharedSpike], previews: bool) -> None:
    console = make_console(sys.stdout)
    for index, findings in enumerate(answer):
        if index:
            terminal.say(console, "")
        terminal.render(findings, console=console, previews=previews)
    if len(answer) > 1:
        render_shared(shared, num_runs=num_different(answer), console=console)
    elif answer[0].spikes:
        terminal.say(console, "")
        terminal.say(console, "More: --step N lists the rows of another step, --drop-list FILE the rows to leave out.")


@contextmanager
def _progress(log: Log) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on standard error while a large log is read, where a person watches."""
    if log.size_bytes < PROGRESS_FROM_BYTES or not sys.stderr.isatty():
        yield None
        return
    # Imported here: it is a tenth of the time that a small log takes, which never shows a bar.
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=make_console(sys.stderr), transient=True) as bar:
        task = bar.add_task("reading the log", total=log.size_bytes)
        yield lambda num_done, num_bytes: bar.update(task, completed=num_done, total=num_bytes)
