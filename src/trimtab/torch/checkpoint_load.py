"""Goes on from a checkpoint: everything is read and found to fit, then put in place, then compared with what was saved.

    plan, on every rank   what can be refused is refused here                                     nothing changes
    put                   in place on every rank, or back on every rank (`trimtab.torch.checkpoint_put`)
    compare               learning rates and the scheduler's count with those that were saved     -> remarks

Enters: a `Source` that was verified, and the objects to load into. Leaves: them as they were at the save, and a
`Resumed`. Invariants: no rank puts anything in place before all have found that it fits; a load that is refused leaves
everything as it was on every rank, or names what it could not put back.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from trimtab.errors import CheckpointError, TrimtabError
from trimtab.notices import say, warn
from trimtab.text import plain
from trimtab.torch.checkpoint_plan import Goals, Plan, plan_all, plan_weights
from trimtab.torch.checkpoint_put import put_all, put_weights
from trimtab.torch.checkpoint_ranks import RanksTogether, spelled_error
from trimtab.torch.checkpoint_source import Source
from trimtab.torch.health import Nonfinite
from trimtab.torch.loaded_state import Loaded
from trimtab.torch.lr import Rebase, asked_rates, built_rates, kept_rates

_LOG: Final = "checkpoint"

_COUNTED: Final = ("base_lrs", "_last_lr", "_step_count", "last_epoch")
"""What a scheduler remembers of where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """What `Checkpointer.load` went on from.

    Attributes:
        path: The checkpoint.
        step: Optimizer steps that are behind it: the next one is `step + 1`.
        loss: The loss as it was logged then; None where none was.
        extra: What was saved as `extra`.
        data: The data position of this rank, where `data` was a mapping or none was given to put it into; where another
            number of ranks saved, only what all of them had alike.
        data_of_ranks: The data position of each rank that saved.
        best_eval: What was saved as `best_eval`.
        config: What was saved as `config`.
        lr: Learning rate of each parameter group, as the next step will use it.
        run_id: The run; None for a fresh start.
        started_fresh: Whether only the weights were loaded.
        remarks: What is not as it was at the save, a sentence each.
    """

    path: Path
    step: int
    loss: float | None = None
    extra: Any = None
    data: Any = None
    data_of_ranks: tuple[Any, ...] = ()
    best_eval: Any = None
    config: Any = None
    lr: tuple[float, ...] = ()
    run_id: str | None = None
    started_fresh: bool = False
    remarks: tuple[str, ...] = ()


def begin_anew(source: Source, goals: Goals, *, ranks: RanksTogether) -> Resumed:
    """Loads the weights alone, on every rank.

    Raises:
        CheckpointError: They are not those of this model, or it refuses them; says whether all is as it was.
    """
    loaded: list[Loaded] = []
    ranks.of_all(lambda: loaded.append(plan_weights(source, goals.model)))
    put_weights(loaded[0], source=source, ranks=ranks)
    remark = (
        f"fresh start from the weights of {source.where}: steps count from 0; optimizer, schedule and random numbers "
        "begin anew"
    )
    if ranks.is_first:
        say(_LOG, remark)
        for earlier in source.remarks:
            warn(_LOG, earlier)
    return Resumed(path=source.path, step=0, started_fresh=True, remarks=(*source.remarks, remark))


def go_on(source: Source, goals: Goals, *, ranks: RanksTogether) -> tuple[Resumed, dict[str, Nonfinite]]:
    """Loads all of it, on every rank; also gives what was not finite when the run began.

    Raises:
        CheckpointError: It does not fit, or something refuses its state; says whether all is as it was.
        UsageError: The learning rate cannot be changed, or `run` refuses its state; likewise.
    """
    assert goals.optimizer is not None
    assert source.manifest is not None
    plans: list[Plan] = []
    ranks.of_all(lambda: plans.append(_planned(source, goals, ranks=ranks)))
    plan = plans[0]
    asked = asked_rates(goals.optimizer, goals.scheduler)
    put_all(plan, goals, source=source, ranks=ranks)
    if goals.lr is None:
        saved = built_rates(goals.optimizer, goals.scheduler)
        plan.remarks.extend(kept_rates(saved, asked, option="lr="))
    plan.remarks.extend(_unlike_saved(plan, goals))
    resumed = Resumed(
        path=source.path,
        step=plan.run["step"],
        loss=plan.values.get("loss"),
        extra=plan.values.get("extra"),
        data=plan.data,
        data_of_ranks=plan.data_of_ranks,
        best_eval=plan.values.get("best_eval"),
        config=plan.values.get("config"),
        lr=_rates(goals.optimizer),
        run_id=source.manifest.run_id,
        remarks=tuple(plan.remarks),
    )
    if ranks.is_first:
        _tell(resumed, goals, rebase=plan.rebase)
    return resumed, plan.baseline


def _planned(source: Source, goals: Goals, *, ranks: RanksTogether) -> Plan:
    """The plan; what a stranger may have put into a file in the place of what was expected is refused as damage."""
    try:
        return plan_all(source, goals, rank=ranks.rank, world_size=ranks.world_size)
    except TrimtabError:
        raise
    except Exception as error:
        raise CheckpointError(
            f"{source.where}: what it holds is not what a checkpoint of this version holds ({spelled_error(error)}); "
            "pick another one."
        ) from error


def _unlike_saved(plan: Plan, goals: Goals) -> Iterator[str]:
    """What is not as it was saved, though it was loaded: an object may make something else of its state."""
    optimizer, scheduler = goals.optimizer, goals.scheduler
    assert optimizer is not None
    assert plan.loaded.state is not None
    if goals.lr is None:
        for number, (saved, group) in enumerate(zip(plan.groups, optimizer.param_groups, strict=True)):
            for name in ("lr", "initial_lr"):
                if name in saved and float(saved[name]) != float(group.get(name, math.nan)):
                    yield (
                        f"{name} of parameter group {number} is {group.get(name)!r} after loading, and was saved as "
                        f"{saved[name]!r}"
                    )
        if scheduler is not None:
            now, then = scheduler.state_dict(), plan.values["scheduler"]
            for name in _COUNTED:
                if name in then and now.get(name) != then[name]:
                    yield f"{name} of the scheduler is {now.get(name)!r} after loading, and was saved as {then[name]!r}"
    rounded = 0
    now_state, saved_state = optimizer.state_dict()["state"], plan.loaded.state["state"]
    for number, values in saved_state.items():
        for key, value in values.items():
            held = now_state.get(number, {}).get(key)
            if isinstance(value, torch.Tensor) and isinstance(held, torch.Tensor):
                rounded += held.dtype != value.dtype
    if rounded:
        yield f"{rounded} moments were saved in another dtype than the optimizer keeps them in: they are not bit-equal"


def _tell(resumed: Resumed, goals: Goals, *, rebase: Rebase | None) -> None:
    """One line, one more for each remark, and an event in the log of the run; another for a rate that was asked for."""
    loss = f", loss {resumed.loss:.6g}" if resumed.loss is not None else ""
    say(_LOG, f"resumed from {plain(str(resumed.path))}: step {resumed.step}{loss}", level=logging.INFO)
    if rebase is not None and rebase.old != rebase.new:
        say(_LOG, str(rebase), level=logging.INFO)
    for remark in resumed.remarks:
        warn(_LOG, remark)
    record = getattr(goals.run, "event", None)
    if callable(record):
        record("resumed", checkpoint=str(resumed.path), saved_step=resumed.step, remarks=list(resumed.remarks))
        if rebase is not None:
            record("lr_rebase", old=rebase.old, new=rebase.new)


def _rates(optimizer: torch.optim.Optimizer) -> tuple[float, ...]:
    return tuple(float(group["lr"]) for group in optimizer.param_groups)
