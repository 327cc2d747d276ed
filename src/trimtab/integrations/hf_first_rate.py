"""The rate of a resumed Trainer's first step, where it is not that of the schedule which the trainer has built.

Enters: a trainer that has loaded what it resumes from. Leaves: a line, or nothing. Invariant: nothing is changed.

A checkpoint puts back the rate that its own schedule had set for the next step; of how that schedule was made (its
length, its warm-up) it holds nothing. So a training with another `max_steps` takes one step at the old schedule's rate,
and every later one at its own.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any, Final

from torch.optim.lr_scheduler import LambdaLR

from trimtab.notices import say
from trimtab.resume.foreign.hf import MAX_JSON_BYTES
from trimtab.resume.foreign.hf import STATE_NAME as TRAINER_STATE
from trimtab.resume.foreign.payload import Unsound, read_json_object
from trimtab.resume.rates import SAME_LR
from trimtab.text import plain

_IN_CHUNKS: Final = (
    " A training in chunks has the final max_steps (or num_train_epochs) from its first chunk on, and ends each by a "
    "callback that sets control.should_training_stop."
)


def tell_first_rate(trainer: Any, *, folder: Path) -> None:
    """Says with which rate the first step is taken, where the trainer's schedule has another one there.

    Args:
        trainer: The `Trainer`, whose training begins.
        folder: The checkpoint that it has loaded.
    """
    if type(trainer.lr_scheduler) is not LambdaLR:  # what transformers builds, but where evaluations move the rate
        return
    base, factor = float(trainer.lr_scheduler.base_lrs[0]), trainer.lr_scheduler.lr_lambdas[0]
    meant, set_to = (
        base * float(factor(trainer.lr_scheduler.last_epoch)),
        float(trainer.optimizer.param_groups[0]["lr"]),
    )
    if math.isclose(meant, set_to, rel_tol=SAME_LR, abs_tol=1e-12 * base):
        return
    saved, now = _max_steps_in(folder), trainer.state.max_steps
    is_longer = saved is not None and saved != now
    why = (
        f"max_steps was {saved} when the checkpoint was saved, and is {now}"
        if is_longer
        else "its schedule had other settings than the trainer's has"
    )
    step = trainer.state.global_step + 1
    say(
        "hf",
        f"{plain(folder.name)}: {why}. Step {step} is taken at {set_to:.4g}, the rate in the checkpoint, where the "
        f"trainer's schedule has {meant:.4g}; every later step has the rate of that schedule. "
        f"attach(lr_on_resume={base:g}) takes the first one at it too.{_IN_CHUNKS if is_longer else ''}",
    )


def _max_steps_in(folder: Path) -> int | None:
    """What a checkpoint was to be trained to; None where it does not say."""
    try:
        state = read_json_object(folder / TRAINER_STATE, max_bytes=MAX_JSON_BYTES, loads=json.loads)
    except Unsound:
        return None
    found = state.get("max_steps")
    return found if isinstance(found, int) and not isinstance(found, bool) else None
