"""From a log to findings: which steps are out of line, and which rows made them so.

    find_logs -> open_log -> read_runs -> judge_runs -> choose a step -> gather_rows -> Findings

Enters: a path or run id. Leaves: `Findings`, a plain value that a report draws. Invariant: the log is all that is
used; no model, no accelerator, and data only to say what a row that was found reads like.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import SupportsIndex

from trimtab.analysis import remarks, reported, resume_checks
from trimtab.analysis.attempts import read_runs
from trimtab.analysis.blame import blame, blamed_step, leads_to
from trimtab.analysis.health import LARGE_EVENTS, judge_health
from trimtab.analysis.lookup import RecordedRun, find_logs
from trimtab.analysis.neighbours import mark_neighbours
from trimtab.analysis.previews import with_previews
from trimtab.analysis.rows import StepRows, describe_rows, gather_rows
from trimtab.analysis.series import StepSeries
from trimtab.analysis.several_runs import JudgedRun, judge_runs, merged, on_asked, on_runs, run_of_step
from trimtab.analysis.spikes import check_rule
from trimtab.analysis.stand_outs import find_stand_outs
from trimtab.dataset.opening import open_data
from trimtab.errors import LogError, UsageError
from trimtab.findings import Findings, Spike, StepChoice
from trimtab.log.parts import is_newest
from trimtab.log.reader import Log, open_log
from trimtab.values import Event

LEADING_ROWS = 20
"""Findings, from the worst on, whose leading row is looked up: as many as the terminal lists."""

MAX_NAMED_RUNS = 5
"""Runs of a file whose steps an error tells."""


def rewind(
    path_or_run: str | os.PathLike[str] | RecordedRun | None = None,
    *,
    rule: str = "robust",
    step: SupportsIndex | None = None,
    top: SupportsIndex = 10,
    data: object | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Findings:
    """Finds the spikes of a run and the dataset rows behind the worst one, from its log alone.

    Args:
        path_or_run: A run folder, a folder that holds runs, a log file, a run id or its unique beginning; a run of
            this process, as far as it is on disk; None: the newest run on this machine.
        rule: "robust" (median + 10 robust scales of the last 100 steps) or "median" (twice the median of the last 20).
        step: Step whose rows to list; None: the worst finding's, or that of a gradient norm which announced it.
        top: Rows listed at most.
        data: The dataset that was trained on, for the rows' text: a list, a Hugging Face Dataset, any object with a
            length and rows by number, or the path of a file; None: the files that the log names, if they are there.
        progress: Called now and then with the bytes read so far and the size of the log in bytes.

    Returns:
        What was found; `to_dict()` is the JSON document of `trimtab rewind --json`.

    Raises:
        LogError: There is no log, it cannot be read, it holds no training step, or not the step asked for.
        UsageError: A setting makes no sense, or `path_or_run` or `data` is none of the above.

    Example:
        findings = trimtab.rewind("runs/a")
        for spike in findings.spikes:
            print(spike.step, spike.severity, spike.row)
    """
    wanted, num_rows = check_settings(rule=rule, step=step, top=top)
    newest, notices = find_logs(path_or_run).newest()
    rows = open_data(data) if data is not None else None
    log = open_log(newest)
    findings = rewind_log(log, rule=rule, step=wanted, top=num_rows, notices=notices, progress=progress)
    return with_previews(findings, log=log, data=rows)


def check_settings(*, rule: str, step: SupportsIndex | None, top: SupportsIndex) -> tuple[int | None, int]:
    """Refuses settings of `rewind` that make no sense with `UsageError`; gives `step` and `top` as plain numbers."""
    check_rule(rule)
    wanted = None if step is None else _whole(step, name="step")
    return wanted, check_top(top)


def check_top(top: SupportsIndex) -> int:
    """How many entries to list at most, as a plain number; refuses fewer than one with `UsageError`."""
    number = _whole(top, name="top")
    if number < 1:
        raise UsageError(f"top={number} makes no sense: use a whole number of 1 or more.")
    return number


def _whole(value: SupportsIndex, *, name: str) -> int:
    """A setting as an int; numpy's integers are as good as any, a truth is no number."""
    if not isinstance(value, bool):
        try:
            return operator.index(value)
        except TypeError:
            pass
    raise UsageError(f"{name}={value!r} is a {type(value).__name__}: use a whole number.")


def rewind_log(
    log: Log,
    *,
    rule: str = "robust",
    step: int | None = None,
    top: int = 10,
    num_leading: int = LEADING_ROWS,
    notices: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Findings:
    """`rewind` for a log that is open already.

    Args:
        log: The log.
        rule: As for `rewind`, and likewise `step`, `top` and `progress`.
        step: See there.
        top: See there.
        num_leading: Findings, from the worst on, whose leading row is looked up.
        notices: What is to be said first, about the choice of the log.
        progress: See there.

    Returns:
        What was found.

    Raises:
        LogError: The log cannot be read, it holds no training step, or not the step asked for.
    """
    runs = judge_log(log, rule=rule, progress=progress)
    return rewind_judged(log, runs, rule=rule, step=step, top=top, num_leading=num_leading, notices=notices)


def judge_log(log: Log, *, rule: str, progress: Callable[[int, int], None] | None = None) -> list[JudgedRun]:
    """The first half of `rewind_log`: the runs of a log, and which of their steps are out of line.

    Args:
        log: The log.
        rule: As for `rewind`, and likewise `progress`.
        progress: See there.

    Raises:
        LogError: The log cannot be read, or it holds no training step.
    """
    report = (lambda num_bytes: progress(num_bytes, log.size_bytes)) if progress else None
    runs = judge_runs(read_runs(log, progress=report), rule=rule)
    if not runs[0].reading.series.num_steps:
        raise LogError(f"{log.path}: {remarks.why_no_step(log.notices())}")
    return runs


def rewind_judged(
    log: Log,
    runs: Sequence[JudgedRun],
    *,
    rule: str = "robust",
    step: int | None = None,
    top: int = 10,
    num_leading: int = LEADING_ROWS,
    notices: Sequence[str] = (),
) -> Findings:
    """The second half of `rewind_log`: the rows behind what is out of line.

    Args:
        log: The log.
        runs: What `judge_log` made of it under the same rule.
        rule: As for `rewind_log`, and likewise the others.
        step: See there.
        top: See there.
        num_leading: See there.
        notices: See there.

    Raises:
        LogError: The log cannot be read, or does not hold the step asked for.
    """
    if step is not None and run_of_step(runs, step) is None:
        raise LogError(f"{log.path}: step {step} is not in the log; it holds {_steps_held(runs)}.")

    found = merged(runs, rule=rule)
    shown, reason = _choose_step(found.spikes, asked=step)
    # Rows are found by attempt and step, and a step of a run of its own has an attempt of its own.
    run = runs[-1] if shown is None else _run_shown(runs, found.spikes, shown=shown, asked=step)
    series = run.reading.series
    looked_up = found.spikes[:num_leading]
    steps = [blamed_step(spike) for spike in looked_up]
    tables = gather_rows(log, series=series, steps=steps if shown is None else [shown, *steps]) if log.has_rows else {}
    tables = mark_neighbours(log, tables, series=series)
    leading = (_with_rows(spike, tables, spikes=found.spikes, series=series) for spike in looked_up)
    spikes = (*leading, *found.spikes[num_leading:])
    table = tables.get(shown) if shown is not None else None
    is_quiet = all(spike.severity == "notice" for spike in spikes)
    stand_outs = find_stand_outs(log, series=series) if is_quiet else []
    events = log.event_list(without=LARGE_EVENTS)
    health = judge_health(log, runs)
    return Findings(
        run_id=log.header.run_id,
        source=log.path,
        rule=rule,
        num_steps=sum(run.reading.series.num_steps for run in runs),
        step=shown,
        step_reason=reason,
        spikes=spikes,
        spikes_left_out=found.num_left_out,
        rows=describe_rows(log, table, series=series, top=top) if table else (),
        rows_left_out=max(0, table.row.size - top) if table else 0,
        num_nonfinite_rows=table.num_nonfinite if table else 0,
        row_losses_known=_row_losses_known(table, series),
        blame=blame(table, spikes=found.spikes, series=series) if table else None,
        num_ranks=log.header.world_size,
        health=health.findings,
        health_left_out=health.num_left_out,
        router=health.router,
        router_at_finding=health.router_at_finding,
        notices=(
            *notices,
            *remarks.on_stand_outs(stand_outs),
            *remarks.on_leaders(spikes),
            *on_asked(runs, asked=step),
            *([] if step is None or log.has_rows else remarks.on_step(series, step)),
            *on_runs(runs, lambda run: _on_run(log, run, rule=rule, events=events)),
            *resume_checks.on_resume_checks(events),
            *health.notices,
            *remarks.on_table(table, shown=shown, has_rows=log.has_rows),
            *remarks.on_end(run.reading, events=events if _tells_its_end(log) else None),
            *log.notices(),
        ),
    )


def _on_run(log: Log, run: JudgedRun, *, rule: str, events: Sequence[Event]) -> list[str]:
    """What is to be said of one of the runs of a log."""
    reading, search = run.reading, run.search
    return [
        *reported.on_unknown_losses(reading.series, events=events),
        *reported.on_other_losses(log, series=reading.series),
        *remarks.on_resumes(reading.series, search.spikes, events=events),
        *remarks.on_guard(reading.series, search.spikes),
        *remarks.on_search(search, rule=rule),
        *remarks.on_reading(reading),
    ]


def _tells_its_end(log: Log) -> bool:
    """Whether the end of its run would stand in a log."""
    return log.format == "run" or (log.format == "journal" and is_newest(Path(log.path)))


def _steps_held(runs: Sequence[JudgedRun]) -> str:
    """The steps of a log, as words of an error."""
    held = []
    for run in runs[:MAX_NAMED_RUNS]:
        first, last = run.reading.series.step[0], run.reading.series.step[-1]
        held.append(f"step {first} alone" if first == last else f"steps {first} to {last}")
    more = f" and those of {len(runs) - len(held)} more" if len(runs) > len(held) else ""
    return ", ".join(held) + more + (f" in {len(runs)} runs" if len(runs) > 1 else "")


def _run_shown(runs: Sequence[JudgedRun], spikes: Sequence[Spike], *, shown: int, asked: int | None) -> JudgedRun:
    """The run of the step that is shown: the worst finding's, unless a step was asked for."""
    worst = next((spike for spike in spikes if spike.severity != "notice"), spikes[0] if spikes else None)
    run = None
    if asked is None and worst is not None and worst.segment is not None:
        run = runs[worst.segment - 1]
    else:
        run = run_of_step(runs, shown)
    assert run is not None
    return run


def _choose_step(spikes: Sequence[Spike], *, asked: int | None) -> tuple[int | None, StepChoice | None]:
    """The step whose rows are shown, and why.

    A gradient norm that jumped shortly before the worst loss finding names the rows that did the harm: the loss shows
    it one step later. Without any loss finding the first notice is all there is.
    """
    if asked is not None:
        return asked, "asked"
    worst = next((spike for spike in spikes if spike.severity != "notice"), None)
    # What a norm did in one run of a file says nothing of the next.
    of_run = spikes if worst is None else [spike for spike in spikes if spike.segment == worst.segment]
    norms = sorted(spike.first for spike in of_run if spike.kind == "grad_norm")
    if worst is None:
        return (norms[0], "grad_norm_before") if norms else (None, None)
    before = [first for first in norms if leads_to(first, worst)]
    return (before[0], "grad_norm_before") if before else (worst.step, "worst")


def _row_losses_known(table: StepRows | None, series: StepSeries) -> bool:
    """False for a step that has a loss while none of its rows has: the host did not hand out what each row cost."""
    if table is None or table.num_empty < table.row.size:
        return True
    place = series.place(table.step)
    return place is None or not bool(series.measured[place])


def _with_rows(spike: Spike, tables: dict[int, StepRows], *, spikes: Sequence[Spike], series: StepSeries) -> Spike:
    """The finding with its leading row, and what its rows are blamed for."""
    table = tables.get(blamed_step(spike))
    # A step of nothing but rows without supervised tokens has no leading row.
    leads = table is not None and bool(table.tokens[0] > 0)
    return dataclasses.replace(
        spike,
        row=int(table.row[0]) if table is not None and leads else None,
        row_share=table.share(0) if table is not None and leads else None,
        blame=blame(table, spikes=spikes, series=series) if table is not None else None,
    )
