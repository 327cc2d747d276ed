"""What a rank puts into a checkpoint: which parts, in which file, of which values.

    model.pt, optimizer.pt   the state dicts as torch gives them, under the names of the module inside
    run.pt                   what is alike on all ranks: scheduler, scaler, guard and recorder state, loss, ...
    rank_<r>.pt              what each rank has of its own: random number generators, data position

Enters: what `Checkpointer.save` was given. Leaves: plain values and tensors, checked to be such as `weights_only` reads
back. Invariant: what would need a pickle to load is refused before anything is written, by its place and type.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from trimtab.errors import UsageError
from trimtab.text import plain

MODEL_FILE: Final = "model.pt"
OPTIMIZER_FILE: Final = "optimizer.pt"
RUN_FILE: Final = "run.pt"
SHARDED_FOLDER: Final = "sharded"

RUN_VERSION: Final = 1
"""Version of what stands in `run.pt` and `rank_<r>.pt`."""

_MAX_DEPTH: Final = 100


def rank_file(rank: int) -> str:
    """The file of one rank's own parts."""
    return f"rank_{rank}.pt"


class Taker:
    """Takes values for a checkpoint: as they are, or copied to the host so that later steps do not change them.

    Tensors that share memory share their copy: tied weights stay one.
    """

    def __init__(self, *, copies: bool) -> None:
        """Takes nothing yet.

        Args:
            copies: Whether tensors are copied. Lists and mappings always are.
        """
        self._copies = copies
        self._copied: dict[tuple[Any, ...], torch.Tensor] = {}
        self._kept_alive: list[torch.Tensor] = []

    def take(self, value: object, *, where: str, depth: int = 0) -> Any:
        """A value that `torch.load(weights_only=True)` reads back as it is now.

        Subclasses of numbers and text, and NumPy's scalars, become plain ones: a pickle would name their class.

        Raises:
            UsageError: It holds something that only a pickle could bring back.
        """
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size):
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value, where=where)
        if depth > _MAX_DEPTH:
            raise UsageError(f"{where} is nested more than {_MAX_DEPTH} deep, or holds itself: it cannot be saved.")
        if kind in (dict, OrderedDict, Counter):
            assert isinstance(value, dict)
            taken = {
                self.take(key, where=f"a key of {where}", depth=depth + 1): self.take(
                    entry, where=f"{where}[{plain(repr(key)[:100])}]", depth=depth + 1
                )
                for key, entry in value.items()
            }
            return taken if kind is dict else _like(value, taken)
        if kind in (list, tuple, set):
            assert isinstance(value, (list, tuple, set))
            return kind(
                self.take(entry, where=f"{where}[{place}]", depth=depth + 1) for place, entry in enumerate(value)
            )
        if isinstance(value, np.generic):
            return self.take(value.item(), where=where, depth=depth + 1)
        for base in (bool, int, float, str):
            if isinstance(value, base):
                return base(value)
        if isinstance(value, Mapping):
            return self.take(dict(value), where=where, depth=depth + 1)
        hint = ": torch.from_numpy(...) makes it a tensor" if isinstance(value, np.ndarray) else ""
        raise UsageError(
            f"{where} is a {plain(kind.__module__)}.{plain(kind.__qualname__)}, which only a pickle could bring back, "
            "and a checkpoint is loaded without one. Save numbers, text, lists, mappings and tensors" + hint + "."
        )

    def _tensor(self, value: torch.Tensor, *, where: str) -> torch.Tensor:
        tensor = value.detach()
        if type(tensor) is not torch.Tensor or tensor.is_meta:
            found = "on the meta device and holds no values" if tensor.is_meta else f"a {type(tensor).__qualname__}"
            raise UsageError(f"{where} is {found}: a checkpoint holds plain tensors, and shards of fully_shard.")
        if not self._copies:
            return tensor
        if tensor.layout is not torch.strided or not tensor.numel():
            return tensor.to("cpu", copy=True)
        key = (tensor.data_ptr(), tensor.device, tensor.shape, tensor.stride(), tensor.dtype)
        if key not in self._copied:
            self._copied[key] = tensor.to("cpu", copy=True)
            self._kept_alive.append(tensor)  # its address is nobody else's until all are taken
        return self._copied[key]


def _like(value: dict[Any, Any], taken: dict[Any, Any]) -> Any:
    if isinstance(value, Counter):
        return Counter(taken)
    ordered = OrderedDict(taken)
    # Versions of the modules, by which later ones know what an older one has saved.
    metadata = getattr(value, "_metadata", None)
    if metadata is not None:
        ordered._metadata = metadata  # type: ignore[attr-defined]
    return ordered
