"""Where the trouble began that a run did not recover from: which of its checkpoints were saved before it.

    findings -> the first that the run never came back from -> back to the first sign that leads to it -> Trouble

Enters: a series of steps and its findings, or the log of a run. Leaves: a `Trouble`, or None. Invariants: what is over
names no step: a finding after which the run came back is a sign only where it leads to one after which it did not. And
what lies on a way that the run was taken back from speaks against what was saved there, and against nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.attempts import up_to_now
from trimtab.analysis.findings import judge_log
from trimtab.analysis.health import Health, judge_health
from trimtab.analysis.series import StepSeries, is_finite
from trimtab.analysis.several_runs import JudgedRun, judge_runs
from trimtab.analysis.spikes import SCALER_OVERFLOW, usual_limit
from trimtab.analysis.unhealthy import Unhealthy
from trimtab.findings import Signal, Spike
from trimtab.log.reader import open_log
from trimtab.values import json_number

BACK: Final = 20
"""Measured values in a row of which half must be in line again for a run to have come back. Every rule needs as many to
know what usual is. A batch that was bad costs one or two of them; of the published `mixtral8x7b_a100` the excursion at
4050 is over in four values, and `bloom176b_spike_31219` is back within thirty steps."""

LEAST_BACK: Final = 3
"""The last values of a log that must all be in line where fewer than `BACK` lie behind a finding: one value of a run
that swings to and fro is in line by chance."""

NEAR: Final = 100
"""Logged steps within which a sign leads to what follows: the window that all rules look back on, so that a finding has
not left the baseline yet when the next one is judged."""

AT_ONCE: Final = 3
"""Logged steps within which a sign is over that a batch or two made, and nothing else."""

FAR: Final = 1_000
"""Logged steps within which signs of the gradient lead to one another where they have become frequent. From published
divergences: who began again 500 to 1,000 steps before the spike of the loss diverged again, for the trouble had shown
2,300 steps before it, in the gradient's scale, and every few hundred steps since."""

FREQUENT: Final = 3
"""Signs that make a series. `llmc_gpt2_124M`, healthy, has two within 1,000 steps by chance, and never three."""

MILD: Final = 4.0
"""Up to this multiple of the usual a norm of a run's start may be its warm-up's. Sound runs of the reference trainer,
five seeds, have jumps to 2.1 times the usual at step 16; a batch that wrecks a model has ten times and more."""

MORE_OFTEN: Final = 5.0
"""How much more often they must come than before the series began."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """The trouble that a run ended in.

    Attributes:
        step: Its first sign; a checkpoint saved before this step knows nothing of it.
        evidence: Why this step, a clause each, the first sign last.
    """

    step: int
    evidence: tuple[str, ...]


class _Sign(NamedTuple):
    """Something out of line; `first` and `last` are places in the series."""

    first: int
    last: int
    signal: Signal
    value: float | None
    """None for a gradient that overflowed: the scaler lowered its scale."""
    usual: float | None


class Found(NamedTuple):
    """What a log has against the checkpoints of its last run.

    Attributes:
        trouble: The trouble that the run ended in; None where it came back from all.
        unhealthy: What a watch finds in it, by the step at which each began.
        left: What it has against those further on than the run is now; None where nothing.
    """

    trouble: Trouble | None
    unhealthy: tuple[Unhealthy, ...] = ()
    left: Left | None = None


class Left(NamedTuple):
    """The way that a run was taken back from.

    Attributes:
        after_step: The step at which the run is now: what was saved after a later one was saved on that way.
        found: What the log had against checkpoints when the run was there.
    """

    after_step: int
    found: Found


def find_in_log(path: str | os.PathLike[str]) -> Found:
    """What the log of a run has against its checkpoints.

    Raises:
        LogError: The log cannot be read, or holds no training step.
    """
    log = open_log(path)
    runs = judge_log(log, rule="robust")
    found = found_in(runs, judge_health(log, runs))
    last = runs[-1].reading
    if not last.not_reached.any():
        return found
    now = up_to_now(last)
    runs_now = judge_runs([*(run.reading for run in runs[:-1]), now], rule="robust")
    here = int(now.series.step[-1])
    found_now = found_in(runs_now, judge_health(log, runs_now))
    return found_now if found == Found(trouble=None) else found_now._replace(left=Left(here, found))


def found_in(runs: Sequence[JudgedRun], health: Health) -> Found:
    """What a log has against the checkpoints of its last run.

    Args:
        runs: Its runs, judged by the rule `robust`, the last one as far as it is looked at.
        health: What a watch finds in them.
    """
    series = runs[-1].reading.series
    last_step = int(series.step[-1])
    unhealthy = tuple(one for one in health.unhealthy if one.finding.step <= last_step)
    return Found(find_trouble(series, runs[-1].search.spikes), unhealthy)


def find_trouble(series: StepSeries, spikes: Sequence[Spike]) -> Trouble | None:
    """The trouble that a run ended in.

    Args:
        series: The run.
        spikes: Its findings, in any order, judged by the rule `robust`.

    Returns:
        None where all findings are over, and where there are none.
    """
    signs = sorted(_signs(series, spikes), key=lambda sign: sign.first)
    lasting = next((sign for sign in signs if _lasts(series, sign, until=series.num_steps)), None)
    if lasting is None:
        return None
    evidence = [f"{_in_words(series, lasting)} and was not back at the end of the log, step {int(series.step[-1])}"]
    first, why = lasting, ""
    found = _leading(series, signs, first)
    while found is not None:
        first, why = found
        found = _leading(series, signs, first)
    if first is not lasting:
        evidence.append(f"{_in_words(series, first)}, {why}")
    return Trouble(int(series.step[first.first]), tuple(evidence))


def _signs(series: StepSeries, spikes: Sequence[Spike]) -> Iterator[_Sign]:
    for spike in spikes:
        places = series.place(spike.first), series.place(spike.last)
        if places[0] is not None and places[1] is not None:
            yield _Sign(places[0], places[1], spike.signal, spike.value, spike.baseline)
    for place in np.flatnonzero(series.reason == SCALER_OVERFLOW).tolist():
        yield _Sign(place, place, "grad_norm", None, None)


def _lasts(series: StepSeries, sign: _Sign, *, until: int) -> bool:
    """Whether a signal was not back in line between a sign and a later place.

    An overflow alone is how a scaler finds its scale: it never lasts.
    """
    if sign.value is None:
        return False
    values, present = _signal(series, sign.signal)
    before = values[: sign.first][present[: sign.first]]
    limit = usual_limit(before[is_finite(before)], signal=sign.signal)
    behind = values[sign.last + 1 : until][present[sign.last + 1 : until]]
    is_back = is_finite(behind) if limit is None else behind <= limit
    if behind.size < BACK:
        return behind.size < LEAST_BACK or not bool(np.all(is_back[-LEAST_BACK:]))
    num_back = np.concatenate([[0], np.cumsum(is_back)])
    return not bool(np.any(2 * (num_back[BACK:] - num_back[:-BACK]) >= BACK))


def _signal(series: StepSeries, signal: Signal) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """The values of a signal (S,), and where there are any (S,)."""
    if signal == "loss":
        return series.loss, series.measured & ~series.is_artefact
    return series.grad_norm, series.has_grad_norm


def _leading(series: StepSeries, signs: Sequence[_Sign], later: _Sign) -> tuple[_Sign, str] | None:
    """The earliest of all signs that leads to a later one, and how; None where none does."""
    earlier = [sign for sign in signs if sign.first < later.first]
    for sign in earlier:
        if later.first - sign.last <= NEAR and not _is_of_the_start(series, sign, earlier, later):
            return sign, f"{_steps(series, sign, later)} before that"
        if _lasts(series, sign, until=later.first):
            return sign, f"and had not come back when step {int(series.step[later.first])} came"
    begun = _frequent([sign for sign in earlier if sign.signal == "grad_norm"], later)
    if begun is None:
        return None
    return begun, f"and again every few hundred steps up to step {int(series.step[later.first])}"


def _is_of_the_start(series: StepSeries, sign: _Sign, earlier: Sequence[_Sign], later: _Sign) -> bool:
    """Whether a sign says no more than that the run had just begun: a norm of the warm-up that was back at once.

    While no whole window lies behind a value nobody knows what is usual, and norms of a warm-up come and go: one that
    jumps to twice the others at step 16 did not lead to what began at 107. It does where it came right before, where it
    was more than `MILD`, and where there were several: overflows aside, of which a scaler has several until it has its
    scale.
    """
    is_at_start = sign.first < NEAR and int(series.step[0]) <= NEAR  # the log of a run that went on begins elsewhere
    if not is_at_start or sign.signal != "grad_norm" or later.first - sign.last <= BACK:
        return False
    if sign.value is None:
        return True
    if sign.usual is None or not sign.value <= MILD * sign.usual:
        return False
    if sign.last - sign.first >= AT_ONCE or _lasts(series, sign, until=sign.last + 1 + BACK):
        return False
    return sum(one.value is not None and later.first - one.last <= NEAR for one in earlier) < FREQUENT


def _frequent(signs: Sequence[_Sign], later: _Sign) -> _Sign | None:
    """The first of a series of signs that leads to a later one: they came often, and before it they did not."""
    place = later.first
    num = 0
    for sign in reversed(signs):
        if place - sign.last > FAR:
            break
        place, num = sign.first, num + 1
    if num < FREQUENT:
        return None
    first = signs[-num]
    num_before = len(signs) - num
    # One more than there were: of a run that had none so far nobody knows how rare they are.
    usual = (num_before + 1) / max(1, first.first)
    return first if num / (later.first - first.first) >= MORE_OFTEN * usual else None


def _steps(series: StepSeries, sign: _Sign, later: _Sign) -> str:
    num = int(series.step[later.first] - series.step[sign.first])
    return "1 step" if num == 1 else f"{num:,} steps"


def _in_words(series: StepSeries, sign: _Sign) -> str:
    step = int(series.step[sign.first])
    if sign.value is None:
        return f"the gradient overflowed at step {step}"
    what = "the loss" if sign.signal == "loss" else "the gradient norm"
    usual = "" if sign.usual is None else f", {_short(sign.usual)} before"
    return f"{what} left its line at step {step} ({_short(sign.value)}{usual})"


def _short(value: float) -> str:
    shown = json_number(value)
    return shown if isinstance(shown, str) else f"{value:.3g}"
