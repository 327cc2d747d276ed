"""What a reader of findings should know beside them, in sentences: the `notices` of `Findings`.

Enters: what the passes over a log gave. Leaves: lines of text. Invariant: nothing is left out, or judged by another
rule than the one asked for, without a line that says so.
"""

from __future__ import annotations

import numpy as np

from trimtab.analysis.attempts import StepReading
from trimtab.analysis.rows import StepRows
from trimtab.analysis.spikes import SpikeSearch

MAX_NAMED = 5
"""Steps named in one line."""


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
    num_empty = int(series.num_empty.sum())
    if num_empty:
        where = count(int(np.count_nonzero(series.num_empty)), "step")
        have = "it has no loss" if num_empty == 1 else "they have no loss"
        notices.append(f"{count(num_empty, 'row record')} without supervised tokens, in {where}: {have}")
    num_unmeasured = int(np.count_nonzero(~series.measured))
    if num_unmeasured:
        notices.append(f"{count(num_unmeasured, 'step')} without a loss: skipped, and in no baseline")
    return notices


def on_table(table: StepRows | None, *, shown: int | None, has_rows: bool) -> list[str]:
    """Why the listed step has no rows, or its rows no shares."""
    if not has_rows:
        return ["the log holds no rows, only steps: no row can be named"]
    if shown is None:
        return []
    if table is None:
        return [f"no rows of step {shown} were recorded"]
    if table.shares_known or table.num_nonfinite + table.num_empty == table.row.size:
        return []
    if not table.total > 0:
        return [f"the finite losses of step {shown} do not add up to more than 0: its rows have no shares"]
    return [f"the losses of step {shown} have different signs, and are no parts of a whole: its rows have no shares"]


def count(number: int, noun: str) -> str:
    """A number with its noun, in the singular for one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


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


def _on_deaths(search: SpikeSearch) -> list[str]:
    if not search.died_again:
        return []
    named = ", ".join(map(str, search.died_again[:MAX_NAMED])) + (", ..." if len(search.died_again) > MAX_NAMED else "")
    steps = "step" if len(search.died_again) == 1 else "steps"
    return [
        f"the run came back for a while and was not finite again from {steps} {named} on: all of that is one finding"
    ]


def _on_older_attempts(reading: StepReading) -> list[str]:
    step, attempt = reading.series.step[reading.not_reached], reading.series.attempt[reading.not_reached]
    if not step.size:
        return []
    are = f"step {step[0]} is" if step.size == 1 else f"steps {step[0]} to {step[-1]} are"
    older = np.unique(attempt)
    whose = f"attempt {older[0]}" if older.size == 1 else f"attempts {older[0]} to {older[-1]}"
    them = "it" if step.size == 1 else "them"
    return [f"{are} of {whose}: attempt {reading.newest_attempt} has not reached {them}"]
