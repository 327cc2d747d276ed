"""Whether the losses of the first steps after a resume continue those before it.

Enters: losses before the checkpoint, those of the first steps after it, and, where an earlier attempt of the run went
past the checkpoint, what that one recorded for the same step. Leaves: a `Break`, or none where the run goes on. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Final, NamedTuple

from trimtab.resume.around import Around, Judged, Seen
from trimtab.resume.breaks import NUM_REMEMBERED, Break, SeenStep, Severity
from trimtab.resume.row_order import begins_epoch, same_as_recorded

RISE_SCALES: Final = 6.0
RISE: Final = 1.2
CRITICAL_RISE: Final = 1.5
"""A rise is this many scales of the noise, and this many times the loss before; from the last on it is critical. A
model that was not restored costs 2 to 4 times what it did (0.9, then 2.8)."""

FALL_DEVIATIONS: Final = 4.0
"""Losses fall clearly where the line through them falls by as many deviations from it."""

NUM_RECENT: Final = 8
"""Where the losses before were falling, a rise is measured from the last ones: the first of them are still those of a
model that knows nothing."""

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


def judge(around: Around, seen: Seen) -> Judged | None:
    """Judges the losses of the first steps; on rank 0, or where a rank recorded the same rows before."""
    # The state is that of rank 0, whose losses it tells; those of the others are in the log alone.
    steps = [step for step in around.before.steps if step.loss is not None] if around.rank == 0 else []
    before = [step.loss for step in steps if step.loss is not None and math.isfinite(step.loss)]
    recorded = _recorded_loss(around) if same_as_recorded(around.rows, seen.rows) else None
    if around.rank and recorded is None:
        return None
    if not any(step.loss is not None or step.is_skipped for step in seen.steps):
        return Judged("loss", left_out="the resumed steps report none")
    if not before and recorded is None:
        return Judged("loss", left_out="none before the checkpoint is known")
    breaks = judge_losses(before, seen.steps, recorded=recorded, begins_epoch=begins_epoch(around.rows))
    is_told = bool(breaks) or recorded is not None
    left_out = None if is_told else _untold(before, seen.steps, from_start=steps[0].step == 1)
    return Judged("loss", breaks, left_out=left_out)


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
    `RISE_SCALES` scales above theirs; where those before were falling, above the last `NUM_RECENT` of them. A drop is
    their mean `DROP_ERRORS` standard errors below the line through those before, which may fall and never rises. A
    scale is 1.4826 times the median absolute deviation, or the deviation from that line, or 2 % of the loss, whichever
    is most. On published curves cut anywhere, their first steps too, no healthy run was called broken, but one of 1,218
    steps at the beginnings of its epochs (18 cuts), where its rows have indeed been seen.

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
        return [_rise(losses[0], before[-1], step=known[0].step)]
    drop = None if begins_epoch else _drop(before, losses, step=known[0].step)
    return [drop] if drop is not None else []


def _recorded_loss(around: Around) -> float | None:
    first = next((step for step in around.recorded if step.step == around.step), None)
    return first.loss if first is not None and not first.is_skipped else None


def _against_recorded(loss: float, recorded: float, *, step: int) -> list[Break]:
    if abs(loss - recorded) <= SAME_ROWS * abs(recorded):
        return []
    if recorded > 0 and loss >= CRITICAL_RISE * recorded:
        return [_rise(loss, recorded, step=step, before=f"{recorded:.4g} with the same rows before")]
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
    return (is_above and (centre <= 0 or level > RISE * centre)) or _has_risen_from_falling(before, losses)


def _has_risen_from_falling(before: Sequence[float], losses: Sequence[float]) -> bool:
    """Whether the losses have risen above the last ones of a fall, though perhaps not above where it began."""
    recent = before[-NUM_RECENT:]
    centre, level = median(recent), median(losses)
    if not _has_fallen(before) or losses[0] <= max(recent) or level <= RISE * centre:
        return False
    # What two losses in a row differ by is noise alone, however steep the fall bends.
    noise = 1.4826 / math.sqrt(2) * median(abs(after - loss) for loss, after in pairwise(before))
    scale = max(noise, _Line.through(before[-2 * NUM_RECENT :]).deviation, _NOISE_FLOOR * centre)
    return level > centre + RISE_SCALES * scale


def _has_fallen(before: Sequence[float]) -> bool:
    """Whether the first quarter of the losses lies clearly above the last ones."""
    recent = median(before[-NUM_RECENT:])
    return recent > 0 and _first(before) > RISE * recent


def _first(before: Sequence[float]) -> float:
    return median(before[: max(1, len(before) // 4)])


def _untold(before: Sequence[float], resumed: Sequence[SeenStep], *, from_start: bool) -> str | None:
    """Why losses without a break may yet be those of weights that were not restored; None where they are not.

    An untrained model costs what the run's first steps did; of a run that was falling still, as much as the first of
    those that are remembered, or more. That the resumed losses are nearer to the last ones tells that they go on.

    Args:
        before: Finite losses before the checkpoint, oldest first; at least one.
        resumed: The first steps after it.
        from_start: Whether `before` begins with the run's first steps.
    """
    losses = [seen.loss for seen in resumed if seen.loss is not None and math.isfinite(seen.loss)]
    if not losses:
        return None
    level = median(losses)
    first, recent = _first(before), median(before[-NUM_RECENT:])
    has_fallen = False
    if len(before) >= MIN_HISTORY:
        line = _Line.through(before)
        has_fallen = line.slope * (len(before) - 1) < -FALL_DEVIATIONS * line.deviation
    if from_start:  # a fall bends most there, so its line fits badly; and in a step or two a fresh model has learned
        level, has_fallen = max(losses[0], level), has_fallen or (len(before) >= MIN_HISTORY and _has_fallen(before))
    if not (has_fallen or from_start) or level < ((first + recent) / 2 if has_fallen else first / RISE):
        return None
    beginning = "the run's first losses" if from_start else "the first of those before, which were falling,"
    return f"{level:.4g} may be that of weights that were not restored: {beginning} were {first:.4g}"


def _rise(loss: float, last: float, *, step: int, before: str | None = None) -> Break:
    ratio = loss / last if last > 0 else math.inf
    times = f"first resumed loss {ratio:.1f}x the checkpoint's" if last > 0 else "the first resumed loss is far above"
    text = f"{times} ({loss:.4g}, and {before or f'{last:.4g} before'})"
    if ratio >= CRITICAL_RISE:
        text += ": weights probably not restored"
    severity: Severity = "critical" if ratio >= CRITICAL_RISE else "warning"
    return Break(kind="loss_rose", severity=severity, step=step, text=text, found=loss, expected=last)


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
