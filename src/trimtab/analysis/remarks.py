"""What a reader of findings should know beside them, in sentences: the `notices` of `Findings`.

Enters: what the passes over a log gave. Leaves: lines of text. Invariant: nothing is left out, or judged by another
rule than the one asked for, without a line that says so.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.attempts import StepReading
from trimtab.analysis.rows import StepRows
from trimtab.analysis.series import StepSeries, is_finite
from trimtab.analysis.spikes import SpikeSearch
from trimtab.analysis.stand_outs import StandOut
from trimtab.findings import Spike
from trimtab.values import Event

MAX_NAMED = 5
"""Steps, or rows with a line of their own, named for what is only said besides."""

NEAR_STEPS = 100
"""Steps after a resume within which a finding may be its doing."""

MAX_LISTED = 10
"""Numbers listed in one line."""


def why_no_step(notices: Sequence[str]) -> str:
    """Why a log has no training step, as an error says it: what was left out of it, if anything was."""
    if not notices:
        return "no training step was recorded. The run may have stopped before its first step, or recording was off."
    more = f"; and {len(notices) - MAX_LISTED} notices more" if len(notices) > MAX_LISTED else ""
    return f"no training step could be read: {'; '.join(notices[:MAX_LISTED])}{more}."


def on_search(search: SpikeSearch, *, rule: str) -> list[str]:
    """Which rule judged the first steps, where it was not the one asked for; and what was put into one finding."""
    return [*_on_rule(search, rule=rule), *_on_deaths(search)]


def on_reading(reading: StepReading) -> list[str]:
    """Steps that count for nothing, and steps of an attempt that is not the newest."""
    series, notices = reading.series, []
    if reading.num_superseded:
        first, last = reading.first_superseded, reading.last_superseded
        left_out = (
            f"step {first}" if first == last else f"{count(reading.num_superseded, 'step')} from {first} to {last}"
        )
        if first == last and reading.num_superseded > 1:
            left_out += f", {reading.num_superseded} times over,"
        them = "it" if first == last else "them"
        notices.append(f"{left_out} left out: a later attempt of the run went over {them} again")
    notices += _on_older_attempts(reading)
    notices += _on_ranks(reading)
    # Of a step whose rows do not hold its loss it is said elsewhere that theirs is not known.
    empty = series.num_empty[~series.is_reported]
    num_empty = int(empty.sum())
    if num_empty:
        where = count(int(np.count_nonzero(empty)), "step")
        have = "it has no loss" if num_empty == 1 else "they have no loss"
        notices.append(f"{count(num_empty, 'row record')} without supervised tokens, in {where}: {have}")
    num_unmeasured = int(np.count_nonzero(~series.measured))
    if num_unmeasured:
        notices.append(f"{count(num_unmeasured, 'step')} without a loss: skipped, and in no baseline")
    return [*notices, *_on_artefacts(series)]


def on_resumes(series: StepSeries, spikes: Sequence[Spike], *, events: Sequence[Event]) -> list[str]:
    """That a run was resumed shortly before a finding of the loss.

    Args:
        series: The run.
        spikes: Its findings, worst first.
        events: The events of the log; where none tells of a resume, the first step of an attempt does.
    """
    resumed = np.unique([event.step for event in events if event.kind == "resume"])
    begun = series.step[1:][series.attempt[1:] > series.attempt[:-1]]
    notices = []
    for spike in [spike for spike in spikes if spike.severity != "notice"][:MAX_NAMED]:
        before = next(
            (near for steps in (resumed, begun) if (near := _shortly_before(steps, spike.first)) is not None), None
        )
        if before is not None:
            ago = spike.first - before
            when = f"{count(ago, 'step')} earlier, at step {before}" if ago else "at that very step"
            notices.append(f"step {spike.first}: the run resumed {when}")
    return notices


def on_stand_outs(found: Sequence[StandOut]) -> list[str]:
    """Rows that stand out though no step does."""
    if not found:
        return []
    rows = "; ".join(_stand_out(row) for row in found)
    most = "rows that stand out most" if len(found) > 1 else "a row that stands out"
    return [f"{most} all the same: {rows}. trimtab rewind --step {found[0].step} shows it"]


def on_leaders(spikes: Sequence[Spike]) -> list[str]:
    """Rows that lead several findings of the loss: the same row in every epoch is one cause."""
    losses = [spike for spike in spikes if spike.severity != "notice"]
    led = [spike.row for spike in losses if spike.row is not None]
    often = [(row, times) for row, times in Counter(led).most_common(MAX_NAMED) if times > 2 or times == len(led) > 1]
    of = f"{len(led)} loss findings"
    if len(led) < len(losses):
        of = f"the {of} whose rows were looked up"
    return [f"row {row} leads {times} of {of}" for row, times in often]


def on_guard(series: StepSeries, spikes: Sequence[Spike]) -> list[str]:
    """Steps of which the guard left something out; it judges micro-batches, so they need not be findings."""
    steps = series.step[series.num_left_out > 0]
    is_finding = np.zeros(steps.size, np.bool_)
    for spike in spikes:
        if spike.severity != "notice":
            is_finding[np.searchsorted(steps, spike.first) : np.searchsorted(steps, spike.last, side="right")] = True
    notices = []
    quiet, loud = steps[~is_finding], steps[is_finding]
    if quiet.size:
        which = "that is no finding of the loss" if quiet.size == 1 else "that are no findings of the loss"
        notices.append(
            f"the guard left out micro-batches in {count(quiet.size, 'step')} {which}: {_named(quiet.tolist())}. It "
            f"judges micro-batches, rewind whole steps; --step {quiet[0]} shows the rows"
        )
    if loud.size:
        which = "that is a finding of the loss" if loud.size == 1 else "that are findings of the loss"
        notices.append(
            f"the guard left out micro-batches in {count(loud.size, 'step')} {which}: {_named(loud.tolist())}"
        )
    return notices


def on_end(reading: StepReading, *, events: Sequence[Event] | None) -> list[str]:
    """That a run has not ended: its last attempt closes with an event of each rank, unless it goes on or was killed.

    Of a run that was converted nothing tells, unless the log that it was made of did.

    Args:
        reading: The steps of the log.
        events: Its events by time; None where they would not tell.
    """
    if events is None:
        return []
    marks = [event for event in events if event.kind in ("resume", "end", "converted")]
    is_converted = [mark.kind for mark in marks[-1:]] == ["converted"]
    marks = [mark for mark in marks if mark.kind != "converted"]
    if marks and marks[-1].kind == "end":
        begun = max((place for place, mark in enumerate(marks) if mark.kind == "resume"), default=-1)
        return _on_open_ranks(reading, ends=marks[begun + 1 :])
    if is_converted:
        return ["this run was converted from the log of another tool, and nothing tells whether it has ended"]
    last = reading.series.step[reading.series.attempt == reading.newest_attempt][-1]
    return [f"the run has not ended: it is still going on, or was killed after step {last}"]


def on_step(series: StepSeries, step: int) -> list[str]:
    """What a log without rows holds of the step that was asked for."""
    place = series.place(step)
    if place is None:
        return []
    loss = f"loss {series.loss[place]:.6g}" if series.measured[place] else "no loss"
    norm = f"gradient norm {series.grad_norm[place]:.6g}" if series.has_grad_norm[place] else "no gradient norm"
    return [f"step {step}: {loss}, {norm}"]


def on_table(table: StepRows | None, *, shown: int | None, has_rows: bool) -> list[str]:
    """Why the listed step has no rows, or its rows no shares."""
    if not has_rows:
        return ["this log holds no rows, only steps: no row can be named. Attach Trimtab to a run to record them"]
    if shown is None:
        return []
    if table is None:
        return [f"no rows of step {shown} were recorded"]
    notices = _on_rows_left_out(table)
    if table.shares_known or table.num_nonfinite + table.num_empty == table.row.size:
        return notices
    if not table.total > 0:
        return [*notices, f"the finite losses of step {shown} do not add up to more than 0: its rows have no shares"]
    signs = f"the losses of step {shown} have different signs, and are no parts of a whole: its rows have no shares"
    return [*notices, signs]


def count(number: int, noun: str) -> str:
    """A number with its noun, in the singular for one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _stand_out(found: StandOut) -> str:
    visits = "its only visit" if found.num_visits == 1 else f"{found.num_out} of its {found.num_visits} visits"
    return f"row {found.row} (loss {found.loss:.5g} where {found.usual:.5g} is usual, step {found.step}; {visits})"


def _named(numbers: Sequence[int]) -> str:
    """Numbers in one line, cut after `MAX_LISTED`."""
    more = f" and {len(numbers) - MAX_LISTED} more" if len(numbers) > MAX_LISTED else ""
    return ", ".join(map(str, numbers[:MAX_LISTED])) + more


def _on_rows_left_out(table: StepRows) -> list[str]:
    rows = table.row[table.left_out].tolist()
    if not rows:
        return []
    if len(rows) == table.row.size:
        which, was = "every row", "was"
    else:
        which, was = (f"row {rows[0]}", "was") if len(rows) == 1 else (f"rows {_named(rows)}", "were")
    return [f"{which} of step {table.step} {was} in a micro-batch that the guard left out of the update"]


def _on_rule(search: SpikeSearch, *, rule: str) -> list[str]:
    if rule != "robust" or not search.num_median:
        return []
    if search.first_robust_step is None:
        judged = (
            "the only measured step was" if search.num_median == 1 else f"all {search.num_median} measured steps were"
        )
        return [f"{judged} judged by the median rule: robust needs 20 steps behind it"]
    return [
        f"steps before {search.first_robust_step} were judged by the median rule: fewer than 20 steps lie behind them"
    ]


def _on_artefacts(series: StepSeries) -> list[str]:
    steps = series.step[series.is_artefact]
    if not steps.size:
        return []
    sound = series.measured & is_finite(series.loss) & (~series.has_grad_norm | is_finite(series.grad_norm))
    last = f"last finite step {series.step[sound][-1]}" if sound.any() else "no step is finite"
    many = "" if steps.size == 1 else f", {steps.size} times"
    return [
        f"loss is exactly 0.0 with a gradient norm that is not finite from step {steps[0]} on{many}: a logging "
        f"artefact, no improvement, and in no baseline; {last}"
    ]


def _shortly_before(steps: NDArray[np.int64], step: int) -> int | None:
    """The last of ascending steps that is not after `step`, unless it lies too far back."""
    at = int(np.searchsorted(steps, step, side="right")) - 1
    return int(steps[at]) if at >= 0 and step - int(steps[at]) <= NEAR_STEPS else None


def _on_deaths(search: SpikeSearch) -> list[str]:
    if not search.died_again:
        return []
    named = ", ".join(map(str, search.died_again[:MAX_NAMED])) + (", ..." if len(search.died_again) > MAX_NAMED else "")
    steps = "step" if len(search.died_again) == 1 else "steps"
    return [
        f"the run came back for a while and was not finite again from {steps} {named} on: all of that is one finding"
    ]


def _on_ranks(reading: StepReading) -> list[str]:
    """Ranks of which less is recorded than of others: those steps are judged from what there is."""
    last = max(reading.rank_ends.values(), default=0)
    behind = {rank: step for rank, step in reading.rank_ends.items() if step < last}
    notices = []
    for rank, step in list(behind.items())[:MAX_NAMED]:
        lost = f"step {last} is" if step + 1 == last else f"steps {step + 1} to {last} are"
        notices.append(
            f"of rank {rank} nothing is recorded after step {step}: {lost} judged by the rows of the other ranks"
        )
    if len(behind) > MAX_NAMED:
        notices.append(f"of {len(behind) - MAX_NAMED} ranks more the last steps are missing likewise")
    if reading.ranks_gone:
        gone = "rank" if len(reading.ranks_gone) == 1 else "ranks"
        older = f"attempt {reading.newest_attempt} holds no step of {gone} {_named(reading.ranks_gone)}"
        notices.append(f"{older}, of which an earlier attempt does")
    return notices


def _on_open_ranks(reading: StepReading, *, ends: Sequence[Event]) -> list[str]:
    """Ranks that have not ended although others have; an end of which no rank is known is that of all."""
    if any(not end.ranks for end in ends):
        return []
    ended = {rank for end in ends for rank in end.ranks}
    still_open = sorted({*reading.rank_ends} - ended)
    if not still_open:
        return []
    if len(still_open) == 1:
        rank = still_open[0]
        return [f"rank {rank} has not ended: it is still going on, or was killed after step {reading.rank_ends[rank]}"]
    return [f"ranks {_named(still_open)} have not ended: they are still going on, or were killed"]


def _on_older_attempts(reading: StepReading) -> list[str]:
    step, attempt = reading.series.step[reading.not_reached], reading.series.attempt[reading.not_reached]
    if not step.size:
        return []
    are = f"step {step[0]} is" if step.size == 1 else f"steps {step[0]} to {step[-1]} are"
    older = np.unique(attempt)
    whose = f"attempt {older[0]}" if older.size == 1 else f"attempts {older[0]} to {older[-1]}"
    them = "it" if step.size == 1 else "them"
    return [f"{are} of {whose}: attempt {reading.newest_attempt} has not reached {them}"]
