"""Steps become findings: the shared rule objects judge the series, neighbours merge, the worst come first.

Enters: a `StepSeries` and the name of a rule. Leaves: `Spike` values, worst first, cut to 1,000. Offline every finite
value is absorbed, so that a level shift ends. A screen (`screen.py`) keeps values that no rule could flag away from
the rule objects. Invariant: every spike was judged by the rule object that its `rule` names.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.screen import median_candidates, norm_candidates, robust_candidates
from trimtab.analysis.series import StepSeries, is_finite
from trimtab.errors import UsageError
from trimtab.findings import Signal, Spike, SpikeKind
from trimtab.rules.median import MedianRule
from trimtab.rules.norms import ROBUST_FACTOR, ROBUST_HISTORY, ROBUST_K, NormRule
from trimtab.rules.robust import ABSOLUTE_FLOOR, RobustRule
from trimtab.values import STEP_REASONS, Verdict
from trimtab.watched import SEVERITIES, Severity

RULES = ("robust", "median")
"""Rules that `rewind` offers."""

MAX_SPIKES = 1_000
"""Findings listed at most."""

K = 10.0
"""Scales above the median that are still normal, measured on published curves (`trimtab.rules.robust`)."""

MULTIPLIER = 2.0
"""Medians that are still normal under the classic rule."""

LASTING = 10
"""Values in a row that are not finite from which they are a dead run and no bad batch. Two such stretches are one
finding where at most half as many finite values as the shorter of them holds lie between: the run was started again,
and died of the same. Measured on the published curve of `mixtral8x7b_a100`: of its last 2,090 values 1,707 are NaN,
in five stretches with 114, 116, 115 and 38 finite values between them, a quarter to a third of the shorter neighbour.
What died is the run, from 13555 to the end, not five batches. Where the run came back for longer than that, and where a
stretch is short, each stretch stays a finding of its own."""

SCALER_OVERFLOW = STEP_REASONS.index("scaler_overflow")


@dataclass(frozen=True, slots=True)
class SpikeSearch:
    """What the search for spikes gave.

    Attributes:
        spikes: Findings, worst first, at most `MAX_SPIKES`.
        num_left_out: How many were cut.
        died_again: Steps inside a finding that is not finite from which it was so again, after it had come back.
        num_median: Measured finite steps that the median rule judged because too few lay behind for `robust`.
        first_robust_step: First step that `robust` judged; None if it judged none, or was not asked for.
    """

    spikes: tuple[Spike, ...]
    num_left_out: int
    died_again: tuple[int, ...]
    num_median: int
    first_robust_step: int | None


class _Flag(NamedTuple):
    """One value that a rule flagged; `place` counts the measured values of its signal."""

    place: int
    rule: str
    verdict: Verdict


class _Track(NamedTuple):
    """One signal, measured value by measured value (M)."""

    signal: Signal
    kind: SpikeKind
    severity: Severity
    at: NDArray[np.int64]
    """(M,) index into the series."""
    value: NDArray[np.float64]
    finite: NDArray[np.bool_]
    """(M,) whether float32 can hold the value, as the rules see it."""


class _Stretches(NamedTuple):
    """Stretches of dead values (N), each [first, end), counted in the measured values of a signal."""

    first: NDArray[np.int64]
    end: NDArray[np.int64]
    num_dead: NDArray[np.int64]
    """How many dead values are in each."""
    died_again: NDArray[np.int64]
    """Where inside a stretch finite values end."""


class _Nonfinite(NamedTuple):
    """Findings of what is not finite in one signal."""

    spikes: list[Spike]
    num_found: int
    died_again: list[int]


def find_spikes(series: StepSeries, *, rule: str = "robust") -> SpikeSearch:
    """Judges every measured step of a run.

    Args:
        series: The run.
        rule: "robust" or "median".

    Returns:
        Findings of losses and gradient norms, worst first.

    Raises:
        UsageError: There is no such rule.
    """
    check_rule(rule)
    losses = _track(series, signal="loss", present=series.measured & ~series.is_artefact)
    norms = _track(series, signal="grad_norm", present=series.has_grad_norm)
    loss_values, norm_values = (_as_judged(track) for track in (losses, norms))
    dead_losses = _nonfinite(series, losses, ~losses.finite, values=loss_values, rule=rule)
    dead_norms = _nonfinite(series, norms, _dead_norms(series, norms), values=norm_values, rule=rule)
    judged = _merge(series, losses, _judge_losses(losses, loss_values, rule=rule))
    judged += _merge(series, norms, _judge_norms(norms, norm_values))
    spikes = sorted([*dead_losses.spikes, *dead_norms.spikes, *judged], key=lambda spike: order(spike, rule=rule))
    finite_steps = series.step[losses.at[losses.finite]]
    early = RobustRule().min_history if rule == "robust" else 0
    return SpikeSearch(
        spikes=tuple(spikes[:MAX_SPIKES]),
        num_left_out=max(0, dead_losses.num_found + dead_norms.num_found + len(judged) - MAX_SPIKES),
        died_again=tuple(sorted({*dead_losses.died_again, *dead_norms.died_again})),
        num_median=min(early, finite_steps.size),
        first_robust_step=int(finite_steps[early]) if rule == "robust" and finite_steps.size > early else None,
    )


def check_rule(rule: str) -> None:
    """Refuses the name of a rule that there is not with `UsageError`."""
    if rule not in RULES:
        raise UsageError(f"rule={rule!r} is unknown: use one of {', '.join(RULES)}.")


def _track(series: StepSeries, *, signal: Signal, present: NDArray[np.bool_]) -> _Track:
    at = np.flatnonzero(present)
    value = (series.loss if signal == "loss" else series.grad_norm)[at]
    finite = is_finite(value)
    if signal == "loss":
        return _Track(signal, "spike", "warning", at, value, finite)
    return _Track(signal, "grad_norm", "notice", at, value, finite)


def _as_judged(track: _Track) -> NDArray[np.float64]:
    """The finite values as the rules see them: rounded to float32, held as float64."""
    return track.value[track.finite].astype(np.float32).astype(np.float64)


def _judge_losses(track: _Track, values: NDArray[np.float64], *, rule: str) -> list[_Flag]:
    median = MedianRule(MULTIPLIER)
    if rule == "median":
        candidates = median_candidates(values, multiplier=MULTIPLIER, window_size=median.window_size)
        flagged = _judge_first(values, median, until=median.window_size)
        flagged += _judge_some(values, median, candidates)
    else:
        robust = RobustRule(K)
        early = _judge_first(values, median, until=robust.min_history)
        flagged = [flag for flag in early if _is_far(flag.verdict)]
        flagged += _judge_first(values, robust, begin=robust.min_history, until=robust.window_size)
        candidates = robust_candidates(values, k=K, window_size=robust.window_size)
        flagged += _judge_some(values, robust, candidates)
    places = np.flatnonzero(track.finite)
    return [_Flag(int(places[place]), name, verdict) for place, name, verdict in flagged]


def _is_far(verdict: Verdict) -> bool:
    """Whether a value lies further off than `robust` forgives at any level: of 0.0001, twice that is a last digit."""
    return verdict.baseline is None or verdict.loss - verdict.baseline > K * ABSOLUTE_FLOOR


def _judge_norms(track: _Track, values: NDArray[np.float64]) -> list[_Flag]:
    norm = NormRule()
    candidates = norm_candidates(values, k=ROBUST_K, factor=ROBUST_FACTOR, window_size=norm.window_size)
    flagged = _judge_first(values, norm, until=norm.window_size) + _judge_some(values, norm, candidates)
    places = np.flatnonzero(track.finite)
    return [
        _Flag(int(places[place]), "robust" if place >= ROBUST_HISTORY else "median", verdict)
        for place, _, verdict in flagged
    ]


def _judge_first(
    values: NDArray[np.float64], rule: MedianRule | RobustRule | NormRule, *, until: int, begin: int = 0
) -> list[_Flag]:
    """Judges values `begin` to `until`, and absorbs every one from the start."""
    flagged = []
    for place, x in enumerate(values[:until].tolist()):
        if place >= begin:
            verdict = rule.judge(x)
            if verdict.reason == "spike":
                flagged.append(_Flag(place, rule.name, verdict))
        rule.absorb(x)
    return flagged


def _judge_some(
    values: NDArray[np.float64], rule: MedianRule | RobustRule | NormRule, candidates: NDArray[np.int64]
) -> list[_Flag]:
    flagged = []
    for place in candidates.tolist():
        rule.replace(values[max(0, place - rule.window_size) : place].tolist())
        verdict = rule.judge(float(values[place]))
        if verdict.reason == "spike":
            flagged.append(_Flag(place, rule.name, verdict))
    return flagged


def _merge(series: StepSeries, track: _Track, flags: list[_Flag]) -> list[Spike]:
    """Neighbours of one rule become one finding, its figures those of the peak; the median rule's stay single."""
    stretches: list[list[_Flag]] = []
    for flag in flags:
        last = stretches[-1][-1] if stretches else None
        if last and flag.rule == last.rule != "median" and flag.place == last.place + 1:
            stretches[-1].append(flag)
        else:
            stretches.append([flag])

    spikes = []
    for stretch in stretches:
        peak = max(stretch, key=lambda flag: track.value[flag.place])
        verdict = peak.verdict
        score = None
        if verdict.scale is not None and verdict.baseline is not None:
            score = (verdict.loss - verdict.baseline) / verdict.scale
        first, last_place = stretch[0].place, stretch[-1].place
        spikes.append(
            _spike(
                series,
                track,
                peak.place,
                (first, last_place),
                num_steps=len(stretch),
                rule=peak.rule,
                baseline=verdict.baseline,
                score=score,
            )
        )
    return spikes


def _nonfinite(
    series: StepSeries, track: _Track, dead: NDArray[np.bool_], *, values: NDArray[np.float64], rule: str
) -> _Nonfinite:
    """Stretches of values that are not finite: each is one finding that peaks at its first step.

    Only the first `MAX_SPIKES` are made: they are listed by their first step, so no other could be.
    """
    stretches = _stretches(dead, finite=track.finite)
    num_behind = np.cumsum(track.finite)
    spikes = []
    for first, end, num in zip(*(column[:MAX_SPIKES].tolist() for column in stretches[:3]), strict=True):
        baseline = _baseline(values[: int(num_behind[first])], track.signal, rule=rule)
        spike = _spike(series, track, first, (first, end - 1), num_steps=num, rule=rule, baseline=baseline, score=None)
        spikes.append(spike)
    died_again = series.step[track.at[stretches.died_again]].tolist()
    return _Nonfinite(spikes, stretches.first.size, died_again)


def _stretches(dead: NDArray[np.bool_], *, finite: NDArray[np.bool_]) -> _Stretches:
    """Stretches of dead values; those that belong together by `LASTING` as one."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], dead, [False]]).astype(np.int8))).reshape(-1, 2)
    first, end = edges[:, 0], edges[:, 1]
    if not first.size:
        return _Stretches(first, end, first, first)
    size = end - first
    shorter = np.minimum(size[1:], size[:-1])
    num_between = first[1:] - end[:-1]
    # Between two dead norms the loss may be what is not finite: that is no return.
    num_finite = np.concatenate([[0], np.cumsum(finite)])
    all_finite = num_finite[first[1:]] - num_finite[end[:-1]] == num_between
    goes_on = (shorter >= LASTING) & (2 * num_between <= shorter) & all_finite
    begins = np.flatnonzero(np.concatenate([[True], ~goes_on]))
    closes = np.append(begins[1:], first.size) - 1
    return _Stretches(first[begins], end[closes], np.add.reduceat(size, begins), first[1:][goes_on])


def _dead_norms(series: StepSeries, norms: _Track) -> NDArray[np.bool_]:
    """Norms that are not finite where the loss is: a fault of its own, unless the scaler was only finding its scale."""
    loss_is_finite = series.measured & is_finite(series.loss)
    is_overflow: NDArray[np.bool_] = series.reason[norms.at] == SCALER_OVERFLOW
    return ~norms.finite & loss_is_finite[norms.at] & ~is_overflow


def _baseline(behind: NDArray[np.float64], signal: Signal, *, rule: str) -> float | None:
    """What a value after `behind` is compared with; None while there is too little."""
    return _next_verdict(behind, signal, rule=rule).baseline


def usual_limit(behind: NDArray[np.float64], *, signal: Signal) -> float | None:
    """What the next value of a signal may be under the rule `robust` without being out of line.

    Args:
        behind: (N,) its finite values so far.
        signal: Which signal.

    Returns:
        The limit; None while there is too little to compare with.
    """
    return _next_verdict(behind, signal, rule="robust").threshold


def _next_verdict(behind: NDArray[np.float64], signal: Signal, *, rule: str) -> Verdict:
    """How 0 would be judged after `behind`: with what it is compared says it all, whatever the value."""
    judge: MedianRule | RobustRule | NormRule
    robust = RobustRule(K)
    if signal == "grad_norm":
        judge = NormRule()
    elif rule == "robust" and behind.size >= robust.min_history:
        judge = robust
    else:
        judge = MedianRule(MULTIPLIER)
    judge.replace(behind[-judge.window_size :].tolist())
    return judge.judge(0.0)


def _spike(
    series: StepSeries,
    track: _Track,
    peak: int,
    stretch: tuple[int, int],
    *,
    num_steps: int,
    rule: str,
    baseline: float | None,
    score: float | None,
) -> Spike:
    at = int(track.at[peak])
    first, last = stretch
    finite = bool(track.finite[peak])
    return Spike(
        step=int(series.step[at]),
        first=int(series.step[track.at[first]]),
        last=int(series.step[track.at[last]]),
        num_steps=num_steps,
        kind=track.kind if finite else "nonfinite",
        signal=track.signal,
        severity=track.severity if finite else "critical",
        rule=rule,
        value=float(track.value[peak]),
        loss=float(series.loss[at]) if series.measured[at] else None,
        baseline=baseline,
        score=score,
    )


def order(spike: Spike, *, rule: str) -> tuple[int, int, float, int]:
    """Critical, warning, notice; inside by score (what has none after what has one), or by ratio under `median`."""
    severity = SEVERITIES.index(spike.severity)
    if spike.severity == "critical":
        return severity, 0, 0.0, spike.first
    if rule == "robust" and spike.score is not None:
        return severity, 0, -spike.score, spike.first
    return severity, 1, -(spike.ratio if spike.ratio is not None else -math.inf), spike.first
