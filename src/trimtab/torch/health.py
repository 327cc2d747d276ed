"""Which entries of weights and moments are not finite, and whether they were so when the run began.

Enters: a model and its optimizer. Leaves: by name how many entries are NaN or infinite, and where; and, against those
of the run's beginning, a sentence for each tensor that has become worse. Invariants: nothing is changed; no mask of a
whole tensor is made: one pass takes the extremes of each, and only one that is not finite is looked at in pieces.

A flat index is that of the whole tensor, row-major, also where a rank holds a shard of it: so what several ranks have
found can be put together, and compared with what other numbers of ranks found.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import nn

from trimtab.errors import CheckpointError
from trimtab.text import plain
from trimtab.torch import index_ranges
from trimtab.torch.naming import named_moments, named_weights
from trimtab.torch.placement import Placed, placed

_PIECE: Final = 1 << 20
"""Entries that are looked at together where a tensor is not finite: a mask of 1 MB, their indices of 8 MB at most."""

MAX_RANGES: Final = 1 << 20
"""Ranges of indices that are kept of one tensor, 16 MB: every other entry of two million."""

MAX_RANGES_IN_ALL: Final = 1 << 22
"""Ranges that are kept of all tensors, 64 MB. Beyond either, entries are only counted."""

_MAX_RANGES_IN_TEXT: Final = 16_384
"""The same where they are spelled in a manifest, which is bounded."""

_MAX_SENTENCES: Final = 8


@dataclass(frozen=True, slots=True, eq=False)
class Nonfinite:
    """The entries of one tensor that are NaN or infinite.

    Attributes:
        count: How many.
        ranges: (k, 2) int64 on the CPU, their flat indices as `trimtab.torch.index_ranges` has them; None where they
            are too many.
    """

    count: int
    ranges: torch.Tensor | None


def find_nonfinite(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Nonfinite]:
    """Looks at every floating-point weight, buffer that is saved, and moment; waits for the device, twice at most.

    Args:
        model: The model, or what it is wrapped in.
        optimizer: Its optimizer.

    Returns:
        By name ("model's layer.bias", "exp_avg of layer.bias"), only tensors with such entries: of a shard this rank's.
        `merged` puts those of several ranks together.
    """
    tensors = {f"model's {name}": tensor for name, tensor in named_weights(model)}
    tensors |= {f"{key} of {name}": moment for name, key, moment in named_moments(model, optimizer)}
    parts = {name: part for name, tensor in tensors.items() if (part := _own_part(tensor)) is not None}
    found: dict[str, Nonfinite] = {}
    for name in _suspects({name: part.local for name, part in parts.items()}):
        entries = _entries(parts[name])
        if entries.count:
            found[name] = entries
    return _bounded(found)


def merged(of_ranks: Iterable[Mapping[str, Nonfinite]]) -> dict[str, Nonfinite]:
    """What several ranks have found, each in what it holds; an entry that two of them hold counts once.

    Entries that were only counted add up.
    """
    together: dict[str, list[Nonfinite]] = {}
    for found in of_ranks:
        for name, entries in found.items():
            together.setdefault(name, []).append(entries)
    return _bounded({name: _union(parts) for name, parts in together.items()})


def worse_than(baseline: Mapping[str, Nonfinite], found: Mapping[str, Nonfinite]) -> tuple[str, ...]:
    """A sentence for each tensor with entries that are not finite now and were when the run began.

    Args:
        baseline: What was not finite then.
        found: What is not now.

    Returns:
        At most eight sentences and one that says how many more there would be; none where nothing became worse.
    """
    sentences = []
    for name, entries in found.items():
        count, first = _new_entries(entries, baseline.get(name))
        if count:
            where = f", the first at flat index {first:,}" if first is not None else ""
            are, were = ("entry is", "was") if count == 1 else ("entries are", "were")
            sentences.append(
                f"{plain(name)}: {count:,} {are} NaN or infinite and {were} finite at the run's beginning{where}"
            )
    if len(sentences) > _MAX_SENTENCES:
        num_left = len(sentences) - _MAX_SENTENCES
        sentences[_MAX_SENTENCES:] = [f"and so in {num_left:,} more weights and moments"]
    return tuple(sentences)


def nonfinite_to_state(found: Mapping[str, Nonfinite], *, as_text: bool = False) -> dict[str, list[Any]]:
    """Plain values: name to [count, ranges or None].

    Args:
        found: What was found.
        as_text: Whether they go into a manifest, which takes lists in place of tensors, and fewer of them.
    """
    found = _bounded(found, most=_MAX_RANGES_IN_TEXT) if as_text else found
    return {
        name: [entries.count, entries.ranges.tolist() if as_text and entries.ranges is not None else entries.ranges]
        for name, entries in found.items()
    }


def nonfinite_from_state(state: object, *, where: str) -> dict[str, Nonfinite]:
    """What `nonfinite_to_state` gave.

    Raises:
        CheckpointError: It is something else.
    """
    try:
        if not isinstance(state, Mapping):
            raise TypeError("it is no mapping")
        found = {}
        for name, (count, said) in state.items():
            ranges = torch.tensor(said, dtype=torch.int64).reshape(-1, 2) if isinstance(said, list) else said
            if ranges is not None and not index_ranges.are_ranges(ranges, most=MAX_RANGES):
                raise ValueError("ranges that are none")
            found[str(name)] = Nonfinite(int(count), ranges)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise CheckpointError(f"{where}: the list of entries that were not finite is damaged ({error}).") from error
    return found


def _own_part(tensor: torch.Tensor) -> Placed | None:
    """What this process holds of a tensor; None where there is nothing that could be other than finite."""
    part = placed(tensor)
    local = part.local
    if local.layout is torch.sparse_coo:
        local = local._values()  # where they are in the whole is nobody's question: they are counted
        part = Placed(local=local, shape=local.shape, offsets=(0,) * local.dim())
    is_number = local.is_floating_point() or local.is_complex()
    return part if is_number and local.layout is torch.strided and not local.is_meta and local.numel() else None


def _suspects(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """Names of the tensors whose extremes are not finite; one look of the host for each device."""
    by_device: dict[torch.device, tuple[list[str], list[torch.Tensor]]] = {}
    for name, values in tensors.items():
        names, flags = by_device.setdefault(values.device, ([], []))
        names.append(name)
        flags.append(_is_finite(values))
    found: set[str] = set()
    for names, flags in by_device.values():
        found.update(name for name, is_finite in zip(names, torch.stack(flags).tolist(), strict=True) if not is_finite)
    return [name for name in tensors if name in found]


def _is_finite(values: torch.Tensor) -> torch.Tensor:
    """0-d bool on the device. The extremes of what holds a NaN are NaN."""
    is_finite = None
    for piece in _whole_or_pieces(values):
        low, high = torch.aminmax(piece)
        both = torch.isfinite(low) & torch.isfinite(high)
        is_finite = both if is_finite is None else is_finite & both
    assert is_finite is not None
    return is_finite


def _whole_or_pieces(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Real values of a kind that has extremes; whole, where that takes no copy."""
    if values.is_contiguous() and not values.is_complex() and values.element_size() > 1:
        yield values
        return
    yield from _pieces(values)


def _pieces(values: torch.Tensor) -> Iterator[torch.Tensor]:
    """Consecutive entries in row-major order, each piece 1-d and at most `_PIECE` long; real, and of two bytes or more.

    A complex entry is two of them.
    """
    if values.is_complex():
        values = torch.view_as_real(values)
    if values.is_contiguous():
        flat = values.view(-1)
        parts: Iterable[torch.Tensor] = torch.split(flat, _PIECE)
    elif values.ndim > 1 and values[0].numel() <= _PIECE:
        rows = max(1, _PIECE // max(1, values[0].numel()))
        parts = (part.reshape(-1) for part in torch.split(values, rows))
    elif values.ndim > 1:
        parts = (piece for row in values for piece in _pieces(row))
    else:
        parts = torch.split(values, _PIECE)
    for part in parts:
        yield part.float() if part.element_size() == 1 else part  # torch takes no extremes of float8


def _entries(part: Placed) -> Nonfinite:
    per_entry = 2 if part.local.is_complex() else 1
    count, at = 0, 0
    ranges: list[torch.Tensor] = []
    num_ranges = 0
    for piece in _pieces(part.local):
        indices = (~torch.isfinite(piece)).nonzero().flatten()
        if per_entry == 2 and indices.numel():
            indices = torch.unique(indices // 2)
        count += indices.numel()
        # At the edge of two pieces one range may be two, until their union.
        if num_ranges <= MAX_RANGES + len(ranges) and indices.numel():
            ranges.append(index_ranges.of_indices(part.indices_in_whole(indices + at // per_entry)))
            num_ranges += len(ranges[-1])
        at += piece.numel()
    return Nonfinite(count, _if_not_too_many(ranges))


def _if_not_too_many(parts: Sequence[torch.Tensor]) -> torch.Tensor | None:
    together = index_ranges.union([torch.empty(0, 2, dtype=torch.int64), *parts])
    return together if len(together) <= MAX_RANGES else None


def _union(parts: Sequence[Nonfinite]) -> Nonfinite:
    if len(parts) == 1:
        return parts[0]
    known = [part.ranges for part in parts if part.ranges is not None]
    if len(known) < len(parts):
        return Nonfinite(sum(part.count for part in parts), None)
    together = index_ranges.union(known)
    return Nonfinite(index_ranges.num_indices(together), together if len(together) <= MAX_RANGES else None)


def _bounded(found: Mapping[str, Nonfinite], *, most: int = MAX_RANGES_IN_ALL) -> dict[str, Nonfinite]:
    """The same with no more ranges in all than a checkpoint should hold."""
    num_ranges, kept = 0, {}
    for name, entries in found.items():
        num_ranges += 0 if entries.ranges is None else len(entries.ranges)
        kept[name] = entries if num_ranges <= most else Nonfinite(entries.count, None)
    return kept


def _new_entries(found: Nonfinite, before: Nonfinite | None) -> tuple[int, int | None]:
    """How many entries are in `found` and not in `before`, and the first of them where it is known."""
    if before is None:
        return found.count, int(found.ranges[0, 0]) if found.ranges is not None and len(found.ranges) else None
    if found.ranges is None or before.ranges is None:
        return max(0, found.count - before.count), None
    return index_ranges.difference(found.ranges, before.ranges)
