"""`Schedule`: the learning rates that a run was asked to train with, in closed form.

Enters: what a user asks for, or the facts of an event. Leaves: the rate of each optimizer step. Standard library only.
Invariant: it says what was asked for, never what a scheduler object holds, which a resume may have put back to another
rate; so the rates that a log holds can be compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Literal, get_args

from trimtab.errors import UsageError
from trimtab.rules.scalar import MAX_WHOLE, real_number, spelled, whole_number

ScheduleForm = Literal["constant", "linear", "cosine", "inverse_sqrt"]
"""How the rate goes behind its warm-up."""

_INVERSE_SQRT_STEPS: Final = 10_000
"""`timescale` of an inverse square root without a warm-up, as transformers has it."""

SCHEDULE_EVENT: Final = "schedule"
"""Kind of the event that states the schedule of an attempt, with `Schedule.to_facts` as its facts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A linear warm-up, and behind it a rate that stands, falls, or stands and then falls.

    It is what torch's `LinearLR` before a `CosineAnnealingLR` gives, and what the schedulers of transformers give under
    the names linear, cosine, constant, constant_with_warmup, cosine_with_min_lr, inverse_sqrt and warmup_stable_decay.
    It is that of the whole run, also where a call trains a part of it; of several parameter groups that of the first,
    whose rate is what a log holds.

    Attributes:
        form: How the rate goes behind the warm-up.
        lr: The rate at the warm-up's end: what an optimizer is made with.
        num_steps: Optimizer steps of the whole run, in which the rate falls to `min_lr`; required but for "constant"
            and "inverse_sqrt".
        num_warmup_steps: Steps before which the rate rises to `lr`.
        warmup_from: Part of `lr` that the first step of a warm-up has: 0 as transformers begins, `start_factor` of
            `LinearLR`.
        min_lr: The rate at the end; of "constant" and "inverse_sqrt" there is none.
        num_stable_steps: Steps behind the warm-up in which the rate stands at `lr` before it falls: of a schedule of
            warm-up, stable phase and decay all but those at both ends; of "constant" there are none.
        timescale: Of "inverse_sqrt", the steps in which the rate falls to lr / sqrt(2); None: `num_warmup_steps`, or
            10,000 without a warm-up, as transformers has it.
        waits_for_dropped: Whether the schedule stands still at a step that the optimizer did not take, so that the
            steps behind it come with the rates of earlier ones: where a loop calls its scheduler only after a step
            that was taken. `rate` knows of no such step.

    Raises:
        UsageError: One of them makes no sense; says what was found and what is expected.

    Example:
        >>> schedule = Schedule(form="cosine", lr=3e-4, num_steps=10_000, num_warmup_steps=200)
        >>> f"{schedule.rate(2_011):.4e}"
        '2.7545e-04'
    """

    form: ScheduleForm
    lr: float
    num_steps: int | None = None
    num_warmup_steps: int = 0
    warmup_from: float = 0.0
    min_lr: float = 0.0
    num_stable_steps: int = 0
    timescale: int | None = None
    waits_for_dropped: bool = False

    def __post_init__(self) -> None:
        if self.form not in get_args(ScheduleForm):
            raise UsageError(
                f'form is {spelled(self.form)}: expected "constant", "linear", "cosine" or "inverse_sqrt". Rates that '
                "none of them gives cannot be stated: leave the schedule out then, and `trimtab gate` says of the "
                "learning rate that it is unknown."
            )
        for name in ("lr", "warmup_from", "min_lr"):
            object.__setattr__(self, name, _rate(getattr(self, name), name=name))
        for name, least in (("num_warmup_steps", 0), ("num_stable_steps", 0), ("num_steps", 1), ("timescale", 1)):
            if least == 0 or getattr(self, name) is not None:
                object.__setattr__(self, name, _steps(getattr(self, name), name=name, least=least))
        if self.num_steps is None and self.form not in ("constant", "inverse_sqrt"):
            raise UsageError(
                f'num_steps is None: a schedule of the form "{self.form}" falls over the optimizer steps of the whole '
                "run. Name their number, also where a call trains a part of them."
            )
        if not isinstance(self.waits_for_dropped, bool):
            raise UsageError(f"waits_for_dropped is {spelled(self.waits_for_dropped)}: expected True or False.")
        if self.warmup_from > 1:
            raise UsageError(f"warmup_from is {self.warmup_from!r}: expected a part of lr, from 0 to 1.")
        if self.min_lr > self.lr:
            raise UsageError(f"min_lr is {self.min_lr!r}, above lr, which is {self.lr!r}: expected a rate below it.")
        self._check_form()

    def _check_form(self) -> None:
        """Refuses what a form does not have, and fills in what one has by itself."""
        if self.form in ("constant", "inverse_sqrt") and self.min_lr:
            goes = "never falls" if self.form == "constant" else "has no end"
            raise UsageError(f'min_lr is {self.min_lr!r}, and a rate of the form "{self.form}" {goes}: leave it out.')
        if self.form == "constant" and self.num_stable_steps:
            raise UsageError(
                f'num_stable_steps is {self.num_stable_steps}, and a rate of the form "constant" never falls: leave it '
                "out."
            )
        if self.form == "inverse_sqrt" and self.timescale is None:
            object.__setattr__(self, "timescale", self.num_warmup_steps or _INVERSE_SQRT_STEPS)
        elif self.form != "inverse_sqrt" and self.timescale is not None:
            raise UsageError(f'timescale is {self.timescale}, and the form "{self.form}" has none: leave it out.')

    def rate(self, step: int) -> float:
        """The rate with which the optimizer takes a step.

        Args:
            step: Optimizer step, 1-based: k = step - 1 are finished by then, and so many calls of `scheduler.step()`.

        Returns:
            With W warm-up steps, S stable ones behind them, N steps, and k finished ones: below W
            `lr * (warmup_from + (1 - warmup_from) * k / W)` (`LinearLR` of torch), then `lr`, and from W + S on

                constant      lr
                linear        min_lr + (lr - min_lr) * (1 - p), with p = (k - W - S) / (N - W - S)
                cosine        min_lr + (lr - min_lr) * (1 + cos(pi * p)) / 2, likewise (SGDR, arXiv 1608.03983)
                inverse_sqrt  lr / sqrt((k - W - S) / timescale + 1)

            p is at most 1: from step N + 1 on, where a scheduler that goes on may rise again, the rate is `min_lr`.

        Raises:
            UsageError: It is no step.
        """
        return self._after(_steps(step, name="step", least=1) - 1)

    def rates(self, steps: Iterable[int]) -> Iterator[float]:
        """`rate` of many steps, each a whole number of 1 or more, which is not looked at.

        Args:
            steps: Optimizer steps, 1-based.
        """
        return (self._after(step - 1) for step in steps)

    def _after(self, num_finished: int) -> float:
        """The rate behind so many finished steps."""
        if num_finished < self.num_warmup_steps:
            part = num_finished / self.num_warmup_steps
            return self.lr * (self.warmup_from + (1 - self.warmup_from) * part)
        num_stood = self.num_warmup_steps + self.num_stable_steps
        if num_finished < num_stood:
            return self.lr
        return self.min_lr + (self.lr - self.min_lr) * _LEFT[self.form](self, num_finished - num_stood, num_stood)

    def to_facts(self) -> dict[str, Any]:
        """What the event of an attempt holds: its settings by name, JSON-ready."""
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: object) -> Schedule:
        """The schedule that a log states.

        Args:
            facts: Of the event `schedule`; of a stranger's log, so anything.

        Raises:
            UsageError: No schedule was ever stated so, or one of another version, which is none to judge by.
        """
        if not isinstance(facts, Mapping):
            raise UsageError(f"The schedule in the log is {spelled(facts)}: expected its settings by name.")
        known = [setting.name for setting in fields(cls)]
        missing = [name for name in ("form", "lr") if name not in facts]
        unknown = [name for name in facts if name not in known]
        if missing:
            raise UsageError(f"The schedule in the log has no {missing[0]}: expected {', '.join(known)}.")
        if unknown:
            raise UsageError(
                f"The schedule in the log has {spelled(unknown[0])}, which is none of {', '.join(known)}: a newer "
                "Trimtab may have written it. Read it with that one."
            )
        return cls(**facts)


def _constant(_: Schedule, __: int, ___: int) -> float:
    return 1.0


def _linear(asked: Schedule, num_fallen: int, num_stood: int) -> float:
    return 1 - _part(asked, num_fallen, num_stood)


def _cosine(asked: Schedule, num_fallen: int, num_stood: int) -> float:
    return 0.5 * (1 + math.cos(math.pi * _part(asked, num_fallen, num_stood)))


def _part(asked: Schedule, num_fallen: int, num_stood: int) -> float:
    assert asked.num_steps is not None
    # At least one step, as transformers has it: a warm-up may be as long as the run, or longer.
    return min(1.0, num_fallen / max(1, asked.num_steps - num_stood))


def _inverse_sqrt(asked: Schedule, num_fallen: int, _: int) -> float:
    assert asked.timescale is not None
    return 1 / math.sqrt(num_fallen / asked.timescale + 1)


_LEFT: Final[Mapping[ScheduleForm, Callable[[Schedule, int, int], float]]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "inverse_sqrt": _inverse_sqrt,
}
"""What a form leaves of lr - min_lr, of its settings, the steps since it began to fall, and those that stood before."""


def _rate(value: Any, *, name: str) -> float:
    number = real_number(value, name=name)
    if not 0 <= number < math.inf:
        raise UsageError(f"{name} is {spelled(value)}: expected a finite number of 0 or more.")
    return number


def _steps(value: Any, *, name: str, least: int) -> int:
    expected = f"a whole number of optimizer steps, {least} or more."
    return whole_number(value, name=name, least=least, most=MAX_WHOLE, expected=expected)
