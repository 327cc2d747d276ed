"""Puts a plan in place on every rank, or everything back on every rank.

    moments, scheduler, scaler, learning rate, weights   what a library or a model refuses, it refuses here
    run                                                  a guard of other settings refuses
    data                                                 a loader cannot be asked where it is: it could begin to read
    random numbers                                       last, for what came before may have drawn some

Enters: a `Plan` that every rank has found to fit. Leaves: everything as it was saved, or as it was before, and which of
the two. Invariants: no rank goes on to a next line before all are through with the last; what could not be put back is
named, and never passed over.

Whether code that is not ours (hooks, a model's extra state, a scheduler of somebody's own, a loader) takes its state
shows only when it is given it. What stood in its place is kept until then: the old weights in host memory, one tensor
after the other in the place of the loaded one; the old moments as they are, for torch puts others in their place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

from trimtab.errors import CheckpointError, TrimtabError, UsageError
from trimtab.text import listed, plain
from trimtab.torch.checkpoint_plan import Goals, Plan
from trimtab.torch.checkpoint_ranks import RanksTogether, spelled_error
from trimtab.torch.checkpoint_source import Source
from trimtab.torch.loaded_state import Loaded
from trimtab.torch.lr import rebase_lr
from trimtab.torch.lr_schedules import leaves, unwrapped
from trimtab.torch.rng import checked_rng, rng_state
from trimtab.torch.same_state import is_same


def put_all(plan: Plan, goals: Goals, *, source: Source, ranks: RanksTogether) -> None:
    """Puts everything in place; every rank calls it.

    Raises:
        CheckpointError: Something refused its state, on whichever rank; says whether all is as it was.
        UsageError: `run` did; likewise.
    """
    before = _Before(goals, plan.loaded)

    def put(stage: Callable[[Plan, Goals, _Before], None]) -> None:
        with _refused_as(source):
            stage(plan, goals, before)

    try:
        for stage in (_put_training, _put_run, _put_data):
            ranks.of_all(partial(put, stage))
        ranks.of_all(plan.rng.restore if plan.rng is not None else lambda: None)
    except BaseException as error:  # noqa: BLE001 - `_refuse` raises it again
        _refuse(error, left=before.put_back(), source=source, ranks=ranks)


def put_weights(loaded: Loaded, *, source: Source, ranks: RanksTogether) -> None:
    """Puts the weights alone in place; every rank calls it.

    Raises:
        CheckpointError: As `put_all`.
    """
    before = _Before(None, loaded)

    def put() -> None:
        with _refused_as(source):
            loaded.put_weights()

    try:
        ranks.of_all(put)
    except BaseException as error:  # noqa: BLE001 - `_refuse` raises it again
        _refuse(error, left=before.put_back(), source=source, ranks=ranks)


def _put_training(plan: Plan, goals: Goals, before: _Before) -> None:
    optimizer = goals.optimizer
    assert optimizer is not None
    plan.loaded.put_moments()
    for number, (group, old) in enumerate(zip(optimizer.param_groups, before.groups, strict=True)):
        # An option that is newer than the checkpoint torch itself puts in.
        missing = sorted((optimizer.defaults.keys() & old.keys()) - group.keys())
        if missing:
            raise CheckpointError(f"parameter group {number} of its optimizer lacks {plain(listed(missing))}")
    if goals.scheduler is not None:
        before.keep("scheduler", goals.scheduler)
        goals.scheduler.load_state_dict(copy.deepcopy(plan.values["scheduler"]))
    if goals.scaler is not None and plan.values["scaler"]:
        before.keep("scaler", goals.scaler)
        goals.scaler.load_state_dict(plan.values["scaler"])
    if goals.lr is not None:
        plan.rebase = rebase_lr(optimizer, goals.scheduler, goals.lr, quiet=True)
    plan.loaded.put_weights()


def _put_run(plan: Plan, goals: Goals, before: _Before) -> None:
    state = plan.run["run"]
    if goals.run is not None and state is not None:
        before.keep("run", goals.run)
        goals.run.load_state_dict(state)
    elif goals.run is not None:
        plan.remarks.append("the checkpoint holds no state of a run: a guard begins with an empty history")
    elif state is not None:
        plan.remarks.append(
            "the state of the run that is in the checkpoint (guard, log) is left aside: no run was given"
        )


def _put_data(plan: Plan, goals: Goals, before: _Before) -> None:
    if goals.data is not None and plan.data is not None:
        before.begin_data()
        goals.data.load_state_dict(plan.data)


class _Before:
    """What was there before a load, as far as that has come.

    Attributes:
        groups: What stood in the optimizer's parameter groups.
    """

    def __init__(self, goals: Goals | None, loaded: Loaded) -> None:
        """Keeps what takes no copy; the rest is kept when its turn comes."""
        self._loaded = loaded
        self._rng = checked_rng(rng_state(), where="this process")
        self._optimizer = goals.optimizer if goals is not None else None
        self.groups: list[dict[str, Any]] = []
        if self._optimizer is not None:
            self._groups, self._state = self._optimizer.param_groups, self._optimizer.state
            self.groups = [dict(group) for group in self._groups]
        self._kept: list[tuple[str, Any, Any]] = []
        self._attributes: list[tuple[Any, dict[str, Any]]] = []
        self._has_begun_data = False

    def keep(self, name: str, holder: Any) -> None:
        """Keeps the state of something that is loaded next."""
        state = copy.deepcopy(holder.state_dict()) if callable(getattr(holder, "state_dict", None)) else None
        self._kept.append((name, holder, state))
        if name == "scheduler":
            inside = unwrapped(holder)
            # Its `load_state_dict` replaces them, and may refuse to do it again.
            self._attributes = [(one, dict(vars(one))) for one in (inside, *leaves(inside)) if hasattr(one, "__dict__")]

    def begin_data(self) -> None:
        """Tells that the data position is loaded next."""
        self._has_begun_data = True

    def put_back(self) -> list[str]:
        """Puts everything back; gives the names of what may be half loaded, none of what is as it was. Never raises."""
        left = ["data"] if self._has_begun_data else []
        for name, holder, state in reversed(self._kept):
            if name == "scheduler":
                for one, attributes in self._attributes:
                    vars(one).clear()
                    vars(one).update(attributes)
            if not _is_at(holder, state):
                with suppress(Exception):
                    holder.load_state_dict(copy.deepcopy(state))
                if not _is_at(holder, state):
                    left.append(name)
        if self._optimizer is not None:
            for group, entries in zip(self._groups, self.groups, strict=True):
                group.clear()
                group.update(entries)
            self._optimizer.param_groups, self._optimizer.state = self._groups, self._state
        try:
            is_back = self._loaded.take_back()
        except Exception:  # noqa: BLE001 - the model's own code; it is named, as what refused the load is
            is_back = False
        if not is_back:
            left.append("model")
        self._rng.restore()
        return left


def _is_at(holder: Any, state: Any) -> bool:
    try:
        return state is not None and is_same(holder.state_dict(), state)
    except Exception:  # noqa: BLE001 - somebody else's code, of which it is not known then
        return False


@contextmanager
def _refused_as(source: Source) -> Iterator[None]:
    """Makes what somebody else's code raises an error that names the checkpoint."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{source.where}: {error}") from error
    except TrimtabError:
        raise
    except Exception as error:
        raise CheckpointError(f"{source.where}: its state was refused: {spelled_error(error)}") from error


def _refuse(error: BaseException, *, left: list[str], source: Source, ranks: RanksTogether) -> NoReturn:
    """Raises what kept a checkpoint from being loaded, and what became of what it was loaded into."""
    if not isinstance(error, UsageError | CheckpointError):
        raise error
    is_told = True
    try:
        left = sorted({name for of_rank in ranks.of_all(lambda: left) for name in of_rank})
        instead = ranks.from_first(source.instead) if isinstance(error, CheckpointError) else ""
    except CheckpointError:  # a rank is gone: nobody knows of it
        is_told, instead = False, ""
    here = "" if is_told else " on this rank"
    became = f"Nothing was loaded{here}."
    if left:
        became = f"{listed(left)} may be half loaded{here}: make them anew before you go on."
    text = f"{str(error).rstrip('.')}. {became}{f' {instead}' if instead else ''}"
    raise type(error)(text) from error
