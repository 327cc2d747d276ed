"""The index of a sharded checkpoint: where each tensor's pieces are, and all that is no tensor.

    sharded/index.pt          what this file describes: plain types and small tensors, read with weights_only=True
    sharded/__0_0.distcp      rank 0's pieces, as torch.distributed.checkpoint writes them; one file each rank
    sharded/.metadata         torch's own index, a pickle: for other readers of such folders, never opened by us

Enters: what the saver knows; or the bytes of an `index.pt` that may have been through other people's hands. Leaves: an
`Index` in which every number was checked, or a `CheckpointError` that names the file. Invariant: a piece is in a file
of the folder itself and inside its tensor, and the pieces of a tensor are as many elements as the tensor has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

import torch

from trimtab.errors import CheckpointError
from trimtab.text import plain
from trimtab.torch.optimizer_names import NamedState

INDEX_NAME: Final = "index.pt"
METADATA_NAME: Final = ".metadata"
VERSION: Final = 1

_PIECE_FILE: Final = re.compile(r"__\d{1,9}_0\.distcp")
_MOST: Final = 2**62
"""More elements or bytes than any tensor has; torch counts them in 64 bits."""


def piece_file(rank: int) -> str:
    """What the file with a rank's pieces is called."""
    return f"__{rank}_0.distcp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A box of a tensor, and the bytes of a file that hold it.

    Attributes:
        offsets: Where the box begins in each dimension.
        sizes: Its shape.
        file: The name of the file, in the same folder.
        start: The first byte.
        size_bytes: How many they are: an archive of torch.save with one tensor.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    file: str
    start: int
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedTensor:
    """A tensor of the checkpoint.

    Attributes:
        shape: Of the whole tensor.
        dtype: Its type.
        pieces: Boxes that cover it.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """What a sharded checkpoint holds.

    Attributes:
        model: Tensors of the model, by name.
        aliases: Further names of those tensors: tied weights.
        extra: What else the model's state_dict holds, by name.
        optimizer: The optimizer's state without its tensors.
        moments: The optimizer's tensors, by the parameter's name and the optimizer's own key.
    """

    model: Mapping[str, SavedTensor]
    aliases: Mapping[str, str]
    extra: Mapping[str, Any]
    optimizer: NamedState
    moments: Mapping[tuple[str, str], SavedTensor]


def index_as_plain(index: Index) -> dict[str, Any]:
    """The index in types that `torch.load(weights_only=True)` takes."""
    return {
        "version": VERSION,
        "model": {name: _tensor_as_plain(tensor) for name, tensor in index.model.items()},
        "aliases": dict(index.aliases),
        "extra": dict(index.extra),
        "optimizer": {
            "groups": [list(names) for names in index.optimizer.groups],
            "options": [dict(options) for options in index.optimizer.options],
            "state": {name: dict(values) for name, values in index.optimizer.state.items()},
            "rest": dict(index.optimizer.rest),
        },
        "moments": [(name, key, _tensor_as_plain(tensor)) for (name, key), tensor in index.moments.items()],
    }


def index_from_plain(found: object, *, path: Path) -> Index:
    """Reads what `index_as_plain` made, and checks it.

    Args:
        found: What was in the file.
        path: The file, for messages.

    Raises:
        CheckpointError: It is not such an index.
    """
    try:
        entries = _dict(found, "the index")
        version = entries["version"]
        if version != VERSION:
            raise CheckpointError(
                f"{plain(str(path))}: its version is {plain(repr(version))}, and this Trimtab reads version {VERSION}: "
                "load it with the Trimtab that saved it"
            )
        index = Index(
            model={_text(name): _tensor(tensor) for name, tensor in _dict(entries["model"], "model").items()},
            aliases={_text(name): _text(of) for name, of in _dict(entries["aliases"], "aliases").items()},
            extra={_text(name): value for name, value in _dict(entries["extra"], "extra").items()},
            optimizer=_optimizer(entries["optimizer"]),
            moments={(_text(name), _text(key)): _tensor(tensor) for name, key, tensor in entries["moments"]},
        )
        if not {name for name, _ in index.moments} <= index.optimizer.state.keys():
            raise ValueError("there are moments of a parameter that the optimizer has no state of")
        return index
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{plain(str(path))}: not the index of a sharded checkpoint ({plain(f'{type(error).__name__}: {error}')})"
        ) from error


def _tensor_as_plain(tensor: SavedTensor) -> dict[str, Any]:
    return {
        "shape": tensor.shape,
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "pieces": [(piece.offsets, piece.sizes, piece.file, piece.start, piece.size_bytes) for piece in tensor.pieces],
    }


def _tensor(found: object) -> SavedTensor:
    entries = _dict(found, "a tensor")
    shape = _numbers(entries["shape"])
    dtype = getattr(torch, _text(entries["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{entries['dtype']!r} is no type of tensor")
    pieces = tuple(_piece(piece, shape) for piece in entries["pieces"])
    if any(prod(piece.sizes) * dtype.itemsize > piece.size_bytes for piece in pieces):
        raise ValueError(f"a piece of a tensor of shape {shape} has more elements than bytes for them")
    if sum(prod(piece.sizes) for piece in pieces) != prod(shape):
        raise ValueError(f"the pieces of a tensor of shape {shape} are not as many elements as it has")
    return SavedTensor(shape=shape, dtype=dtype, pieces=pieces)


def _piece(found: Any, shape: tuple[int, ...]) -> Piece:
    offsets, sizes, file, start, size_bytes = found
    offsets, sizes = _numbers(offsets), _numbers(sizes)
    if not len(offsets) == len(sizes) == len(shape):
        raise ValueError(f"a piece of a tensor of shape {shape} has {len(sizes)} dimensions")
    if any(offset + size > most for offset, size, most in zip(offsets, sizes, shape, strict=True)):
        raise ValueError(f"a piece at {offsets} of shape {sizes} leads out of a tensor of shape {shape}")
    if not _PIECE_FILE.fullmatch(_text(file)):
        raise ValueError(f"{file!r} is no name of a file with pieces")
    start, size_bytes = _numbers((start, size_bytes))
    return Piece(offsets=offsets, sizes=sizes, file=file, start=start, size_bytes=size_bytes)


def _optimizer(found: object) -> NamedState:
    entries = _dict(found, "the optimizer")
    groups = tuple(tuple(_text(name) for name in names) for names in entries["groups"])
    options = tuple(_dict(group, "a parameter group") for group in entries["options"])
    if len(groups) != len(options):
        raise ValueError("the optimizer's groups are not as many as their options")
    state = {_text(name): _dict(values, "state") for name, values in _dict(entries["state"], "state").items()}
    return NamedState(groups=groups, options=options, state=state, rest=_dict(entries["rest"], "rest"))


def _dict(found: object, what: str) -> dict[Any, Any]:
    if not isinstance(found, dict):
        raise TypeError(f"{what} is a {type(found).__name__}")
    return found


def _text(found: object) -> str:
    if not isinstance(found, str):
        raise TypeError(f"a name is a {type(found).__name__}")
    return found


def _numbers(found: object) -> tuple[int, ...]:
    if not isinstance(found, tuple | list) or not all(type(number) is int and 0 <= number < _MOST for number in found):
        raise ValueError(f"{found!r} are no sizes")
    return tuple(found)
