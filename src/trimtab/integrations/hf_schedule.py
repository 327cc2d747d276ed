"""The learning rates that a Trainer was asked for, as its arguments state them.

Enters: a trainer whose training begins. Leaves: a `Schedule` for its log, or nothing where the arguments do not say
what each step's rate is to be. Invariant: what a scheduler holds is never asked, for a checkpoint's state may have put
it back. Where a step that is not taken holds the trainer's scheduler, the schedule says so (`waits_for_dropped`): the
rates then come so many steps later, which the reasons of the steps in the log tell.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from torch.optim.lr_scheduler import LambdaLR

from trimtab.errors import UsageError
from trimtab.rules.schedule import Schedule
from trimtab.run import RunCore
from trimtab.torch.lr import inside_of

_HALF_A_WAVE: Final = 0.5
"""`num_cycles` of a cosine that falls once: the default of transformers."""

_BUILDERS: Final = ("create_optimizer", "create_scheduler", "get_optimizer_cls_and_kwargs")
"""Methods by which a trainer makes its optimizer and its scheduler of its arguments."""


class AskedSchedule:
    """What the arguments of one trainer ask of its learning rate."""

    def __init__(self, trainer: Any, *, lr_on_resume: float | None, holds: bool) -> None:
        """Knows the trainer, before anything is hooked on it.

        Args:
            trainer: The `Trainer`.
            lr_on_resume: The rate that a training which resumes goes on with; None: that of the arguments is meant.
            holds: Whether its schedule is held at a step that its guard drops.
        """
        self._trainer = trainer
        self._lr_on_resume = lr_on_resume
        self._holds = holds
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
        waits = self._holds or _waits_for_overflows(trainer)
        schedule = schedule_of(trainer.args, lr=lr, num_steps=trainer.state.max_steps, waits_for_dropped=waits)
        if schedule is not None:
            core.state_schedule(schedule)


def schedule_of(args: Any, *, lr: float, num_steps: int, waits_for_dropped: bool = False) -> Schedule | None:
    """The schedule that transformers builds of a training's arguments.

    Args:
        args: The `TrainingArguments`.
        lr: Learning rate of the whole: what the optimizer begins with.
        num_steps: Optimizer steps of the training, as the trainer has counted them.
        waits_for_dropped: Whether it stands still at a step that is not taken.

    Returns:
        None where it is none that a `Schedule` can state.
    """
    name = str(getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type))
    settings_of, further = _SETTINGS_OF.get(name), dict(args.lr_scheduler_kwargs or {})
    if settings_of is None:
        return None
    asked = _Asked(lr=lr, num_steps=num_steps, num_warmup_steps=args.get_warmup_steps(num_steps))
    try:
        settings = settings_of(further, asked)
        if settings is None or further:
            return None
        usual = dict(lr=lr, num_steps=num_steps, num_warmup_steps=asked.num_warmup_steps)
        return Schedule(**{**usual, **settings, "waits_for_dropped": waits_for_dropped})
    except (UsageError, TypeError):  # a floor above the rate, say, to which transformers rises; or a text for a number
        return None


class _Asked(NamedTuple):
    """What every schedule of transformers is given."""

    lr: float
    num_steps: int
    num_warmup_steps: int


# What the `lr_scheduler_kwargs` of a name come to as settings of a `Schedule`; what is known of them is taken out, and
# what is left, or None, is nothing that can be stated.


def _constant(further: dict[str, Any], _: _Asked) -> dict[str, Any]:
    further.clear()  # transformers passes nothing on
    return dict(form="constant")


def _constant_at_once(further: dict[str, Any], asked: _Asked) -> dict[str, Any]:
    return dict(_constant(further, asked), num_warmup_steps=0)


def _linear(_: dict[str, Any], __: _Asked) -> dict[str, Any]:
    return dict(form="linear")


def _cosine(further: dict[str, Any], _: _Asked) -> dict[str, Any] | None:
    return dict(form="cosine") if further.pop("num_cycles", _HALF_A_WAVE) == _HALF_A_WAVE else None


def _cosine_with_min_lr(further: dict[str, Any], asked: _Asked) -> dict[str, Any] | None:
    # transformers takes one of them, and refuses both.
    part, floor = further.pop("min_lr_rate", None), further.pop("min_lr", None)
    settings = _cosine(further, asked)
    return settings and dict(settings, min_lr=floor if floor is not None else part * asked.lr)


def _inverse_sqrt(further: dict[str, Any], _: _Asked) -> dict[str, Any]:
    return dict(form="inverse_sqrt", timescale=further.pop("timescale", None))


def _warmup_stable_decay(further: dict[str, Any], asked: _Asked) -> dict[str, Any] | None:
    form, part = further.pop("decay_type", "cosine"), further.pop("min_lr_ratio", 0)
    num_stable, num_decay = further.pop("num_stable_steps", None), further.pop("num_decay_steps", 0)
    settings = dict(form="linear") if form == "linear" else _cosine(further, asked) if form == "cosine" else None
    if further.pop("warmup_type", "linear") != "linear" or settings is None or num_decay < 1:
        return None
    further.pop("num_cycles", None)  # a line has no waves
    if num_stable is None:
        num_stable = asked.num_steps - asked.num_warmup_steps - num_decay
    # It ends where its three phases do, whatever the training's length is.
    num_steps = asked.num_warmup_steps + num_stable + num_decay
    return dict(
        settings, num_steps=num_steps, num_stable_steps=num_stable, min_lr=part * asked.lr, warmup_from=float(part)
    )


_SETTINGS_OF: Final[Mapping[str, Callable[[dict[str, Any], _Asked], dict[str, Any] | None]]] = {
    "linear": _linear,
    "cosine": _cosine,
    "cosine_with_min_lr": _cosine_with_min_lr,
    "constant": _constant_at_once,
    "constant_with_warmup": _constant,
    "inverse_sqrt": _inverse_sqrt,
    "warmup_stable_decay": _warmup_stable_decay,
}
"""Names of `lr_scheduler_type` whose rates a `Schedule` can state. Seen with transformers 5.24."""


def _waits_for_overflows(trainer: Any) -> bool:
    """Whether the trainer leaves its scheduler alone at a step that a gradient scaler has left out.

    It asks accelerate, which sees whether the optimizer was called: a fused one always is, and does nothing. Seen with
    accelerate 1.15.
    """
    scaler = trainer.accelerator.scaler
    is_called = getattr(inside_of(trainer.optimizer), "_step_supports_amp_scaling", False)
    return scaler is not None and scaler.is_enabled() and not is_called


def _is_of_host(trainer: Any, name: str) -> bool:
    """Whether a method is that of transformers or TRL, not one of the user's class or hung on the trainer."""
    owner = next((kind for kind in type(trainer).__mro__ if name in vars(kind)), None)
    return (
        owner is not None
        and owner.__module__.partition(".")[0] in ("transformers", "trl")
        and name not in vars(trainer)
    )
