"""Whether every step was taken with the learning rate that its attempt asked for.

Enters: evidence. Leaves: the gate `learning_rate`. Invariant: a rate is held against the schedule that was stated,
which is what was asked for, and never against the course of the rates themselves: a resume that kept the old rate goes
on as evenly as one that took the new one over.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.remarks import count
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Judged
from trimtab.resume.rates import OFF_BY_ONE, SAME_LR
from trimtab.rules.schedule import Schedule
from trimtab.text import listed, plain
from trimtab.values import STEP_CODE, json_number

NEAR_ZERO: Final = 1e-12
"""Part of the schedule's rate by which two rates may differ besides: at the end of a cosine what is left of a rate is a
difference of two numbers near 1, and recursive forms come to rest at 1e-16 of it instead of 0."""

MOSTLY: Final = 0.95
"""Part of the wrong steps that one explanation must hold for to be told as theirs."""

_HELD: Final = (("scaler_overflow",), ("all_skipped", "no_tokens", "nonfinite_norm", "scaler_overflow", "dropped"))
"""Steps for which a host may hold its schedule: the Trainer does where a loss scaler left the step out, and where
`attach(on_dropped="hold")` asks for it for every step that was not taken."""


class _Wrong(NamedTuple):
    """The steps of one attempt whose rate is another one."""

    attempt: int
    schedule: Schedule
    steps: NDArray[np.int64]
    found: NDArray[np.float64]
    expected: NDArray[np.float64]


def learning_rate(evidence: Evidence) -> Judged:
    """Judges the rates of the steps."""
    steps, chunk = evidence.steps, evidence.chunk
    stated = _stated(evidence)
    unstated = [attempt for attempt in chunk.attempts if attempt not in stated]
    wrong: list[_Wrong] = []
    num_held = 0
    for attempt, schedule in stated.items():
        places = np.flatnonzero((steps.attempt == attempt) & steps.has_lr)
        found = steps.lr[places]
        expected = _rates(schedule, steps.step[places])
        differs = ~_same(found, expected, schedule=schedule)
        if not differs.any():
            continue
        held = _held(evidence, schedule, places=places)
        if held:
            num_held = max(num_held, held)
            continue
        wrong.append(_Wrong(attempt, schedule, steps.step[places[differs]], found[differs], expected[differs]))
    num_unknown = int((~steps.has_lr).sum())
    figures: dict[str, Any] = {
        "num_steps": chunk.num_steps,
        "num_wrong": sum(one.steps.size for one in wrong),
        "num_steps_without_rate": num_unknown,
        "num_steps_held": num_held,
        "schedules": {str(attempt): schedule.to_facts() for attempt, schedule in stated.items()},
    }
    if wrong:
        first = wrong[0]
        figures |= {
            "step": int(first.steps[0]),
            "found": json_number(float(first.found[0])),
            "expected": json_number(float(first.expected[0])),
        }
        text = "; ".join([_in_words(one, evidence) for one in wrong])
        return Judged("failed", text, figures)
    if unstated:
        return Judged("unknown", _unstated(evidence, unstated), figures)
    num_missing = chunk.last_step - chunk.first_step + 1 - chunk.num_steps
    if num_unknown or num_missing:
        lacking = f"of {count(num_unknown + num_missing, 'step')} no rate is in the log"
        text = f"the others are as the schedule says, but {lacking}"
        return Judged("unknown", text, figures)
    rates = f"{steps.lr[0]:.4g} to {steps.lr[-1]:.4g}"
    text = f"{count(chunk.num_steps, 'step')} as stated, {rates} ({_named(stated[chunk.attempts[-1]])})"
    if num_held:
        text += f"; it waits for steps that were not taken, {num_held:,} of them"
    return Judged("passed", text, figures)


def _stated(evidence: Evidence) -> dict[int, Schedule]:
    """By attempt of the chunk the schedule that it stated, where that can be read."""
    said = ((attempt, evidence.told.schedules.get(attempt)) for attempt in evidence.chunk.attempts)
    return {attempt: one.schedule for attempt, one in said if one is not None and one.schedule is not None}


def _rates(schedule: Schedule, steps: NDArray[np.int64]) -> NDArray[np.float64]:
    """(S,) the rates of some steps; NaN of what can be no step, as one before the first."""
    rates = np.full(steps.size, np.nan)
    is_step = steps > 0
    rates[is_step] = np.fromiter(schedule.rates(steps[is_step].tolist()), np.float64)
    return rates


def _same(found: NDArray[np.float64], expected: NDArray[np.float64], *, schedule: Schedule) -> NDArray[np.bool_]:
    """Whether rates are those of the schedule; one that is NaN never is."""
    bound = SAME_LR * np.abs(expected) + NEAR_ZERO * schedule.lr
    with np.errstate(invalid="ignore"):
        same: NDArray[np.bool_] = np.abs(found - expected) <= bound
    return same


def _held(evidence: Evidence, schedule: Schedule, *, places: NDArray[np.int64]) -> int:
    """For how many steps the schedule was held, where that explains every rate; else 0."""
    steps, series = evidence.steps, evidence.reading.series
    for reasons in _HELD:
        is_held = np.isin(series.reason, [STEP_CODE[reason] for reason in reasons])
        num_before: NDArray[np.int64] = np.cumsum(is_held) - is_held
        lag: NDArray[np.int64] = num_before[np.searchsorted(series.step, steps.step[places])]
        expected = _rates(schedule, steps.step[places] - lag)
        if lag.any() and _same(steps.lr[places], expected, schedule=schedule).all():
            return int(lag.max())
    return 0


def _in_words(wrong: _Wrong, evidence: Evidence) -> str:
    """What is wrong with the rates of an attempt, and what to do."""
    step, found, expected = int(wrong.steps[0]), float(wrong.found[0]), float(wrong.expected[0])
    num = wrong.steps.size
    many = "" if num == 1 else f", and {num - 1:,} of the steps behind it likewise"
    rates = f"the rate of step {step} is {found:.5g}, and {expected:.5g} by the schedule ({_named(wrong.schedule)})"
    for shift, (which, advice) in OFF_BY_ONE.items():
        shifted = _rates(wrong.schedule, wrong.steps + shift)
        if num > 1 and np.mean(_same(wrong.found, shifted, schedule=wrong.schedule)) >= MOSTLY:
            return f"{rates}: off by one, {which}{many}; {advice}"
    for attempt, stated in evidence.told.schedules.items():
        if stated.schedule is None or stated.schedule == wrong.schedule:
            continue
        others = _rates(stated.schedule, wrong.steps)
        if np.mean(_same(wrong.found, others, schedule=stated.schedule)) >= MOSTLY:
            return (
                f"{rates}{many}: the rates that attempt {attempt} asked for ({_named(stated.schedule)}); what attempt "
                f"{wrong.attempt} asked for was not taken over when the checkpoint was loaded: load it with lr=, or "
                "call trimtab.checkpoint.rebase_lr"
            )
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = wrong.found / wrong.expected
    if num > 1 and np.isfinite(factors).all() and np.ptp(factors) <= 2 * SAME_LR * abs(factors[0]):
        return (
            f"{rates}: {factors[0]:.4g} times as high{many}; the optimizer or the scheduler holds another rate than "
            "was asked for: trimtab.checkpoint.rebase_lr puts it right on a resume"
        )
    return f"{rates}{many}; print the scheduler's state around step {step}, and resume from a checkpoint before it"


def _unstated(evidence: Evidence, attempts: list[int]) -> str:
    problem = next((one.problem for at in attempts if (one := evidence.told.schedules.get(at)) and one.problem), None)
    if problem is not None:
        return f"the schedule in the log cannot be read: {plain(problem).rstrip('.')}"
    how = "state it: trimtab.Run(..., schedule=trimtab.Schedule(...)); attach does so for the schedules that it knows"
    if len(attempts) == len(evidence.chunk.attempts):
        return f"no schedule was stated, so nobody knows which rates were meant; {how}"
    named = listed(map(str, attempts), most=5)
    which = "attempt" if len(attempts) == 1 else "attempts"
    return f"{which} {named} stated no schedule, so nobody knows which rates were meant there; {how}"


def _named(schedule: Schedule) -> str:
    """A schedule in a few words: `cosine, lr 0.0003, 10000 steps, warm-up 200`."""
    steps = "" if schedule.num_steps is None else f", {count(schedule.num_steps, 'step')}"
    warmup = f", warm-up {schedule.num_warmup_steps}" if schedule.num_warmup_steps else ""
    least = f", at least {schedule.min_lr:g}" if schedule.min_lr else ""
    return f"{schedule.form}, lr {schedule.lr:g}{steps}{warmup}{least}"
