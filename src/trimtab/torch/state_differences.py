"""What differs between the state of a training and the same state as it was loaded, in words, to the last bit.

Enters: two values as a `state_dict` gives them: the live one, and the loaded one. Leaves: a sentence for each tensor,
number or text that differs, by its place; none where all is the same. Invariants: neither is changed; a NaN is the same
where its bits are; only what differs, is not contiguous or lies on another device is copied, for a moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

import torch

from trimtab.text import plain
from trimtab.torch.placement import placed

_PIECE: Final = 1 << 20
"""Entries that are looked at together where tensors differ: in float64 they take 8 MB."""

_MOST_SPELLED: Final = 80
"""Characters of a value that is no number."""

_BITS: Final = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def differences(live: object, loaded: object, *, where: str) -> Iterator[str]:
    """What differs between two plain values, lists, mappings or tensors.

    Waits for the device of a tensor, once each.

    Args:
        live: What the training has.
        loaded: What was made of the checkpoint.
        where: What to call it; plain ASCII.
    """
    if isinstance(live, torch.Tensor) and isinstance(loaded, torch.Tensor):
        found = tensor_difference(live, loaded)
        if found is not None:
            yield f"{where} {found}"
    elif isinstance(live, Mapping) and isinstance(loaded, Mapping):
        for key in live.keys() | loaded.keys() if live.keys() != loaded.keys() else ():
            if key not in live or key not in loaded:
                has, lacks = ("the training", "what was loaded") if key in live else ("what was loaded", "the training")
                yield f"{where}[{_spelled(key)}] is in {has} and not in {lacks}"
        for key, value in live.items():
            if key in loaded:
                yield from differences(value, loaded[key], where=f"{where}[{_spelled(key)}]")
    elif isinstance(live, list | tuple) and isinstance(loaded, list | tuple):
        if len(live) != len(loaded):
            yield f"{where} has {len(live)} entries in the training and {len(loaded)} as loaded"
            return
        for place, (one, other) in enumerate(zip(live, loaded, strict=True)):
            yield from differences(one, other, where=f"{where}[{place}]")
    elif not _is_same(live, loaded):
        yield f"{where} is {_spelled(live)} in the training and {_spelled(loaded)} as loaded"


def tensor_difference(live: torch.Tensor, loaded: torch.Tensor) -> str | None:
    """What differs between two tensors, as what follows the name; None where every bit is the same.

    Of a tensor that lies on several ranks this rank's part is looked at.
    """
    if live.shape != loaded.shape or live.dtype != loaded.dtype or live.layout != loaded.layout:
        return f"is {_kind(live)} in the training and {_kind(loaded)} as loaded"
    if live.is_meta or loaded.is_meta:
        return None if live.is_meta and loaded.is_meta else "is on the meta device on one side, and holds no values"
    one, other = placed(live), placed(loaded)
    if one.offsets != other.offsets or one.local.shape != other.local.shape:
        return "lies on the ranks otherwise in the training than in what was built"
    a, b = one.local, other.local
    if a.layout is not torch.strided:
        return _other_layout_difference(a, b)
    a, b = (tensor.resolve_conj().resolve_neg() for tensor in (a, b.to(a.device)))
    if torch.equal(_bits(a), _bits(b)):
        return None
    counted = _count(a, b)
    values = f"{counted.live!r} in the training and {counted.loaded!r} as loaded"
    if not one.shape:
        return f"is {values}"
    first = one.indices_in_whole(torch.tensor([counted.first]))
    at = [int(place) for place in torch.unravel_index(first[0], one.shape)]
    by = f" by up to {counted.largest:.3g}" if counted.largest > 0 else ""
    return f"differs in {counted.num} of {a.numel()} entries{by}: at {at} it is {values}"


class _Counted(NamedTuple):
    """What differs between two tensors of one kind: how many entries, by how much at most, and the first of them."""

    num: int
    largest: float
    first: int
    live: Any
    loaded: Any


def _count(a: torch.Tensor, b: torch.Tensor) -> _Counted:
    num, largest, first, at = 0, 0.0, -1, 0
    values: tuple[Any, Any] = (None, None)
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    for piece_a, piece_b in zip(torch.split(flat_a, _PIECE), torch.split(flat_b, _PIECE), strict=True):
        differs = _bits(piece_a).view(piece_a.numel(), -1) != _bits(piece_b).view(piece_b.numel(), -1)
        places = differs.any(-1).nonzero().flatten()
        if len(places):
            if first < 0:
                first = at + int(places[0])
                values = piece_a[places[0]].item(), piece_b[places[0]].item()
            num += len(places)
            largest = max(largest, _largest(piece_a[places], piece_b[places]))
        at += piece_a.numel()
    return _Counted(num, largest, first, *values)


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    """The largest finite difference; 0 where there is none."""
    wide = torch.complex128 if a.is_complex() else torch.float64
    apart = (a.cpu().to(wide) - b.cpu().to(wide)).abs()
    apart = apart[torch.isfinite(apart)]
    return float(apart.max()) if len(apart) else 0.0


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    """Its bits as whole numbers, flat; a copy only of what is not contiguous."""
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor)
    return tensor.contiguous().reshape(-1).view(_BITS[tensor.element_size()])


def _other_layout_difference(a: torch.Tensor, b: torch.Tensor) -> str | None:
    if a.layout is not torch.sparse_coo:
        is_equal = bool(torch.equal(a.to_dense().cpu(), b.to_dense().cpu()))
        return None if is_equal else "differs in its values"
    a, b = a.coalesce(), b.coalesce()
    if not torch.equal(a.indices().cpu(), b.indices().cpu()):
        return "differs in which entries it holds"
    return tensor_difference(a.values(), b.values())


def _is_same(live: object, loaded: object) -> bool:
    if isinstance(live, float) and isinstance(loaded, float) and math.isnan(live) and math.isnan(loaded):
        return True
    if isinstance(live, torch.Tensor) or isinstance(loaded, torch.Tensor):
        return False
    try:
        return live is loaded or bool(live == loaded)
    except Exception:  # noqa: BLE001 - somebody else's class
        return False


def _kind(tensor: torch.Tensor) -> str:
    layout = f", {str(tensor.layout).removeprefix('torch.')}" if tensor.layout is not torch.strided else ""
    return f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}{layout}"


def _spelled(value: object) -> str:
    """A value in few words."""
    if isinstance(value, torch.Tensor):
        return f"a tensor ({_kind(value)})"
    spelled = plain(value) if isinstance(value, str) else plain(repr(value))
    return spelled if len(spelled) <= _MOST_SPELLED else f"{spelled[:_MOST_SPELLED]}..."
