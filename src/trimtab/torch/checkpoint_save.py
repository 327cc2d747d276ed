"""One save: what each rank takes at the call, writes into the draft, and what rank 0 says of it in the manifest.

    take     on every rank, at the call: the values, the random number generators, what is not finite
    write    on every rank, perhaps in a thread: this rank's files, each checksummed on its way and synced
    manifest on rank 0: parts, files and checksums of all ranks

Enters: what `Checkpointer.save` was given. Leaves: files in a draft. Invariant: a save changes nothing of the training,
its random numbers included; with `copies` later steps do not change what was taken.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch
from torch import nn

from trimtab import __version__
from trimtab.errors import UsageError
from trimtab.resume.manifest import FileEntry, Manifest, ResumedFrom
from trimtab.resume.writing import Draft
from trimtab.text import plain
from trimtab.torch import sharded_state
from trimtab.torch.checkpoint_arguments import check_model, check_optimizer, check_state_holder, kinds_of
from trimtab.torch.checkpoint_parts import (
    MODEL_FILE,
    OPTIMIZER_FILE,
    RUN_FILE,
    RUN_VERSION,
    SHARDED_FOLDER,
    Taker,
    rank_file,
)
from trimtab.torch.checkpoint_ranks import RanksTogether
from trimtab.torch.health import Nonfinite, find_nonfinite
from trimtab.torch.module_names import module_inside
from trimtab.torch.naming import weights_of
from trimtab.torch.optimizer_names import parameters_by_name
from trimtab.torch.placement import is_sharded
from trimtab.torch.rng import rng_state
from trimtab.torch.sharded_writing import Captured, write_pieces
from trimtab.torch.watch_in_saves import WatchWord, look_at_memory, word_of_watch

_MAX_STEP: Final = 10**15
"""A folder's name has room for 18 digits, and no run counts so far."""


_MAX_LISTED: Final = 100
"""Tensors that a manifest lists for what was not finite from the start; the whole list is in `run.pt`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What `Checkpointer.save` was given; its docstring says what each is."""

    step: int
    model: nn.Module
    optimizer: torch.optim.Optimizer
    scheduler: Any
    scaler: Any
    loss: Any
    extra: Any
    healthy: bool | None
    run: Any
    data: Any
    best_eval: Any
    config: Any

    def check(self) -> None:
        """Refuses, with `UsageError`, what makes no sense."""
        if isinstance(self.step, bool) or not isinstance(self.step, int) or not 0 <= self.step < _MAX_STEP:
            raise UsageError(
                f"step={self.step!r}: use the number of optimizer steps that are behind the checkpoint, 0 and up."
            )
        check_model(self.model)
        check_optimizer(self.optimizer)
        if self.healthy is not None and not isinstance(self.healthy, bool):
            raise UsageError(
                f"healthy={self.healthy!r}: use True, False, or None to have weights and moments looked at."
            )
        for name in ("scheduler", "scaler", "run"):
            check_state_holder(getattr(self, name), name=name, method="state_dict")


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What the ranks tell each other of what they have taken.

    Attributes:
        alike: What has to be the same on every rank, by what to call it.
        nonfinite: Weights and moments of the rank that are not finite.
        watch: What the watch of the run says of the model.
        has_data: Whether it has a data position.
    """

    alike: dict[str, Any]
    nonfinite: dict[str, Nonfinite]
    watch: WatchWord
    has_data: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """What this rank saves.

    Attributes:
        step: After which step.
        model: State of a plain model, on rank 0.
        optimizer: State of its optimizer, on rank 0.
        sharded: What `trimtab.torch.sharded_state` has captured of a sharded model.
        run: What is alike on all ranks.
        own: What is this rank's.
        nonfinite: Weights and moments of this rank that are not finite.
        watch: What the watch of the run says of the model.
        loss: As given, a number.
        lr: Learning rate of each parameter group.
    """

    step: int
    model: Mapping[str, Any] | None
    optimizer: Mapping[str, Any] | None
    sharded: Captured | None
    run: dict[str, Any]
    own: dict[str, Any]
    nonfinite: dict[str, Nonfinite]
    watch: WatchWord
    loss: float | None
    lr: tuple[float, ...]

    @property
    def summary(self) -> Summary:
        """What the other ranks hear of it."""
        alike = {"step": self.step, "a sharded model": self.sharded is not None, "parts": sorted(self.run["parts"])}
        return Summary(alike=alike, nonfinite=self.nonfinite, watch=self.watch, has_data="data" in self.own)


def take(given: Given, *, rank: int, copies: bool) -> Taken:
    """Takes what this rank saves; waits for the device.

    Args:
        given: What there is.
        rank: This process's place among the ranks.
        copies: Whether tensors are copied to the host, so that training may go on.

    Raises:
        UsageError: Something is not what it has to be, or could be loaded by a pickle only.
    """
    given.check()
    taker = Taker(copies=copies)
    inside = module_inside(given.model)
    lr = tuple(float(group["lr"]) for group in given.optimizer.param_groups)
    loss = None if given.loss is None else number_of(given.loss, name="loss")
    own = {"version": RUN_VERSION, "rng": rng_state()}
    if given.data is not None:
        data = given.data if isinstance(given.data, Mapping) else _state_of(given.data, name="data")
        own["data"] = taker.take(data, where="data")
    lies_in_shards = is_sharded(given.model)
    model = optimizer = sharded = None
    if lies_in_shards or rank == 0:
        look_at_memory(given.run, given.model, given.optimizer)
    if lies_in_shards:
        sharded = sharded_state.capture(given.model, given.optimizer, copy=copies)
    elif rank == 0:
        model = taker.take(weights_of(given.model), where="model.state_dict()")
        optimizer = taker.take(given.optimizer.state_dict(), where="optimizer.state_dict()")
    # A replica of a plain model looks as that of rank 0.
    nonfinite = find_nonfinite(given.model, given.optimizer) if lies_in_shards or rank == 0 else {}
    of_the_run = _of_the_run(given, inside, taker, loss=loss)
    return Taken(
        step=given.step,
        model=model,
        optimizer=optimizer,
        sharded=sharded,
        run=of_the_run,
        own=own,
        nonfinite=nonfinite,
        # Taking the run's state has made its watch judge all that was measured up to here.
        watch=word_of_watch(given.run),
        loss=loss,
        lr=lr,
    )


def write(taken: Taken, draft: Draft, *, ranks: RanksTogether) -> tuple[FileEntry, ...]:
    """Writes this rank's files into the draft.

    Returns:
        Them, with their checksums.

    Raises:
        OSError: The disk is full or failed.
    """
    if taken.sharded is not None:
        write_pieces(taken.sharded, draft, SHARDED_FOLDER, group=ranks.group)
    elif ranks.is_first:
        _write_file(draft, MODEL_FILE, taken.model)
        _write_file(draft, OPTIMIZER_FILE, taken.optimizer)
    if ranks.is_first:
        _write_file(draft, RUN_FILE, taken.run)
    _write_file(draft, rank_file(ranks.rank), taken.own)
    return draft.entries


def manifest_of(
    taken: Taken,
    *,
    entries: Sequence[FileEntry],
    run_id: str,
    serial: int,
    world_size: int,
    unhealthy: WatchWord,
    has_data: Iterable[bool],
    nonfinite_at_start: Mapping[str, Nonfinite],
    resumed_from: ResumedFrom | None,
) -> Manifest:
    """What rank 0 says of a checkpoint.

    Args:
        taken: What it has taken itself.
        entries: The files of all ranks.
        run_id: The run.
        serial: The place of this save among all in the folder.
        world_size: Ranks that saved.
        unhealthy: Why it is not healthy, the watch's word and others; no sentence: it is.
        has_data: For each rank, whether it has a data position.
        nonfinite_at_start: What was not finite when the run began.
        resumed_from: The last load of this saver.
    """
    sharded = tuple(entry.path for entry in entries if entry.path.startswith(f"{SHARDED_FOLDER}/"))
    parts = {
        "model": sharded or (MODEL_FILE,),
        "optimizer": sharded or (OPTIMIZER_FILE,),
        "step": (RUN_FILE,),
        "rng": tuple(rank_file(rank) for rank in range(world_size)),
        **dict.fromkeys(taken.run["parts"], (RUN_FILE,)),
    }
    with_data = tuple(rank_file(rank) for rank, has in enumerate(has_data) if has)
    if with_data:
        parts["data"] = with_data
    at_start = islice(sorted(nonfinite_at_start.items()), _MAX_LISTED)
    return Manifest(
        saver="trimtab",
        step=taken.step,
        run_id=run_id,
        serial=serial,
        parts=parts,
        files=tuple(entries),
        resumed_from=resumed_from,
        world_size=world_size,
        healthy=not unhealthy.because,
        unhealthy_because=unhealthy.because,
        unhealthy_since=unhealthy.since,
        loss=taken.loss,
        lr=taken.lr,
        saved_at=time.time(),
        versions={"trimtab": __version__, "torch": torch.__version__, "python": platform.python_version()},
        facts={"nonfinite_at_start": {plain(name): counted.count for name, counted in at_start}},
    )


def number_of(value: Any, *, name: str) -> float:
    """A number as it is; of a tensor it waits for the device.

    Raises:
        UsageError: It is none; `name` says what it should have been.
    """
    try:
        if isinstance(value, (bool, str)):
            raise TypeError("no number")
        return float(value.detach() if isinstance(value, torch.Tensor) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(f"{name} is a {type(value).__name__} ({error}): pass one number, as it was logged.") from error


def _of_the_run(given: Given, inside: nn.Module, taker: Taker, *, loss: float | None) -> dict[str, Any]:
    """What stands in `run.pt`, the names of its parts among it; the baseline is put in when it is known."""
    values: dict[str, Any] = {}
    if given.scheduler is not None:
        values["scheduler"] = taker.take(_state_of(given.scheduler, name="scheduler"), where="scheduler.state_dict()")
    if given.scaler is not None:
        values["scaler"] = taker.take(_state_of(given.scaler, name="scaler"), where="scaler.state_dict()")
    if loss is not None:
        values["loss"] = loss
    for name in ("best_eval", "config", "extra"):
        value = getattr(given, name)
        if value is not None:
            values[name] = taker.take(value, where=name)
    state = None if given.run is None else taker.take(_state_of(given.run, name="run"), where="run.state_dict()")
    names = parameters_by_name(given.optimizer, inside)
    return {
        "version": RUN_VERSION,
        "step": given.step,
        "values": values,
        "run": state,
        "parts": [*values, *_parts_of_run_state(state)],
        "optimizer_names": [list(parameters) for parameters in names],
        "kinds": kinds_of(given.optimizer, given.scheduler),
    }


def _parts_of_run_state(state: object) -> list[str]:
    """Which parts are in the state of a `Run`, a kit, or a guard by itself."""
    if not isinstance(state, Mapping):
        return []
    if "guard" not in state:
        return ["guard"]
    parts = ["guard"] if state["guard"] is not None else []
    if state.get("watch") is not None:
        parts.append("watch")
    return [*parts, "recorder"] if state.get("run_id") is not None else parts


def _state_of(value: Any, *, name: str) -> Any:
    check_state_holder(value, name=name, method="state_dict")
    return value.state_dict()


def _write_file(draft: Draft, name: str, value: Any) -> None:
    with draft.file(name) as stream:
        torch.save(value, stream)  # type: ignore[arg-type]  # it asks for `write` and `flush` alone
