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
"""Steps for which a schedule that waits is held: a Trainer's where a loss scaler left the step out, and where
`attach(on_dropped="hold")` asks for it for every step that was not taken."""

_MOST_EARLIER: Final = 10_000
"""Steps not taken that are looked for before the first step of a log that goes on with another one's run."""

_MOST_TRIED: Final = 8
"""Numbers of such steps that are tried on all rates, of those that the first one fits: of a constant rate any does."""

_ONE_NUMBER: Final = (
    "train every chunk with the number of steps of the whole run (a Trainer: max_steps, and stop by a callback)"
)
"""What to do where two attempts were asked for different numbers of steps."""

_TRAINER: Final = "transformers"
"""`RunHeader.backend` of a run whose learning rate a Trainer sets."""


class _Wrong(NamedTuple):
    """The steps of one attempt whose rate is another one.

    Attributes:
        attempt: Which.
        schedule: What it stated.
        steps: (W,) int64, ascending.
        found: (W,) float64, the rates that they were taken with.
        expected: (W,) float64, those of the schedule.
        is_first: Whether the first of them is the attempt's first step.
    """

    attempt: int
    schedule: Schedule
    steps: NDArray[np.int64]
    found: NDArray[np.float64]
    expected: NDArray[np.float64]
    is_first: bool


class _Lag(NamedTuple):
    """By how many steps the rates come later, because the schedule waited.

    Attributes:
        steps: (S,) int64.
        earlier: How many of them lie in front of all that the log holds; 0 also where nothing is held against that.
    """

    steps: NDArray[np.int64]
    earlier: int = 0


def learning_rate(evidence: Evidence) -> Judged:
    """Judges the rates of the steps."""
    steps, chunk = evidence.steps, evidence.chunk
    stated = _stated(evidence)
    unstated = [attempt for attempt in chunk.attempts if attempt not in stated]
    wrong: list[_Wrong] = []
    num_held = num_earlier = 0
    for attempt, schedule in stated.items():
        own = steps.step[steps.attempt == attempt]
        places = np.flatnonzero((steps.attempt == attempt) & steps.has_lr)
        at, found = steps.step[places], steps.lr[places]
        lag = _lag(evidence, schedule, places=places)
        expected = _rates(schedule, at - lag.steps)
        differs = ~_same(found, expected, schedule=schedule)
        if differs.any():
            is_first = bool(at[differs][0] == own[0])
            wrong.append(_Wrong(attempt, schedule, at[differs], found[differs], expected[differs], is_first))
        num_held = max(num_held, int(lag.steps.max(initial=0)))
        num_earlier = max(num_earlier, lag.earlier)
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
    if num_earlier:
        text = (
            f"as stated if {count(num_earlier, 'step')} before step {steps.step[0]} were not taken, for which the "
            "schedule waited: the log that this one goes on from tells"
        )
        return Judged("unknown", text, figures)
    if num_unknown or evidence.num_missing:
        lacking = f"of {count(num_unknown + evidence.num_missing, 'step')} no rate is in the log"
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


def _lag(evidence: Evidence, schedule: Schedule, *, places: NDArray[np.int64]) -> _Lag:
    """By how many steps not taken the rates of the steps at some places come later."""
    steps, series = evidence.steps, evidence.reading.series
    at, found = steps.step[places], steps.lr[places]
    nothing: NDArray[np.int64] = np.zeros(places.size, np.int64)
    if not schedule.waits_for_dropped or not places.size:
        return _Lag(nothing)
    lags = []
    for reasons in _HELD:
        is_held = np.isin(series.reason, [STEP_CODE[reason] for reason in reasons])
        num_before: NDArray[np.int64] = np.cumsum(is_held) - is_held
        lags.append(num_before[np.searchsorted(series.step, at)])
    num_right = [int(_same(found, _rates(schedule, at - lag), schedule=schedule).sum()) for lag in lags]
    best = lags[int(np.argmax(num_right))]
    if max(num_right) == places.size:
        return _Lag(best)
    # What another log holds of the run, this one knows nothing of.
    in_front = range(1, min(int(series.step[0]), _MOST_EARLIER))
    for lag in lags:
        firsts = _rates(schedule, np.array([at[0] - lag[0] - earlier for earlier in in_front], np.int64))
        for place in np.flatnonzero(_same(found[:1], firsts, schedule=schedule))[:_MOST_TRIED].tolist():
            earlier = in_front[place]
            if _same(found, _rates(schedule, at - lag - earlier), schedule=schedule).all():
                return _Lag(lag + earlier, earlier)
    return _Lag(best)


def _in_words(wrong: _Wrong, evidence: Evidence) -> str:
    """What is wrong with the rates of an attempt, and what to do."""
    step, num, schedule = int(wrong.steps[0]), wrong.steps.size, wrong.schedule
    found, expected = _told_apart(float(wrong.found[0]), float(wrong.expected[0]))
    many = "" if num == 1 else f", and {num - 1:,} of the steps behind it likewise"
    rates = f"the rate of step {step} is {found}, and {expected} by the schedule ({_named(schedule)})"
    for shift, (which, advice) in OFF_BY_ONE.items():
        shifted = _rates(schedule, wrong.steps + shift)
        if num > 1 and np.mean(_same(wrong.found, shifted, schedule=schedule)) >= MOSTLY:
            is_warming_up = shift > 0 and wrong.steps[-1] <= schedule.num_warmup_steps
            other = "; or the warm-up does not begin at 0: then state its warmup_from=" if is_warming_up else ""
            return f"{rates}: off by one, {which}{many}; {advice}{other}"
    for attempt, stated in evidence.told.schedules.items():
        if stated.schedule is None or stated.schedule == schedule:
            continue
        others = _rates(stated.schedule, wrong.steps)
        if np.mean(_same(wrong.found, others, schedule=stated.schedule)) >= MOSTLY:
            return f"{rates}{many}: {_of_other(wrong, attempt, stated.schedule, evidence)}"
    with np.errstate(divide="ignore", invalid="ignore"):
        factors = wrong.found / wrong.expected
    if num > 1 and np.isfinite(factors).all() and np.ptp(factors) <= 2 * SAME_LR * abs(factors[0]):
        return (
            f"{rates}: {factors[0]:.4g} times as high{many}; the optimizer or the scheduler holds another rate than "
            f"was asked for: on a resume {_how_to_ask(evidence)} puts it right; or it is the schedule of another "
            "parameter group: the log has the rates of the first one"
        )
    return f"{rates}{many}; print the scheduler's state around step {step}, and resume from a checkpoint before it"


def _of_other(wrong: _Wrong, attempt: int, other: Schedule, evidence: Evidence) -> str:
    """What it means that steps came at the rates that another attempt asked for."""
    ours = wrong.schedule
    whose = f"that attempt {attempt} asked for ({_named(other)})"
    changed = other.num_steps != ours.num_steps and other.lr == ours.lr
    if wrong.steps.size == 1 and wrong.is_first:
        text = (
            f"this one step came at the rate {whose}, as a scheduler takes its first step at the rate it was saved at"
        )
        if changed:
            return f"{text}; num_steps changed from {other.num_steps} to {ours.num_steps}: {_ONE_NUMBER}"
        return f"{text}; {_how_to_ask(evidence)} sets it from the first step on"
    text = (
        f"the rates {whose}; what attempt {wrong.attempt} asked for was not taken over when the checkpoint was loaded"
    )
    return f"{text}: {_ONE_NUMBER if changed else _how_to_ask(evidence)}"


def _how_to_ask(evidence: Evidence) -> str:
    """What takes another rate over on a resume."""
    if evidence.log.header.backend == _TRAINER:
        return "trimtab.attach(trainer, lr_on_resume=...)"
    return "loading with lr=, or trimtab.checkpoint.rebase_lr,"


def _told_apart(found: float, expected: float) -> tuple[str, str]:
    """Two rates with as many digits as it takes to see that they differ."""
    digits = next((num for num in range(4, 16) if f"{found:.{num}g}" != f"{expected:.{num}g}"), 16) + 1
    return f"{found:.{digits}g}", f"{expected:.{digits}g}"


def _unstated(evidence: Evidence, attempts: list[int]) -> str:
    problem = next((one.problem for at in attempts if (one := evidence.told.schedules.get(at)) and one.problem), None)
    if problem is not None:
        return plain(problem).rstrip(".")
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
