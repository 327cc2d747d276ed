"""Writes sharded state by torch.distributed.checkpoint, into a draft that counts, checks and syncs every byte.

Enters: what a rank captured, and the draft that rank 0 made. Leaves: this rank's pieces in one file; on rank 0 the two
indexes as well. Invariants: no tensor is gathered, each rank writes its own part, one tensor after the other; what
several ranks hold alike is written by the first of them. Who decides: rank 0 plans, from what every rank says it has.
Where one rank fails none goes on, for each step of torch's protocol gathers the errors; one that is lost holds the
others until the group's timeout.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import IO, Any, Final, cast

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, create_default_local_save_plan
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta, TensorStorageMetadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from trimtab.errors import CheckpointError
from trimtab.resume.writing import Draft
from trimtab.text import plain
from trimtab.torch.optimizer_names import NamedState
from trimtab.torch.placement import placed
from trimtab.torch.sharded_index import (
    INDEX_NAME,
    METADATA_NAME,
    Index,
    Piece,
    SavedTensor,
    index_as_plain,
    piece_file,
)

MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"


@dataclass(slots=True, kw_only=True)
class Captured:
    """What a rank will write, as it was at the call.

    Attributes:
        optimizer: As in `Index`.
        items: What this rank can write, in torch's words; what other ranks hold alike is among it.
        parts: This rank's part of each tensor, by the path's parts joined with ".".
        paths: Where each tensor belongs: `("model", name)`, or `("optimizer", "state", name of the parameter, key)`.
        aliases: As in `Index`.
        extra: As in `Index`.
    """

    optimizer: NamedState
    items: list[WriteItem] = field(default_factory=list)
    parts: dict[str, torch.Tensor] = field(default_factory=dict)
    paths: dict[str, tuple[str, ...]] = field(default_factory=dict)
    aliases: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def add(self, path: tuple[str, ...], tensor: torch.Tensor, *, copy: bool) -> None:
        """Takes a tensor in.

        Args:
            path: Where it belongs.
            tensor: Plain or a DTensor.
            copy: Whether this rank's part is copied to the CPU now, or may be looked at until it is written.

        Raises:
            CheckpointError: It is of a kind that could not be read back with weights_only=True.
        """
        name = ".".join(path)
        part = placed(tensor).local
        if type(part) is not torch.Tensor or part.layout != torch.strided:
            raise CheckpointError(
                f"{plain(name)} is a {type(part).__name__} of layout {part.layout}: a checkpoint holds plain dense "
                "tensors, which load without pickle"
            )
        self.paths[name] = path
        self.parts[name] = part.to("cpu", copy=True) if copy else part
        items = create_default_local_save_plan({name: tensor.detach()}, is_coordinator=False).items
        # A rank that holds nothing of a tensor writes nothing of it.
        self.items.extend(item for item in items if part.numel() or not tensor.numel())


def write_pieces(captured: Captured, draft: Draft, folder: str, *, group: dist.ProcessGroup | None) -> None:
    """Writes this rank's files into the draft; every rank of the group has to call it.

    Args:
        captured: What `trimtab.torch.sharded_state.capture` gave on this rank.
        draft: The draft, which every rank has joined.
        folder: The folder in it that they go to.
        group: A group of all ranks that save, with a backend that reaches the CPU; one of its own where the training
            goes on meanwhile, for collectives must not mix. None: the default group.

    Raises:
        OSError: This rank's disk is full or failed. Where it is another's, this call ends early and says nothing: who
            calls it gathers what became of each rank (`RanksTogether.of_all`), and each is named once.
        CheckpointError: This rank failed otherwise. On rank 0 also: the ranks do not hold the same names.
    """
    rank = dist.get_rank(group)
    try:
        save(
            dict(captured.parts),
            storage_writer=_DraftWriter(captured, draft, folder, rank=rank),
            planner=_CapturedPlanner(captured),
            process_group=group,
        )
    except CheckpointException as error:
        own = error.failures.get(rank)
        if own is not None:
            raise own[0] from error


class _CapturedPlanner(DefaultSavePlanner):
    """Plans what was captured, in place of a state_dict whose values may have moved on."""

    def __init__(self, captured: Captured) -> None:
        # Rank 0's, where it holds one: what ranks hold alike but do not keep alike (a buffer) comes from one of them.
        super().__init__(dedup_save_to_lowest_rank=True)
        self._captured = captured

    def set_up_planner(
        self,
        state_dict: Any,
        storage_meta: StorageMeta | None = None,
        is_coordinator: bool = False,  # noqa: FBT001, FBT002 - torch's signature, as below
    ) -> None:
        self.state_dict = state_dict
        self.is_coordinator = is_coordinator

    def create_local_plan(self) -> SavePlan:
        self.plan = SavePlan(self._captured.items, planner_data=self._captured.paths)
        return self.plan

    def create_global_plan(self, all_plans: list[SavePlan]) -> tuple[list[SavePlan], Metadata]:
        for rank, plan in enumerate(all_plans):
            unlike = sorted(set(plan.planner_data) ^ set(all_plans[0].planner_data))
            if unlike:
                raise CheckpointError(
                    f"rank {rank} and rank 0 do not hold the same tensors: {plain(', '.join(unlike[:5]))} "
                    f"{'is' if len(unlike) == 1 else 'are'} on one of them only. A sharded checkpoint needs every name "
                    "on every rank (pipeline stages: save each with a Checkpointer and process_group of its own)"
                )
        return super().create_global_plan(all_plans)

    def resolve_data(self, write_item: WriteItem) -> torch.Tensor:
        return self._captured.parts[write_item.index.fqn]


class _DraftWriter(StorageWriter):
    """Writes what was planned into a draft, in the format of torch's own file system writer.

    That one keeps every tensor of a file until the file is written, and opens and renames files by itself.
    """

    def __init__(self, captured: Captured, draft: Draft, folder: str, *, rank: int) -> None:
        self._captured = captured
        self._draft = draft
        self._folder = folder
        self._rank = rank

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """There is nothing to reset: a writer serves one save."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:  # noqa: FBT001
        """There is nothing to set up: every rank has joined the draft."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results: list[WriteResult] = []
        if plan.items:
            name = piece_file(self._rank)
            with self._draft.file(f"{self._folder}/{name}") as stream:
                for item in plan.items:
                    start = stream.size_bytes
                    part = planner.resolve_data(item)
                    assert isinstance(part, torch.Tensor)
                    torch.save(_alone(part), cast(IO[bytes], stream))
                    size_bytes = stream.size_bytes - start
                    info = _StorageInfo(relative_path=name, offset=start, length=size_bytes)
                    results.append(WriteResult(index=item.index, size_in_bytes=size_bytes, storage_data=info))
        future: Future[list[WriteResult]] = Future()
        future.set_result(results)
        return future

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        found = {result.index: result.storage_data for rank in results for result in rank}
        metadata.storage_data = found
        with self._draft.file(f"{self._folder}/{METADATA_NAME}") as stream:
            stream.write(pickle.dumps(metadata))
        index = _index(self._captured, metadata, found)
        with self._draft.file(f"{self._folder}/{INDEX_NAME}") as stream:
            torch.save(index_as_plain(index), cast(IO[bytes], stream))

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:  # noqa: ARG003
        return True


def _alone(part: torch.Tensor) -> torch.Tensor:
    """A tensor on the CPU in memory of its own: torch.save writes all of the memory that a tensor is a view of."""
    part = part.detach().cpu()
    return part if part.untyped_storage().nbytes() == part.nbytes else part.clone()


def _index(captured: Captured, metadata: Metadata, found: Mapping[MetadataIndex, _StorageInfo]) -> Index:
    model: dict[str, SavedTensor] = {}
    moments: dict[tuple[str, str], SavedTensor] = {}
    for name, path in captured.paths.items():
        saved = metadata.state_dict_metadata[name]
        assert isinstance(saved, TensorStorageMetadata)
        pieces = []
        for chunk in saved.chunks:
            info = found[MetadataIndex(name, chunk.offsets)]
            pieces.append(
                Piece(
                    offsets=tuple(chunk.offsets),
                    sizes=tuple(chunk.sizes),
                    file=info.relative_path,
                    start=info.offset,
                    size_bytes=info.length,
                )
            )
        tensor = SavedTensor(shape=tuple(saved.size), dtype=saved.properties.dtype, pieces=tuple(pieces))
        if path[0] == MODEL:
            model[path[1]] = tensor
        else:
            moments[path[2], path[3]] = tensor
    return Index(
        model=model,
        aliases=captured.aliases,
        extra=captured.extra,
        optimizer=captured.optimizer,
        moments=moments,
    )
