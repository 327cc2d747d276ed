"""Several logs read one after the other, and what their runs have in common.

    open_logs -> judge_log, rewind_judged for each -> run_names -> find_shared -> Comparison

Enters: names of logs. Leaves: a `Comparison`. Invariant: each log is read once, however often it was named: a log
beside itself would look like two runs that agree in everything.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, SupportsIndex

from trimtab.analysis.findings import LEADING_ROWS, check_settings, judge_log, rewind_judged
from trimtab.analysis.lookup import RecordedRun, find_logs
from trimtab.analysis.previews import with_all_previews
from trimtab.analysis.same_run import run_names
from trimtab.analysis.shared import find_shared
from trimtab.dataset.opening import open_data
from trimtab.findings import Comparison, Findings
from trimtab.log.reader import Log, open_log

LogName = str | os.PathLike[str] | RecordedRun | None


class NamedLog(NamedTuple):
    """A log that was named, and what is to be said of the naming."""

    log: Log
    notices: list[str]


def compare(
    paths_or_runs: Sequence[LogName],
    *,
    rule: str = "robust",
    step: SupportsIndex | None = None,
    top: SupportsIndex = 10,
    data: object | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """`rewind` for several runs, and what is out of line in more than one of them.

    Args:
        paths_or_runs: Each as for `rewind`; a folder that holds a `rewind.jsonl` and a `rewind.jsonl.1` is two runs.
        rule: As for `rewind`, and likewise `step`, `top` and `data`, for each run.
        step: See there.
        top: See there.
        data: See there.
        progress: Called now and then with the bytes read so far and the size of all logs in bytes.

    Returns:
        The findings of each run in the order given, and what they share.

    Raises:
        LogError: As for `rewind`, of the first log of which it is true.
        UsageError: Likewise.

    Example:
        comparison = compare(["runs/a", "runs/b"])
        for spike in comparison.shared:
            print(spike.step, spike.rows, spike.runs)
    """
    wanted, num_rows = check_settings(rule=rule, step=step, top=top)
    rows = open_data(data) if data is not None else None
    logs = open_logs(paths_or_runs)
    found = compare_logs(logs, rule=rule, step=wanted, top=num_rows, progress=progress)
    return with_all_previews(found, logs=[named.log for named in logs], data=rows)


def open_logs(names: Sequence[LogName]) -> list[NamedLog]:
    """Opens what was named, each log once.

    Args:
        names: Each as for `rewind`.

    Raises:
        LogError: Nothing is behind a name, or it is ambiguous.
        UsageError: It is no name at all.
    """
    opened: list[NamedLog] = []
    for name in names:
        found = find_logs(name)
        for place in found.paths:
            log = open_log(place)
            first = next((named for named in opened if Path(named.log.path).samefile(log.path)), None)
            if first is None:
                opened.append(NamedLog(log, list(found.notices)))
            else:
                first.notices.append(f"{place if name is None else name} is this log too: it was read once")
    return opened


def compare_logs(
    logs: Sequence[NamedLog],
    *,
    rule: str = "robust",
    step: int | None = None,
    top: int = 10,
    num_leading: int = LEADING_ROWS,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """`compare` for logs that are open already; one log alone shares nothing.

    Args:
        logs: The logs.
        rule: As for `compare`, and likewise `step`, `top` and `progress`.
        step: See there.
        top: See there.
        num_leading: Findings of each run, from the worst on, whose leading row is looked up.
        progress: See there.

    Raises:
        LogError: As for `rewind_log`, of the first log of which it is true.
    """
    total_bytes = sum(named.log.size_bytes for named in logs)
    done_bytes, runs, series = 0, [], []
    for log, notices in logs:
        report = _after(progress, done_bytes=done_bytes, total_bytes=total_bytes) if progress else None
        judged = judge_log(log, rule=rule, progress=report)
        runs.append(rewind_judged(log, judged, rule=rule, step=step, top=top, num_leading=num_leading, notices=notices))
        series.append([run.reading.series for run in judged])
        done_bytes += log.size_bytes
    names = run_names(runs, series=series, have_rows=[named.log.has_rows for named in logs])
    return Comparison(
        runs=tuple(_with_twin(findings, name=name) for findings, name in zip(runs, names, strict=True)),
        shared=find_shared(runs, names=names),
        num_different=len(set(names)),
    )


def _with_twin(findings: Findings, *, name: str) -> Findings:
    """The findings, and that their run is one that another log tells of, where losses alone show it."""
    if name == (findings.run_id or findings.source):
        return findings
    twin = f"its losses are those of {name}, step by step: that is one run told twice, and counts once"
    return dataclasses.replace(findings, notices=(twin, *findings.notices))


def _after(progress: Callable[[int, int], None], *, done_bytes: int, total_bytes: int) -> Callable[[int, int], None]:
    """Progress in one log as progress in all of them."""
    return lambda num_bytes, _: progress(done_bytes + num_bytes, total_bytes)
