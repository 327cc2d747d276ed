"""Reads pieces of a sharded checkpoint: of each tensor the part that this rank asks for, from the pieces that hold it.

Enters: the folder, its index, and where a rank's part lies in the whole. Leaves: the part filled. Invariants: nothing
is unpickled but by `weights_only=True`, and nothing inflated; no collective is called, so any number of ranks reads,
each by itself; one piece is in memory at a time.
"""

from __future__ import annotations

import io
import pickle
from contextlib import ExitStack
from math import prod
from pathlib import Path
from types import TracebackType
from typing import IO, Any, BinaryIO, Self, cast

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from trimtab.errors import CheckpointError
from trimtab.resume.foreign.zip_archive import read_entries
from trimtab.text import plain
from trimtab.torch.checkpoint_ranks import spelled_error
from trimtab.torch.checkpoint_source import read_torch_file
from trimtab.torch.placement import Placed
from trimtab.torch.sharded_index import INDEX_NAME, Index, Piece, SavedTensor, index_from_plain


def read_index(folder: Path) -> Index:
    """Reads the index of a sharded checkpoint.

    Args:
        folder: The checkpoint's folder with the pieces.

    Raises:
        CheckpointError: It is missing, damaged, or would need pickle to load.
    """
    path = folder / INDEX_NAME
    index = index_from_plain(read_torch_file(path), path=path)
    # Before anything is made room for: what a piece holds is no larger than its bytes, and those are there.
    ends: dict[str, int] = {}
    for tensor in (*index.model.values(), *index.moments.values()):
        for piece in tensor.pieces:
            ends[piece.file] = max(ends.get(piece.file, 0), piece.start + piece.size_bytes)
    for name, end in ends.items():
        try:
            size_bytes = (folder / name).stat().st_size
        except OSError as error:
            raise _unreadable(folder / name, error) from error
        if size_bytes < end:
            raise CheckpointError(
                f"{plain(str(folder / name))}: is {size_bytes:,} bytes long, and the index next to it expects {end:,}. "
                "Use an older checkpoint"
            )
    return index


class PieceReader:
    """The files with the pieces of a checkpoint, each opened when it is first needed.

    Args:
        folder: Where they are.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, BinaryIO] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.close()

    def read(self, name: str, saved: SavedTensor, *, into: Placed) -> None:
        """Fills a part of a tensor.

        Args:
            name: The tensor's name, for messages.
            saved: What the index says of it; of the shape of the whole that `into` is a part of.
            into: The part, of any type and on any device.

        Raises:
            CheckpointError: A piece is missing or damaged, or none holds some of the part.
        """
        wanted = ChunkStorageMetadata(offsets=torch.Size(into.offsets), sizes=into.local.shape)
        if not into.local.numel():
            return
        chunks = [
            ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=torch.Size(piece.sizes))
            for piece in saved.pieces
        ]
        places = {chunk.offsets: piece for chunk, piece in zip(chunks, saved.pieces, strict=True) if prod(chunk.sizes)}
        described = TensorStorageMetadata(
            properties=TensorProperties(dtype=saved.dtype), size=torch.Size(saved.shape), chunks=chunks
        )
        num_filled = 0
        with torch.no_grad():
            for item in create_read_items_for_chunk_list(name, described, [wanted]):
                if not prod(item.lengths):
                    continue
                assert item.storage_index.offset is not None
                values = self._piece(places[item.storage_index.offset], saved.dtype)
                _box(into.local, item.dest_offsets, item.lengths).copy_(
                    _box(values, item.storage_offsets, item.lengths)
                )
                num_filled += prod(item.lengths)
        if num_filled != into.local.numel():
            raise CheckpointError(
                f"{plain(str(self._folder))}: its pieces hold {num_filled:,} of the {into.local.numel():,} elements of "
                f"{plain(name)} that are needed here. Use an older checkpoint"
            )

    def _piece(self, piece: Piece, dtype: torch.dtype) -> torch.Tensor:
        path = self._folder / piece.file
        try:
            if piece.file not in self._files:
                self._files[piece.file] = self._closing.enter_context(path.open("rb"))
            part = _Slice(self._files[piece.file], start=piece.start, size_bytes=piece.size_bytes)
            read_entries(cast(BinaryIO, part))
            part.seek(0)
            values = torch.load(cast(IO[bytes], part), map_location="cpu", weights_only=True)
        except Exception as error:
            raise _unreadable(path, error) from error
        if type(values) is not torch.Tensor or values.shape != piece.sizes or values.dtype != dtype:
            raise CheckpointError(
                f"{plain(str(path))}: byte {piece.start:,} begins something else than a tensor of shape {piece.sizes} "
                f"and type {dtype}. Use an older checkpoint"
            )
        return values


class _Slice(io.RawIOBase):
    """A part of a file, as a file."""

    def __init__(self, file: BinaryIO, *, start: int, size_bytes: int) -> None:
        super().__init__()
        self._file = file
        self._start = start
        self._size_bytes = size_bytes
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        wanted = memoryview(buffer).cast("B")[: max(0, self._size_bytes - self._at)]
        self._file.seek(self._start + self._at)
        num_read: int = self._file.readinto(wanted)  # type: ignore[attr-defined]
        self._at += num_read
        return num_read


def _box(tensor: torch.Tensor, offsets: torch.Size, sizes: torch.Size) -> torch.Tensor:
    for dim, (offset, size) in enumerate(zip(offsets, sizes, strict=True)):
        tensor = tensor.narrow(dim, offset, size)
    return tensor


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    # What torch says of a pickle is the advice to run it.
    needs_pickle = isinstance(error, pickle.UnpicklingError)
    why = "a piece of it needs a pickle to load" if needs_pickle else spelled_error(error)
    return CheckpointError(f"{plain(str(path))}: {why}. Use an older checkpoint")
