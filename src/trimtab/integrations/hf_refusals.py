"""What a Hugging Face `Trainer` is refused for, and why, before anything of it is touched.

Enters: a built trainer and what was asked for. Leaves: nothing, or an error that says what to do. A guard needs every
rank to train on rows of its own, and gradients of parameters that it can reach: those of one process, of DDP and of
FSDP2. Where it is refused, recording alone is not.
"""

from __future__ import annotations

from typing import Any, Final, Literal, get_args

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.notices import warn_setting

OnDropped = Literal["advance", "hold"]
"""What becomes of a schedule at a step that was dropped."""

_BY_EVALUATION: Final = ("reduce_lr_on_plateau", "greedy", "ReduceLROnPlateau", "GreedyLR")
"""Schedules that evaluations move and no step does, by their name in the arguments and by their class."""


def check_trainer(trainer: Any, *, guard: GuardConfig | None, on_dropped: OnDropped) -> None:
    """Refuses a trainer whose losses cannot be seen, or whose gradients a guard cannot keep out.

    Args:
        trainer: The `Trainer`.
        guard: Settings of the guard; None: the training is recorded only.
        on_dropped: What is asked for of its schedule.

    Raises:
        UsageError: It cannot be done; the message says what can.
    """
    if trainer.args.n_gpu > 1:
        raise UsageError(
            f"This trainer drives {trainer.args.n_gpu} GPUs from one process (DataParallel), where a micro-batch "
            "has several losses: set CUDA_VISIBLE_DEVICES to one GPU, or start it with torchrun."
        )
    if on_dropped not in get_args(OnDropped):
        raise UsageError(f'on_dropped must be "advance" or "hold", found {on_dropped!r}.')
    if guard is not None and guard.enabled:
        _check_gradients_are_in_reach(trainer)
    elif on_dropped == "hold":
        warn_setting('on_dropped="hold" does nothing without a guard, for no step is ever dropped: pass guard=.')
        return
    own = trainer.lr_scheduler
    schedule = type(own).__name__ if own is not None else trainer.args.lr_scheduler_type.value
    if on_dropped == "hold" and schedule in _BY_EVALUATION:
        raise UsageError(
            f'on_dropped="hold" cannot hold the schedule {schedule}: evaluations move it, not steps. Leave on_dropped '
            'at "advance".'
        )


def check_can_hold(trainer: Any) -> None:
    """Refuses to hold the schedule of a trainer, prepared for training, that does not ask its optimizer whether to.

    Raises:
        UsageError: Its schedule advances whatever becomes of a step.
    """
    # Private to accelerate, and the one way in which its schedulers hear of a step that was not taken; a test holds it.
    if not hasattr(trainer.optimizer, "_is_overflow"):
        raise UsageError(
            f'on_dropped="hold" knows the optimizers of accelerate 1.15, found {type(trainer.optimizer).__name__}, '
            'whose schedule cannot be held: leave on_dropped at "advance".'
        )


def _check_gradients_are_in_reach(trainer: Any) -> None:
    kind = trainer.accelerator.distributed_type.value
    if not (kind in ("NO", "FSDP") or kind.startswith("MULTI_")):
        raise UsageError(
            f"A guard keeps gradients out by hooks on the parameters, and {kind} keeps its gradients elsewhere: train "
            "with DDP or FSDP2, or pass guard=None to record only."
        )
    if kind == "FSDP" and not trainer.accelerator.is_fsdp2:
        raise UsageError(
            "A guard acts under FSDP2, and this trainer is set up with the first FSDP, whose parameters have no "
            'gradients of their own: set fsdp_config={"version": 2}, or pass guard=None to record only.'
        )
    shares = {
        "tensor": trainer.get_tp_size(),
        "context": trainer.get_cp_size(),
        "sequence": trainer.get_sp_size(),
    }
    shared = [f"{name} parallelism over {size}" for name, size in shares.items() if size > 1]
    if shared:
        raise UsageError(
            f"A guard needs each rank to train on rows of its own, found {' and '.join(shared)} ranks, which share a "
            "micro-batch: train with DDP or FSDP2, or pass guard=None to record only."
        )
