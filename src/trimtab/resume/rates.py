"""Whether the learning rates of the first steps after a resume are those of the schedule.

Enters: rates before the checkpoint and after it; what an earlier attempt of the run recorded that went past it, or what
the optimizer had when it was saved. Leaves: a `Break`, or none. Pure: no scheduler is known, no file, no log.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from trimtab.resume.around import Around, Judged, Seen
from trimtab.resume.breaks import Break, SeenStep

SAME_LR: Final = 1e-6
"""Part by which two learning rates of one schedule may differ: closed and recursive forms differ by 1e-12, a rate that
is a float32 tensor by 1e-7; one step of a cosine over 100,000 moves a rate by 3e-5 of itself nearly everywhere."""

OFF_BY_ONE: Final[Mapping[int, tuple[str, str]]] = {
    -1: ("that of the step before", "save after scheduler.step(), and load the scheduler's state"),
    1: (
        "that of the step after",
        "call scheduler.step() once a step, behind optimizer.step(), and not after loading the scheduler's state",
    ),
}
"""By how many steps off: which rate that is, and what to do."""


def judge(around: Around, seen: Seen) -> Judged | None:
    """Judges the rates of the first steps; on rank 0, which speaks for all."""
    if around.rank:
        return None
    before = around.before
    if around.was_rebased:
        return Judged("learning rate", left_out="another one was asked for")
    if all(step.lr is None for step in seen.steps):
        return Judged("learning rate", left_out="the resumed steps report none")
    if before.next_lr is None and len(before.steps) <= 2 and not around.recorded:
        return Judged("learning rate", left_out="those before the checkpoint are not known")
    breaks = judge_lrs(before.steps, seen.steps, recorded=around.recorded, next_lr=before.next_lr)
    return Judged("learning rate", breaks)


def judge_lrs(
    before: Sequence[SeenStep],
    resumed: Sequence[SeenStep],
    *,
    recorded: Sequence[SeenStep] = (),
    next_lr: float | None = None,
) -> list[Break]:
    """Compares the learning rates of the first resumed steps with what the schedule would have given.

    That is known from an earlier attempt that went past the checkpoint; else from the rate that the optimizer had when
    it was saved, and from the way in which the rates before moved. An override that was asked for is the caller's to
    leave out.

    Args:
        before: Steps before the checkpoint, oldest first.
        resumed: The first steps after it.
        recorded: The steps after it in an earlier attempt, oldest first.
        next_lr: The rate of the optimizer when the checkpoint was saved; None: not known.
    """
    rates = [(seen.step, seen.lr) for seen in resumed if seen.lr is not None]
    if not rates:
        return []
    last = [seen.lr for seen in before if seen.lr is not None]
    expected = {seen.step: seen.lr for seen in recorded if seen.lr is not None}
    if before and before[-1].lr is not None:
        expected[before[-1].step] = before[-1].lr
    if any(step in expected for step, _ in rates):
        return _against_schedule(rates, expected, last)
    (step, found) = rates[0]
    if _repeats_last(last, [lr for _, lr in rates]):
        return [_off_by_one(step, found, expected=2 * last[-1] - last[-2], late=True)]
    if next_lr is None:
        if _leaps(last, [lr for _, lr in rates]):
            return [_off_by_one(step, found, expected=2 * last[-1] - last[-2], late=False)]
        return []
    if _same(found, next_lr):
        return []
    if last and _same(found, last[-1]):
        return [_off_by_one(step, found, expected=next_lr, late=True)]
    if _is_one_ahead([*last, next_lr], [lr for _, lr in rates]):
        return [_off_by_one(step, found, expected=next_lr, late=False)]
    return [_other_lr(step, found, expected=next_lr, whose="the optimizer of the checkpoint had")]


def _same(found: float, expected: float) -> bool:
    return abs(found - expected) <= SAME_LR * abs(expected)


def _against_schedule(
    rates: Sequence[tuple[int, float]], expected: dict[int, float], last: Sequence[float]
) -> list[Break]:
    """Compares step by step with rates that were recorded; `last` are those before them."""
    differing = [(step, lr) for step, lr in rates if step in expected and not _same(lr, expected[step])]
    if not differing:
        return []
    step, found = differing[0]
    for shift, late in ((-1, True), (1, False)):
        shifted = [(lr, expected[at + shift]) for at, lr in rates if at + shift in expected]
        if shifted and len(shifted) >= len(differing) - 1 and all(_same(lr, wanted) for lr, wanted in shifted):
            return [_off_by_one(step, found, expected=expected[step], late=late)]
    if step == rates[0][0] and _is_one_ahead([*last, expected[step]], [lr for _, lr in rates]):
        return [_off_by_one(step, found, expected=expected[step], late=False)]
    return [_other_lr(step, found, expected=expected[step], whose="an earlier attempt had there")]


def _repeats_last(last: Sequence[float], rates: Sequence[float]) -> bool:
    """Whether a rate that moved with each step stood still over the resume, and then moved on."""
    if len(last) < 3 or len(rates) < 2 or not _same(rates[0], last[-1]) or _stands(last):
        return False
    steps = [last[-2] - last[-3], last[-1] - last[-2], rates[1] - rates[0]]
    return all(moved != 0 for moved in steps) and all(0.5 < moved / steps[1] < 2 for moved in steps)


def _leaps(last: Sequence[float], rates: Sequence[float]) -> bool:
    """Whether a rate that moved evenly with each step moved twice as far over the resume, and then evenly again."""
    if len(last) < 3 or len(rates) < 2 or _stands(last):
        return False
    moved = last[-1] - last[-2]
    even = [(last[-2] - last[-3]) / moved, (rates[1] - rates[0]) / moved]
    return all(abs(part - 1) < 0.2 for part in even) and abs((rates[0] - last[-1]) / moved - 2) < 0.3


def _is_one_ahead(known: Sequence[float], rates: Sequence[float]) -> bool:
    """Whether rates that should begin with the last of `known` begin with the one after it.

    That one is not known. But a schedule bends evenly from step to step: where the next rates lie on the parabola
    through the last three, they are what follows them. At a corner, as where a warm-up ends, nothing is told.
    """
    if len(known) < 3:
        return False
    path = [*known[-3:], *rates[:2]]
    moves = [after - before for before, after in pairwise(path)]
    return all(
        moves[place] != 0 and abs(moves[place] - 2 * moves[place - 1] + moves[place - 2]) <= 0.1 * abs(moves[place])
        for place in range(2, len(moves))
    )


def _stands(last: Sequence[float]) -> bool:
    """Whether the last rates hardly moved, as at the top of a cosine: then nothing tells one step from the next."""
    return abs(last[-1] - last[-2]) <= 10 * SAME_LR * abs(last[-1])


def _off_by_one(step: int, found: float, *, expected: float, late: bool) -> Break:
    which, advice = OFF_BY_ONE[-1 if late else 1]
    text = (
        f"the learning rate of step {step} is {found:.4g}, and {expected:.4g} by the schedule: off by one, {which}; "
        f"{advice}"
    )
    return Break(kind="lr_off_by_one", severity="warning", step=step, text=text, found=found, expected=expected)


def _other_lr(step: int, found: float, *, expected: float, whose: str) -> Break:
    times = f" ({found / expected:.4g}x)" if expected else ""
    text = (
        f"the learning rate of step {step} is {found:.4g}{times}, and {whose} {expected:.4g}: load the scheduler's "
        "state, and ask for another rate by rebase_lr"
    )
    return Break(kind="lr", severity="warning", step=step, text=text, found=found, expected=expected)
