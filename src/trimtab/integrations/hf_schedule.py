"""The learning rates that a Trainer was asked for, as its arguments state them.

Enters: a trainer whose training begins. Leaves: a `Schedule` for its log, or nothing where the arguments do not say
what each step's rate is to be. Invariant: what a scheduler holds is never asked, for a checkpoint's state may have put
it back. A step that is not taken may hold the trainer's scheduler (`on_dropped="hold"`, an overflow of a gradient
scaler): the rates then come so many steps later, which the reasons of the steps in the log tell.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final

from torch.optim.lr_scheduler import LambdaLR

from trimtab.errors import UsageError
from trimtab.rules.schedule import Schedule, ScheduleForm
from trimtab.run import RunCore

_FORMS: Final[Mapping[str, ScheduleForm]] = {
    "linear": "linear",
    "cosine": "cosine",
    "cosine_with_min_lr": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
}
"""Names of `lr_scheduler_type` whose rates a `Schedule` can state. Seen with transformers 5.24."""

_HALF_A_WAVE: Final = 0.5
"""`num_cycles` of a cosine that falls once: the default of transformers."""

_BUILDERS: Final = ("create_optimizer", "create_scheduler", "get_optimizer_cls_and_kwargs")
"""Methods by which a trainer makes its optimizer and its scheduler of its arguments."""


class AskedSchedule:
    """What the arguments of one trainer ask of its learning rate."""

    def __init__(self, trainer: Any, *, lr_on_resume: float | None) -> None:
        """Knows the trainer, before anything is hooked on it.

        Args:
            trainer: The `Trainer`.
            lr_on_resume: The rate that a training which resumes goes on with; None: that of the arguments is meant.
        """
        self._trainer = trainer
        self._lr_on_resume = lr_on_resume
        self._builds_both = all(_is_of_host(trainer, name) for name in _BUILDERS)
        self._has_made_optimizer = False

    def hook(self) -> None:
        """Notes whether the trainer makes its optimizer by itself: one that was handed over has a rate of its own."""
        create_optimizer: Callable[..., Any] = self._trainer.create_optimizer

        @functools.wraps(create_optimizer)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._trainer.optimizer is None:
                self._has_made_optimizer = True
            return create_optimizer(*args, **kwargs)

        self._trainer.create_optimizer = noted

    def begin(self, core: RunCore, *, resumes: bool) -> None:
        """Has the schedule of the training that begins written down, where its arguments say what it is.

        Args:
            core: The run.
            resumes: Whether it goes on from a checkpoint.
        """
        trainer = self._trainer
        is_made = self._builds_both and self._has_made_optimizer and trainer.optimizer_cls_and_kwargs is None
        if not is_made or trainer.is_deepspeed_enabled or type(trainer.lr_scheduler) is not LambdaLR:
            return
        lr = self._lr_on_resume if resumes and self._lr_on_resume is not None else trainer.args.learning_rate
        schedule = schedule_of(trainer.args, lr=lr, num_steps=trainer.state.max_steps)
        if schedule is not None:
            core.state_schedule(schedule)


def schedule_of(args: Any, *, lr: float, num_steps: int) -> Schedule | None:
    """The schedule that transformers builds of a training's arguments.

    Args:
        args: The `TrainingArguments`.
        lr: Learning rate of the whole: what the optimizer begins with.
        num_steps: Optimizer steps of the training, as the trainer has counted them.

    Returns:
        None where it is none that a `Schedule` can state.
    """
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    form, further = _FORMS.get(name), dict(args.lr_scheduler_kwargs or {})
    if form is None:
        return None
    min_lr = 0.0
    if form == "cosine" and further.pop("num_cycles", _HALF_A_WAVE) != _HALF_A_WAVE:
        return None
    if name == "cosine_with_min_lr":
        # transformers takes one of them, and refuses both.
        part, floor = further.pop("min_lr_rate", None), further.pop("min_lr", None)
        min_lr = floor if floor is not None else part * lr
    if further and form != "constant":  # to which transformers passes nothing on
        return None
    try:
        return Schedule(
            form=form,
            lr=lr,
            num_steps=num_steps,
            num_warmup_steps=0 if name == "constant" else args.get_warmup_steps(num_steps),
            min_lr=min_lr,
        )
    except UsageError:  # a floor above the rate, say, to which transformers rises
        return None


def _is_of_host(trainer: Any, name: str) -> bool:
    """Whether a method is that of transformers or TRL, not one of the user's class or hung on the trainer."""
    owner = next((kind for kind in type(trainer).__mro__ if name in vars(kind)), None)
    return (
        owner is not None
        and owner.__module__.partition(".")[0] in ("transformers", "trl")
        and name not in vars(trainer)
    )
