"""`round_trip`: whether what was saved can be loaded, and is the training that is still there, to the last bit.

    verify    every byte of the checkpoint, on rank 0
    build     a model, an optimizer and a scheduler afresh, on every rank
    load      the checkpoint into them, as a resume does
    compare   with the live ones, each rank what it holds
    probe     what the loaded model would say next
    record    an event in the run's log, which `trimtab gate` reads

Enters: a checkpoint, the live training, and a function that builds its like. Leaves: a `RoundTrip`. Invariants: the
live training, its random numbers and its mode are as before; whatever goes wrong inside is a result, the same on every
rank, and never an exception into training, but for arguments that make no sense.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn

from trimtab.errors import CheckpointError, TrimtabError, UsageError
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.manifest import manifest_checksum
from trimtab.resume.parts import in_order
from trimtab.resume.round_trip import MAX_DIFFERENCES
from trimtab.text import listed, plain
from trimtab.torch.built import Training, training_of
from trimtab.torch.checkpoint_looks import Looks
from trimtab.torch.checkpoint_plan import Plan, plan_all
from trimtab.torch.checkpoint_put import put_all
from trimtab.torch.checkpoint_ranks import RanksTogether, spelled_error
from trimtab.torch.checkpoint_save import number_of
from trimtab.torch.checkpoint_source import Source, find_source
from trimtab.torch.probe import Probe, check_ids, generation_probe
from trimtab.torch.rng import kept_rng
from trimtab.torch.round_trip_result import RoundTrip, tell
from trimtab.torch.save_threads import wait_for_saves
from trimtab.torch.state_differences import differences
from trimtab.torch.training_differences import moment_differences, state_differences, weight_differences

__all__ = ["RoundTrip", "round_trip"]

Build = Callable[[], Sequence[Any]]
"""Gives a model, its optimizer, and its scheduler or None; where a gradient scaler is saved, that as the fourth."""


def round_trip(
    checkpoint: CheckpointInfo | str | os.PathLike[str],
    *,
    build: Build,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    scaler: Any = None,
    step: int | None = None,
    loss: Any = None,
    run: Any = None,
    probe_ids: torch.Tensor | None = None,
    process_group: dist.ProcessGroup | None = None,
) -> RoundTrip:
    """Loads a checkpoint that was just saved into a training built afresh, and compares it with the live one.

    Call it right after the save, between two windows: a step later the training is another one, and that is what it
    says. It waits for a save that a thread is still writing, and for the device. Among several ranks every rank calls
    it alike, and each compares what it holds; a rank that is lost holds the others until the timeout of
    torch.distributed. For its time it takes the memory of one more model and optimizer where `build` puts them, and of
    one more model on the host.

    Compared are weights, buffers (those that are not saved where both models have them alike), which weights are one
    and which are frozen, moments, rates, and the scheduler's state and functions. The run's state, the random numbers
    and the place in the data are not.

    Args:
        checkpoint: What `save` gave, or its path.
        build: Makes a model, its optimizer and its scheduler (or None) as the program does when it begins, with nothing
            in them that belongs to the live training. It may draw random numbers; they are given back.
        model: The model that trains, wrapped or not, sharded or not.
        optimizer: Its optimizer.
        scheduler: Its scheduler, if it was saved.
        scaler: Its gradient scaler, if it was saved; `build` gives a fourth value then.
        step: Optimizer steps that are behind the training; None: the checkpoint's word is taken for it.
        loss: The loss as it was logged, a number or a 0-d tensor; None: it is not compared.
        run: A `trimtab.Run`, whose log is told.
        probe_ids: (B, T) or (T,) token ids for `generation_probe`; None: the model is not asked. Under autocast of the
            caller's it answers under autocast.
        process_group: The ranks that train together; None: the default group where torch.distributed is initialised,
            else this process alone.

    Returns:
        What was found. Whatever fails inside, a damaged file or a model that does not fit, is told in it.

    Raises:
        UsageError: An argument makes no sense, or is not the same on all ranks; or what `build` gives is no training,
            or shares something with the live one, which is as it was, but for what `build` has done to it.

    Example:
        >>> import tempfile
        >>> from trimtab.checkpoint import Checkpointer
        >>> def build():
        ...     model = nn.Linear(4, 1)
        ...     return model, torch.optim.AdamW(model.parameters()), None
        >>> model, optimizer, _ = build()
        >>> saved = Checkpointer(tempfile.mkdtemp()).save(100, model=model, optimizer=optimizer)
        >>> round_trip(saved, build=build, model=model, optimizer=optimizer).same
        True
    """
    trip = _Trip(
        checkpoint,
        live=Training(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler),
        build=build,
        step=step,
        loss=loss,
        probe_ids=probe_ids,
    )
    ranks = _ranks_of(process_group)
    try:
        with kept_rng():
            result = trip.make(ranks)
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever it was is the result, and training goes on
        result = trip.failed(error)
    finally:
        # The moments are in cycles of scheduler and optimizer: the collector might come by at any time.
        gc.collect()
    if ranks.is_first:
        tell(result, run)
    return result


class _Told(NamedTuple):
    """What one rank has found."""

    differences: list[str]
    num: int


class _Trip:
    """One round trip on this rank."""

    def __init__(
        self,
        checkpoint: CheckpointInfo | str | os.PathLike[str],
        *,
        live: Training,
        build: Build,
        step: int | None,
        loss: Any,
        probe_ids: torch.Tensor | None,
    ) -> None:
        self._info = checkpoint if isinstance(checkpoint, CheckpointInfo) else None
        found = checkpoint.path if isinstance(checkpoint, CheckpointInfo) else checkpoint
        if not isinstance(found, str | os.PathLike):
            raise UsageError(
                f"round_trip takes what save() gave, or the path of a checkpoint, found a {type(found).__name__}: "
                "save() gives None where it failed; with wait=False wait() gives it."
            )
        self._path = Path(os.path.abspath(found))
        self._live = live
        self._build = build
        self._step = step
        self._loss = loss
        self._probe_ids = probe_ids
        self._saved_step = None if self._info is None else self._info.step
        self._crc32: int | None = None

    def make(self, ranks: RanksTogether) -> RoundTrip:
        """Does it all; every rank calls it.

        Raises:
            UsageError: An argument makes no sense, or what `build` gave is no training of its own.
            CheckpointError: The checkpoint cannot be loaded; the same on every rank.
        """
        ranks.alike(self._checked, call="round_trip")
        wait_for_saves(self._path.parent)
        self._crc32 = ranks.from_first(self._checksum)
        source = ranks.from_first(self._find)
        assert source.manifest is not None
        self._saved_step = source.manifest.step
        made: list[Training] = []
        ranks.of_all(lambda: made.append(self._made()))
        plans: list[Plan] = []
        ranks.of_all(lambda: plans.append(_planned(source, made[0], ranks)))
        built, plan = made[0], plans[0]
        put_all(plan, built.goals(), source=source, ranks=ranks)
        told = ranks.of_all(lambda: _bounded(self._differences(plan, built, rank=ranks.rank)))
        probes = ranks.of_all(lambda: self._probed(built.model))
        changed = ranks.from_first(self._checksum) != self._crc32
        found = _together(told)
        if changed:
            found = _Told(["another save has taken its place while it was loaded", *found.differences], found.num + 1)
        return RoundTrip(
            path=self._path,
            name=plain(self._path.name),
            step=self._saved_step,
            same=not found.num,
            differences=tuple(found.differences[:MAX_DIFFERENCES]),
            num_differences=found.num,
            parts=self._parts(),
            manifest_crc32=self._crc32,
            probe=probes[0][0],
            probe_problem=_first_problem([problem for _, problem in probes]),
        )

    def failed(self, error: Exception) -> RoundTrip:
        """What it is where the checkpoint could not be loaded or compared."""
        text = str(error) if isinstance(error, TrimtabError) else spelled_error(error)
        return RoundTrip(
            path=self._path,
            name=plain(self._path.name),
            step=self._saved_step,
            same=False,
            differences=(plain(text),),
            num_differences=1,
            manifest_crc32=self._crc32,
        )

    # Within.

    def _checked(self) -> dict[str, object]:
        """What has to be the same on every rank; refuses, with `UsageError`, what makes no sense."""
        if not callable(self._build):
            raise UsageError(
                f"build is a {type(self._build).__name__}: pass the function that makes a model, its optimizer and its "
                "scheduler afresh."
            )
        self._live.check()
        if self._step is not None and (isinstance(self._step, bool) or not isinstance(self._step, int)):
            raise UsageError(f"step={self._step!r}: use the number of optimizer steps that are behind the training.")
        if self._loss is not None:
            self._loss = number_of(self._loss, name="loss")
        if self._probe_ids is not None:
            check_ids(self._probe_ids)
        return {
            "the checkpoint": plain(str(self._path)),
            "what is compared": listed(self._parts()),
            "step": self._step,
            "probe_ids": "given" if self._probe_ids is not None else None,
        }

    def _checksum(self) -> int | None:
        try:
            return manifest_checksum(self._path)
        except CheckpointError:  # `_find` says it in its words
            return None

    def _find(self) -> Source:
        # By its path: what is not healthy can be what was saved.
        source = find_source(self._path, is_fresh=False, looks=Looks())
        assert source.manifest is not None, "only one with a manifest can be gone on from"
        found = source.manifest.run_id, source.manifest.serial
        if self._info is not None and (self._info.run_id, self._info.serial) != found:
            raise CheckpointError(f"{source.where}: another save has taken its place since it was saved.")
        return source

    def _made(self) -> Training:
        try:
            given = self._build()
        except Exception as error:
            raise CheckpointError(f"build() failed: {spelled_error(error)}") from error
        return training_of(given, live=self._live)

    def _differences(self, plan: Plan, built: Training, *, rank: int) -> Iterator[str]:
        live = self._live
        if rank == 0 and self._step is not None:
            yield from differences(self._step, plan.run["step"], where="the step")
        if rank == 0 and self._loss is not None:
            yield from differences(self._loss, plan.values.get("loss"), where="the loss")
        yield from weight_differences(live.model, built.model, rank=rank)
        yield from moment_differences(live.optimizer, built.optimizer, live_model=live.model, loaded_model=built.model)
        for name in ("scheduler", "scaler"):
            if getattr(live, name) is not None:
                yield from state_differences(getattr(live, name), getattr(built, name), name=name)

    def _parts(self) -> tuple[str, ...]:
        """What is compared."""
        given = {"scheduler": self._live.scheduler, "scaler": self._live.scaler, "loss": self._loss}
        return in_order(("model", "optimizer", "step", *(name for name, value in given.items() if value is not None)))

    def _probed(self, model: nn.Module) -> tuple[Probe | None, str | None]:
        """What the loaded model says, or why it says nothing."""
        if self._probe_ids is None:
            return None, None
        try:
            return generation_probe(model, self._probe_ids), None
        except Exception as error:  # noqa: BLE001 - the model's own code; what was compared stands
            return None, plain(str(error)) if isinstance(error, TrimtabError) else spelled_error(error)


def _ranks_of(process_group: dist.ProcessGroup | None) -> RanksTogether:
    """The ranks that talk; the group of their own is made once, and not at each save."""
    if not (dist.is_available() and dist.is_initialized()):
        return RanksTogether(process_group)
    return _ranks_in(dist.group.WORLD if process_group is None else process_group)


@lru_cache(maxsize=4)
def _ranks_in(process_group: dist.ProcessGroup) -> RanksTogether:
    return RanksTogether(process_group)


def _planned(source: Source, built: Training, ranks: RanksTogether) -> Plan:
    return plan_all(source, built.goals(), rank=ranks.rank, world_size=ranks.world_size)


def _bounded(found: Iterator[str]) -> _Told:
    """The first of the differences, and how many there are."""
    first = list(islice(found, MAX_DIFFERENCES))
    return _Told(first, len(first) + sum(1 for _ in found))


def _together(told: Sequence[_Told]) -> _Told:
    """What the ranks have found: each sentence once, with the ranks that say it where not all do."""
    by_text: dict[str, list[str]] = {}
    for rank, of_rank in enumerate(told):
        for text in of_rank.differences:
            by_text.setdefault(text, []).append(str(rank))
    named = [
        text if len(ranks) == len(told) else f"rank {listed(ranks, most=8)}: {text}" for text, ranks in by_text.items()
    ]
    return _Told(named, max(len(named), *(of_rank.num for of_rank in told)))


def _first_problem(problems: Sequence[str | None]) -> str | None:
    for rank, problem in enumerate(problems):
        if problem is not None:
            return problem if rank == 0 else f"rank {rank}: {problem}"
    return None
