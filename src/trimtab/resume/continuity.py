"""Whether the losses of the first steps after a resume continue those before it; and what a `Break` is.

Enters: losses before the checkpoint, those of the first steps after it, and, where an earlier attempt of the run went
past the checkpoint, what that one recorded for the same step. Leaves: a `Break`, or none where the run goes on. Rates
are judged by `trimtab.resume.rates`, rows by `trimtab.resume.row_order`. Pure: no clock, no file, no log.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any, Final, Literal, NamedTuple

from trimtab.values import json_number

BreakKind = Literal[
    "loss_rose",
    "loss_nonfinite",
    "loss_dropped",
    "loss_differs",
    "all_skipped",
    "lr_off_by_one",
    "lr",
    "rows_replayed",
    "rows_repeated",
    "rows_skipped",
    "rows_differ",
]
Severity = Literal["critical", "warning", "notice"]

NUM_JUDGED: Final = 8
"""First resumed steps that are looked at. On the published curves in `tests/data/curves`, cut after every step, 8 steps
against the 32 before gave 0 rises and 0 drops in 131,000 cuts where the run went on, one fine-tune aside (see
`judge_losses`); 4 steps gave 4 and 3."""

NUM_REMEMBERED: Final = 32
"""Steps before the checkpoint that they are compared with. With 8 behind it a line is so unsure of where it goes that a
drop must be 5 times the noise to be told; with 32, twice."""

RISE_SCALES: Final = 6.0
RISE: Final = 1.2
CRITICAL_RISE: Final = 1.5
"""A rise is this many scales of the noise, and this many times the loss before; from the last on it is critical. A
model that was not restored costs 2 to 4 times what it did (0.9, then 2.8)."""

DROP_ERRORS: Final = 4.0
DROP: Final = 0.9
"""A drop is this many standard errors below where the losses before were heading, and below this part of it. An epoch
of rows that were trained on already costs a fifth less (0.20, then 0.16)."""

MIN_HISTORY: Final = 8
"""Losses before the checkpoint from which a spread is taken: with fewer a rise is told by `LONE_RISE` alone."""

MIN_RESUMED: Final = 4
"""Resumed losses from which a drop is told, or that all of them were skipped."""

LONE_RISE: Final = 2.0
SAME_ROWS: Final = 0.05
"""The same rows in the same weights cost the same, but for the order of sums on a device (1e-3): by this part more or
less they were not the same weights, or dropout drew other numbers."""

_NOISE_FLOOR: Final = 0.02
_ERROR_FLOOR: Final = 0.01


class SeenStep(NamedTuple):
    """One optimizer step, as the rules look at it.

    Attributes:
        step: 1-based optimizer step.
        loss: What the run reported; None where nobody knows it, NaN or infinite as it was.
        lr: Learning rate of the first parameter group; None where unknown.
        is_skipped: Whether the guard left out all of it.
    """

    step: int
    loss: float | None = None
    lr: float | None = None
    is_skipped: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Break:
    """A place where the resumed run does not continue the one before.

    Attributes:
        kind: What.
        severity: "critical" (the run is not the one that was saved), "warning", or "notice" (it may be meant so).
        step: The step at which it shows.
        text: What is to be said, without a full stop.
        found: The number that was found, where there is one.
        expected: The number that would have continued the run, likewise.
        num_rows: Rows that are skipped or repeated, likewise.
    """

    kind: BreakKind
    severity: Severity
    step: int
    text: str
    found: float | None = None
    expected: float | None = None
    num_rows: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The facts of the log's event; strict JSON."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "step": self.step,
            "text": self.text,
            "found": json_number(self.found),
            "expected": json_number(self.expected),
            "num_rows": self.num_rows,
        }


def judge_losses(
    before: Sequence[float],
    resumed: Sequence[SeenStep],
    *,
    recorded: float | None = None,
    begins_epoch: bool = False,
) -> list[Break]:
    """Compares the first resumed losses with the last ones before the checkpoint.

    Where an earlier attempt recorded the first of these steps, with the same rows, its loss alone decides: the weights
    have not moved yet. Else a rise is the first loss above all those before, and the median of the resumed ones
    `RISE_SCALES` scales above theirs; a drop is their mean `DROP_ERRORS` standard errors below the line through those
    before, which may fall and never rises. A scale is 1.4826 times the median absolute deviation, or the deviation from
    that line, or 2 % of the loss, whichever is most. On published curves cut anywhere no healthy run was called broken,
    but one of 1,218 steps at the beginnings of its epochs (18 cuts), where its rows have indeed been seen.

    Args:
        before: Finite losses before the checkpoint, oldest first; the last `NUM_REMEMBERED` are looked at.
        resumed: The first steps after it, at most `NUM_JUDGED`.
        recorded: Loss of the first of them in an earlier attempt, where its rows were the same; None: not known.
        begins_epoch: Whether these steps are known to begin an epoch after the first: a drop is none then.
    """
    if not resumed:
        return []
    step = resumed[0].step
    if len(resumed) >= MIN_RESUMED and all(seen.is_skipped for seen in resumed):
        text = f"the guard skipped all of the first {len(resumed)} resumed steps: weights probably not restored"
        return [Break(kind="all_skipped", severity="critical", step=step, text=text)]
    known = [seen for seen in resumed if seen.loss is not None and not seen.is_skipped]
    before = [loss for loss in before if math.isfinite(loss)][-NUM_REMEMBERED:]
    if not known or not before:
        return []
    losses = [seen.loss for seen in known if seen.loss is not None]
    if not math.isfinite(losses[0]):
        text = f"the first resumed loss is {losses[0]:g}, and {before[-1]:.4g} before: weights probably not restored"
        return [Break(kind="loss_nonfinite", severity="critical", step=known[0].step, text=text, found=losses[0])]
    losses = [loss for loss in losses if math.isfinite(loss)]
    if recorded is not None and math.isfinite(recorded) and known[0].step == step:
        return _against_recorded(losses[0], recorded, step=step)
    if _has_risen(before, losses):
        return [_rise(losses[0], before[-1], step=known[0].step, kind="loss_rose")]
    drop = None if begins_epoch else _drop(before, losses, step=known[0].step)
    return [drop] if drop is not None else []


def _against_recorded(loss: float, recorded: float, *, step: int) -> list[Break]:
    if abs(loss - recorded) <= SAME_ROWS * abs(recorded):
        return []
    if recorded > 0 and loss >= CRITICAL_RISE * recorded:
        return [_rise(loss, recorded, step=step, kind="loss_rose", before=f"{recorded:.4g} with the same rows before")]
    text = (
        f"first resumed loss {loss:.4g}, and {recorded:.4g} with the same rows before: weights or random numbers "
        "(dropout) are not those of the checkpoint"
    )
    return [Break(kind="loss_differs", severity="warning", step=step, text=text, found=loss, expected=recorded)]


def _has_risen(before: Sequence[float], losses: Sequence[float]) -> bool:
    centre, level = median(before), median(losses)
    if len(before) < MIN_HISTORY:
        return centre > 0 and level > LONE_RISE * centre and losses[0] > LONE_RISE * max(before)
    spread = 1.4826 * median(abs(loss - centre) for loss in before)
    scale = max(spread, _Line.through(before).deviation, _NOISE_FLOOR * abs(centre))
    is_above = losses[0] > max(before) and level > centre + RISE_SCALES * scale
    return is_above and (centre <= 0 or level > RISE * centre)


def _rise(loss: float, last: float, *, step: int, kind: BreakKind, before: str | None = None) -> Break:
    ratio = loss / last if last > 0 else math.inf
    times = f"first resumed loss {ratio:.1f}x the checkpoint's" if last > 0 else "the first resumed loss is far above"
    text = f"{times} ({loss:.4g}, and {before or f'{last:.4g} before'})"
    if ratio >= CRITICAL_RISE:
        text += ": weights probably not restored"
    severity: Severity = "critical" if ratio >= CRITICAL_RISE else "warning"
    return Break(kind=kind, severity=severity, step=step, text=text, found=loss, expected=last)


def _drop(before: Sequence[float], losses: Sequence[float], *, step: int) -> Break | None:
    if len(before) < MIN_HISTORY or len(losses) < MIN_RESUMED:
        return None
    line = _Line.through(before)
    expected, error = line.mean_of_next(len(losses))
    level = fmean(losses)
    if not expected > 0 or level >= DROP * expected or level >= expected - DROP_ERRORS * error:
        return None
    text = f"the loss dropped from {expected:.4g} to {level:.4g} with the resume: rows already seen"
    return Break(kind="loss_dropped", severity="warning", step=step, text=text, found=level, expected=expected)


class _Line(NamedTuple):
    """The straight line through some values, by least squares, and how far they lie from it."""

    size: int
    mean: float
    slope: float
    deviation: float

    @classmethod
    def through(cls, values: Sequence[float]) -> _Line:
        size, mean = len(values), fmean(values)
        places = [place - (size - 1) / 2 for place in range(size)]
        slope = sum(place * value for place, value in zip(places, values, strict=True)) / _squares(size)
        rest = [value - mean - slope * place for place, value in zip(places, values, strict=True)]
        return cls(size, mean, slope, math.sqrt(sum(value * value for value in rest) / (size - 2)))

    def mean_of_next(self, num: int) -> tuple[float, float]:
        """What the next values should be in the mean, and the standard error of that and of their own mean."""
        ahead = (self.size + num) / 2
        expected = self.mean + min(self.slope, 0.0) * ahead
        noise = max(self.deviation, _ERROR_FLOOR * abs(self.mean))
        return expected, noise * math.sqrt(1 / num + 1 / self.size + ahead * ahead / _squares(self.size))


def _squares(size: int) -> float:
    """Sum of the squared distances of `size` places in a row from their middle."""
    return size * (size * size - 1) / 12
