"""From a log to findings: which steps are out of line, and which rows made them so.

    find_logs -> open_log -> read_steps -> find_spikes -> choose a step -> gather_rows -> Findings

Enters: a path or run id. Leaves: `Findings`, a plain value that a report draws. Invariant: the log is all that is
used; no model, no data, no accelerator.
"""

from __future__ import annotations

import dataclasses
import operator
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import SupportsIndex

from trimtab.analysis import remarks
from trimtab.analysis.attempts import read_steps
from trimtab.analysis.blame import blame, leads_to
from trimtab.analysis.lookup import RecordedRun, find_logs
from trimtab.analysis.rows import StepRows, describe_rows, gather_rows
from trimtab.analysis.series import StepSeries
from trimtab.analysis.spikes import check_rule, find_spikes
from trimtab.analysis.stand_outs import find_stand_outs
from trimtab.errors import LogError, UsageError
from trimtab.findings import Findings, Spike, StepChoice
from trimtab.log.folder import is_run_folder
from trimtab.log.reader import Log, open_log
from trimtab.values import Event

LEADING_ROWS = 20
"""Findings, from the worst on, whose leading row is looked up: as many as the terminal lists."""


def rewind(
    path_or_run: str | os.PathLike[str] | RecordedRun | None = None,
    *,
    rule: str = "robust",
    step: SupportsIndex | None = None,
    top: SupportsIndex = 10,
    progress: Callable[[int, int], None] | None = None,
) -> Findings:
    """Finds the spikes of a run and the dataset rows behind the worst one, from its log alone.

    Args:
        path_or_run: A run folder, a folder that holds runs, a log file, a run id or its unique beginning; a run of
            this process, as far as it is on disk; None: the newest run on this machine.
        rule: "robust" (median + 10 robust scales of the last 100 steps) or "median" (twice the median of the last 20).
        step: Step whose rows to list; None: the worst finding's, or that of a gradient norm which announced it.
        top: Rows listed at most.
        progress: Called now and then with the bytes read so far and the size of the log in bytes.

    Returns:
        What was found; `to_dict()` is the JSON document of `trimtab rewind --json`.

    Raises:
        LogError: There is no log, it cannot be read, it holds no training step, or not the step asked for.
        UsageError: A setting makes no sense, or `path_or_run` is none of the above.

    Example:
        findings = trimtab.rewind("runs/a")
        for spike in findings.spikes:
            print(spike.step, spike.severity, spike.row)
    """
    wanted, num_rows = check_settings(rule=rule, step=step, top=top)
    found = find_logs(path_or_run)
    newest, *others = found.paths
    notices = [*found.notices, *(f"{other} is another run: name the file to read it" for other in others)]
    return rewind_log(open_log(newest), rule=rule, step=wanted, top=num_rows, notices=notices, progress=progress)


def check_settings(*, rule: str, step: SupportsIndex | None, top: SupportsIndex) -> tuple[int | None, int]:
    """Refuses settings of `rewind` that make no sense with `UsageError`; gives `step` and `top` as plain numbers."""
    check_rule(rule)
    wanted = None if step is None else _whole(step, name="step")
    num_rows = _whole(top, name="top")
    if num_rows < 1:
        raise UsageError(f"top={num_rows} makes no sense: use a whole number of 1 or more.")
    return wanted, num_rows


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
    report = (lambda num_bytes: progress(num_bytes, log.size_bytes)) if progress else None
    reading = read_steps(log, progress=report)
    series = reading.series
    if not series.num_steps:
        raise LogError(
            f"{log.path}: no training step was recorded. The run may have stopped before its first step, or recording "
            "was off."
        )
    if step is not None and series.place(step) is None:
        first, last = series.step[0], series.step[-1]
        held = f"step {first} alone" if first == last else f"steps {first} to {last}"
        raise LogError(f"{log.path}: step {step} is not in the log; it holds {held}.")

    search = find_spikes(series, rule=rule)
    shown, reason = _choose_step(search.spikes, asked=step)
    looked_up = search.spikes[:num_leading]
    steps = [place for spike in looked_up for place in (spike.step, _blamed_step(spike))]
    tables = gather_rows(log, series=series, steps=steps if shown is None else [shown, *steps]) if log.has_rows else {}
    leading = (_with_rows(spike, tables, spikes=search.spikes) for spike in looked_up)
    spikes = (*leading, *search.spikes[num_leading:])
    table = tables.get(shown) if shown is not None else None
    is_quiet = all(spike.severity == "notice" for spike in spikes)
    stand_outs = find_stand_outs(log, series=series) if is_quiet else []
    return Findings(
        run_id=log.header.run_id,
        source=log.path,
        rule=rule,
        num_steps=series.num_steps,
        step=shown,
        step_reason=reason,
        spikes=spikes,
        spikes_left_out=search.num_left_out,
        rows=describe_rows(log, table, series=series, top=top) if table else (),
        rows_left_out=max(0, table.row.size - top) if table else 0,
        num_nonfinite_rows=table.num_nonfinite if table else 0,
        row_losses_known=_row_losses_known(table, series),
        blame=blame(table, spikes=search.spikes) if table else None,
        num_ranks=log.header.world_size,
        notices=(
            *notices,
            *remarks.on_stand_outs(stand_outs),
            *remarks.on_leaders(spikes),
            *remarks.on_guard(series, search.spikes),
            *remarks.on_search(search, rule=rule),
            *remarks.on_reading(reading),
            *remarks.on_table(table, shown=shown, has_rows=log.has_rows),
            *remarks.on_end(reading, events=_events(log)),
            *log.notices(),
        ),
    )


def _choose_step(spikes: Sequence[Spike], *, asked: int | None) -> tuple[int | None, StepChoice | None]:
    """The step whose rows are shown, and why.

    A gradient norm that jumped shortly before the worst loss finding names the rows that did the harm: the loss shows
    it one step later. Without any loss finding the first notice is all there is.
    """
    if asked is not None:
        return asked, "asked"
    worst = next((spike for spike in spikes if spike.severity != "notice"), None)
    norms = sorted(spike.first for spike in spikes if spike.kind == "grad_norm")
    if worst is None:
        return (norms[0], "grad_norm_before") if norms else (None, None)
    before = [first for first in norms if leads_to(first, worst)]
    return (before[0], "grad_norm_before") if before else (worst.step, "worst")


def _events(log: Log) -> list[Event] | None:
    """The events of a run folder, which tell whether the run ended; None for a log of another tool, or part of one."""
    return log.event_list() if is_run_folder(Path(log.path)) else None


def _row_losses_known(table: StepRows | None, series: StepSeries) -> bool:
    """False for a step that has a loss while none of its rows has: the host did not hand out what each row cost."""
    if table is None or table.num_empty < table.row.size:
        return True
    place = series.place(table.step)
    return place is None or not bool(series.measured[place])


def _blamed_step(spike: Spike) -> int:
    """The step whose rows may have made a finding: of a norm that jumped the first, because the harm begins there."""
    return spike.first if spike.severity == "notice" else spike.step


def _with_rows(spike: Spike, tables: dict[int, StepRows], *, spikes: Sequence[Spike]) -> Spike:
    """The finding with its leading row, and what its rows are blamed for."""
    table, blamed = tables.get(spike.step), tables.get(_blamed_step(spike))
    # A step of nothing but rows without supervised tokens has no leading row.
    leads = table is not None and bool(table.tokens[0] > 0)
    return dataclasses.replace(
        spike,
        row=int(table.row[0]) if table is not None and leads else None,
        row_share=table.share(0) if table is not None and leads else None,
        blame=blame(blamed, spikes=spikes) if blamed is not None else None,
    )
