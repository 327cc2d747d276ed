"""What a checkpoint holds for the objects that it is to be loaded into, read and found to fit; nothing changes.

Enters: a `Source` that was verified, and the objects. Leaves: a `Plan`. Invariant: every reason to refuse that can be
known without changing anything is found here: names and shapes of weights, parameter groups, kinds of optimizer and
scheduler, parts that are there and not asked for or the reverse, random numbers that no generator takes.
"""

from __future__ import annotations

import copy
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from trimtab.errors import CheckpointError, UsageError
from trimtab.resume.foreign.part_keys import keys_of
from trimtab.resume.info import CheckpointInfo
from trimtab.text import listed, plain
from trimtab.torch.checkpoint_arguments import check_model, check_optimizer, check_state_holder, kinds_of
from trimtab.torch.checkpoint_source import Source, baseline_in, read_torch_file
from trimtab.torch.health import Nonfinite
from trimtab.torch.loaded_state import Loaded, part_of_whole, read
from trimtab.torch.lr import Rebase, check_lr, check_rebase, inside_of
from trimtab.torch.lr_schedules import unwrapped
from trimtab.torch.module_names import bare_name
from trimtab.torch.naming import weights_of
from trimtab.torch.optimizer_names import PARAMS, NamedState, numbered
from trimtab.torch.rng import CheckedRng, checked_rng
from trimtab.torch.state_fit import refuse_unlike, refuse_unlike_groups, shapes
from trimtab.torch.training_fit import refuse_unlike_schedule, refuse_unlike_state

_FRESH = "or pass optimizer=None for a fresh start from the weights alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """What a checkpoint is loaded into; `Checkpointer.load` says what each is."""

    model: nn.Module
    optimizer: torch.optim.Optimizer | None
    scheduler: Any
    lr: float | None
    scaler: Any
    run: Any
    data: Any

    def check(self) -> None:
        """Refuses, with `UsageError`, what makes no sense."""
        check_model(self.model)
        if self.optimizer is None:
            given = [name for name in ("scheduler", "lr", "scaler", "run", "data") if getattr(self, name) is not None]
            if given:
                raise UsageError(
                    f"{listed(given)} given without an optimizer: a fresh start takes the weights alone. Pass the "
                    "optimizer to go on, or leave the rest out too."
                )
            return
        check_optimizer(self.optimizer)
        if self.lr is not None:
            check_lr(self.lr)
        for name in ("scheduler", "scaler", "run", "data"):
            check_state_holder(getattr(self, name), name=name, method="load_state_dict")

    def alike(self, which: CheckpointInfo | str | os.PathLike[str]) -> dict[str, object]:
        """What has to be the same on every rank, by what to call it."""
        path = which.path if isinstance(which, CheckpointInfo) else which
        if not isinstance(path, str | os.PathLike):
            raise UsageError(
                f"load takes what pick() gave, or the path of a checkpoint, found a {type(path).__name__}: for a step "
                "pass its path, as in load(checkpoints.folder / 'step_500')."
            )
        parts = [part.name for part in fields(self) if part.name != "lr" and getattr(self, part.name) is not None]
        return {
            "the checkpoint": plain(os.path.abspath(path)),
            "what is loaded": listed(parts),
            "lr": None if self.lr is None else float(self.lr),
        }


@dataclass(slots=True, kw_only=True)
class Plan:
    """What was read and found to fit.

    Attributes:
        run: What stands in `run.pt`.
        loaded: Weights and moments.
        rng: The random numbers; None where this rank has none saved.
        data: This rank's data position.
        data_of_ranks: That of each rank that saved.
        baseline: What was not finite when the run began.
        remarks: What is to be said.
        rebase: The learning rate that was asked for, once it is set; None: none was.
    """

    run: Mapping[str, Any]
    loaded: Loaded
    rng: CheckedRng | None
    data: Any
    data_of_ranks: tuple[Any, ...]
    baseline: dict[str, Nonfinite]
    remarks: list[str] = field(default_factory=list)
    rebase: Rebase | None = None

    @property
    def values(self) -> Mapping[str, Any]:
        """The parts of `run.pt` that are values by themselves."""
        values: Mapping[str, Any] = self.run["values"]
        return values

    @property
    def groups(self) -> list[Mapping[str, Any]]:
        """The parameter groups as they were saved."""
        assert self.loaded.state is not None
        groups: list[Mapping[str, Any]] = self.loaded.state["param_groups"]
        return groups


def plan_weights(source: Source, model: nn.Module) -> Loaded:
    """Reads the weights alone.

    Raises:
        CheckpointError: They are not those of this model.
    """
    if source.manifest is None:
        state = _weights_in(read_torch_file(source.path, maps=True), like=weights_of(model))
        return part_of_whole(state, None, model=model, where=source.where)
    folder = source.sharded_folder
    if folder is not None:
        return read(folder, model=model)
    return part_of_whole(source.model(), None, model=model, where=source.where)


def plan_all(source: Source, goals: Goals, *, rank: int, world_size: int) -> Plan:
    """Reads all that this rank needs to go on.

    Args:
        source: The checkpoint.
        goals: What it is loaded into.
        rank: This process's place among the ranks.
        world_size: How many they are.

    Raises:
        CheckpointError: It does not fit, or is damaged.
    """
    assert goals.optimizer is not None
    assert source.manifest is not None
    run = source.run()
    _check_kinds(run, goals, where=source.where)
    loaded = _plan_training(source, run, goals.model, goals.optimizer)
    if goals.scheduler is not None:
        refuse_unlike_schedule(run["values"]["scheduler"], goals.scheduler, where=source.where)
    if goals.lr is not None:
        _try_rate(goals, loaded, run["values"].get("scheduler"))
    saved_ranks = source.manifest.world_size
    own = source.of_rank(rank) if rank < saved_ranks else None
    of_ranks = [own if other == rank else source.of_rank(other) for other in range(saved_ranks)]
    data_of_ranks = tuple(state.get("data") if state is not None else None for state in of_ranks)
    plan = Plan(
        run=run,
        loaded=loaded,
        rng=checked_rng(own.get("rng"), where=source.where) if own is not None else None,
        data=_data_of(data_of_ranks, rank=rank, world_size=world_size),
        data_of_ranks=data_of_ranks,
        baseline=baseline_in(run, where=source.where),
        remarks=list(source.remarks),
    )
    if plan.rng is not None:
        plan.remarks.extend(plan.rng.remarks)
    plan.remarks.extend(_on_ranks(plan, saved=saved_ranks, now=world_size))
    plan.remarks.extend(_on_dtypes(loaded))
    if goals.data is not None and plan.data is None and not any(position is not None for position in data_of_ranks):
        raise CheckpointError(
            f"{source.where}: holds no data position, and data was given to put one into: leave data out, and place "
            "the loader yourself."
        )
    return plan


def _plan_training(
    source: Source, run: Mapping[str, Any], model: nn.Module, optimizer: torch.optim.Optimizer
) -> Loaded:
    folder = source.sharded_folder
    if folder is not None:
        return read(folder, model=model, optimizer=optimizer)
    # The model first: where that is another one, its optimizer is too, and that says less.
    weights = source.model()
    refuse_unlike(shapes(weights_of(model)), shapes(weights), where=source.where)
    saved = source.optimizer()
    named = _named(saved, run["optimizer_names"], where=source.where)
    refuse_unlike_groups(named, optimizer, model, where=source.where)
    refuse_unlike_state(named, optimizer, model, where=source.where)
    return part_of_whole(
        weights, numbered(named, optimizer, model), model=model, optimizer=optimizer, where=source.where
    )


def _try_rate(goals: Goals, loaded: Loaded, schedule: Any) -> None:
    """Refuses, with `UsageError`, a rate that `rebase_lr` will refuse once the states are loaded: tried on copies."""
    assert goals.lr is not None
    assert goals.optimizer is not None
    optimizer, scheduler = inside_of(goals.optimizer), unwrapped(goals.scheduler)
    assert loaded.state is not None
    # Neither by `copy` nor by its class: both would run code, and look at its parameters.
    trial = object.__new__(type(optimizer))
    trial.__dict__.update(vars(optimizer))
    trial.param_groups = [
        {**group, **saved, PARAMS: group[PARAMS]}
        for group, saved in zip(optimizer.param_groups, loaded.state["param_groups"], strict=True)
    ]
    try:
        scheduler = copy.deepcopy(scheduler, {id(optimizer): trial, id(goals.optimizer): trial})
        if scheduler is not None:
            scheduler.load_state_dict(copy.deepcopy(schedule))
    except Exception:  # noqa: BLE001 - what cannot be copied is told by the load itself, which is taken back then
        return
    check_rebase(trial, scheduler, goals.lr)


def _named(saved: Mapping[str, Any], names: list[list[str]], *, where: str) -> NamedState:
    """An optimizer's state under the names that its parameters had."""
    try:
        rest = dict(saved)
        groups, state = rest.pop("param_groups"), rest.pop("state")
        name_of = {
            number: name
            for group, of_group in zip(groups, names, strict=True)
            for number, name in zip(group[PARAMS], of_group, strict=True)
        }
        return NamedState(
            groups=tuple(tuple(of_group) for of_group in names),
            options=tuple({key: value for key, value in group.items() if key != PARAMS} for group in groups),
            state={name_of[number]: _owned(values) for number, values in state.items()},
            rest=rest,
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{where}: the state of the optimizer is damaged ({type(error).__name__}).") from error


def _owned(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same, with the counts that an optimizer would keep as they are no longer in the file."""
    return {
        key: value.clone() if isinstance(value, torch.Tensor) and not value.dim() else value
        for key, value in values.items()
    }


def _check_kinds(run: Mapping[str, Any], goals: Goals, *, where: str) -> None:
    """Refuses a state of one class for another, and parts that only one side has."""
    values = run["values"]
    for name in ("scheduler", "scaler"):
        given, saved = getattr(goals, name) is not None, name in values
        if given and not saved:
            raise CheckpointError(
                f"{where}: was saved without a {name}, and one is given: it would begin anew in the middle. Load "
                f"without {name}= and build it for step {run['step']}, {_FRESH}."
            )
        if saved and not given:
            raise CheckpointError(f"{where}: holds the state of a {name}, and none is given: pass {name}=, {_FRESH}.")
    here, there = kinds_of(goals.optimizer, goals.scheduler), run["kinds"]
    for name, kind in here.items():
        if kind != there.get(name):
            raise CheckpointError(
                f"{where}: its {name} is {plain(str(there.get(name)))}, and {kind} is given, which would take the "
                f"state without a word and go on wrongly. Build the {name} as the run that saved it did, {_FRESH}."
            )
    if goals.scaler is not None and bool(values["scaler"]) != bool(goals.scaler.state_dict()):
        raise CheckpointError(
            f"{where}: its scaler was {'on' if values['scaler'] else 'off'}, and the one that is given is not: make it "
            f"with the same enabled=, {_FRESH}."
        )


def _data_of(of_ranks: tuple[Any, ...], *, rank: int, world_size: int) -> Any:
    """This rank's data position; with another number of ranks the data are split otherwise, so only what all share."""
    if len(of_ranks) == world_size:
        return of_ranks[rank]
    first = of_ranks[0]
    try:
        return first if all(bool(position == first) for position in of_ranks) else None
    except RuntimeError:  # tensors of several entries have no one answer
        return None


def _on_ranks(plan: Plan, *, saved: int, now: int) -> list[str]:
    if saved == now:
        return []
    if now > saved:
        became = f"ranks from {saved} on have no saved random numbers and stay as they were seeded"
    else:
        became = f"the random numbers of ranks from {now} on are left aside"
    remarks = [f"saved on {saved} ranks and loaded on {now}: {became}"]
    if plan.data is None and any(position is not None for position in plan.data_of_ranks):
        remarks.append(
            "the ranks had different data positions, and other ranks split the data otherwise: none was put back; "
            "see Resumed.data_of_ranks"
        )
    return remarks


def _on_dtypes(loaded: Loaded) -> list[str]:
    here = weights_of(loaded.model)
    changes = Counter(
        (weights.dtype, here[name].dtype)
        for name, weights in loaded.weights.items()
        if name in here and weights.dtype != here[name].dtype
    )
    return [
        f"{number} weights were saved as {saved} and are {now} here: they are not bit-equal"
        for (saved, now), number in changes.items()
    ]


def _weights_in(found: Mapping[str, Any], *, like: Mapping[str, Any]) -> dict[str, Any]:
    """The weights in a file of somebody else's loop, under their bare names."""
    keys = [key for key in keys_of("model", map(str, found)) if isinstance(found.get(key), Mapping)]
    state: Mapping[str, Any] = found[keys[0]] if keys else found
    named = {bare_name(str(name)): value for name, value in state.items()}
    prefix = "module."  # DistributedDataParallel's, where its own state was saved
    if not named.keys() & like.keys() and all(name.startswith(prefix) for name in named):
        return {name.removeprefix(prefix): value for name, value in named.items()}
    return named
