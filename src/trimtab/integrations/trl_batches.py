"""How the batches of an SFTTrainer come to carry the rows of their tokens.

Enters: items, each with its row, or with the row of each of its tokens. Leaves: batches with (B,) rows, or (B, T) rows
of the tokens where a sequence holds tokens of several rows. Invariant: a batch whose sequences are not known to be the
items, one by one or one behind the other, has its rows in no place.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.integrations.trl_keeping import COLUMN
from trimtab.torch.loader import (
    LOOSE_KEY,
    ROW_KEY,
    TaggedDataset,
    TaggedItem,
    TaggedStream,
    TaggingCollator,
    loose_rows,
)


class PackedDataset(TaggedDataset):
    """A map-style dataset of packed sequences, which carry the row of each token that stands in a parallel dataset."""

    def __init__(self, dataset: Any, numbers: Any) -> None:
        """Wraps `dataset`; `numbers` is a Hugging Face Dataset as long as it, with numpy values in `COLUMN`."""
        super().__init__(dataset)
        self.numbers = numbers

    def __getitem__(self, index: int) -> TaggedItem:
        """Item `index` with its rows."""
        return TaggedItem(self.numbers[int(index)][COLUMN], self.dataset[index])

    def __getitems__(self, indices: Sequence[int]) -> list[TaggedItem]:
        """Several items at once."""
        rows = self.numbers[[int(index) for index in indices]][COLUMN]
        found = super().__getitems__(indices)
        return [entry._replace(row=row) for row, entry in zip(rows, found, strict=True)]


class NumberedStream(TaggedStream):
    """A stream whose items bring their row, or the row of each token, in a column that goes no further."""

    def __iter__(self) -> Iterator[TaggedItem]:
        """The stream, tagged."""
        for item in self.dataset:
            yield TaggedItem(item[COLUMN], {name: value for name, value in item.items() if name != COLUMN})


class SFTCollator(TaggingCollator):
    """Collates the items as before and adds the rows of their tokens where a sequence holds several rows."""

    def __init__(self, collate: Callable[[list[Any]], Any], *, flattens: bool) -> None:
        """Wraps `collate`, which concatenates the items of a batch into one sequence if it `flattens`."""
        super().__init__(collate)
        self.flattens = flattens

    def __call__(self, tagged: list[TaggedItem]) -> Any:
        """The batch with (B,) rows, or (B, T) rows of the tokens; under `LOOSE_KEY` where their places are unknown."""
        if not self.flattens and np.ndim(tagged[0].row) == 0:
            return super().__call__(tagged)
        items = [entry.item for entry in tagged]
        tokens = [item["input_ids"] for item in items]  # before collating: it may take the items apart
        rows = [np.broadcast_to(entry.row, len(ids)) for entry, ids in zip(tagged, tokens, strict=True)]
        batch = self.collate(items)
        if isinstance(batch, MutableMapping):
            found = _flat_rows(batch, rows) if self.flattens else _padded_rows(batch, rows, tokens)
            known = np.unique(np.concatenate(rows)).tolist()
            if found is not None:
                batch[ROW_KEY] = found
            elif known:
                batch[LOOSE_KEY] = loose_rows(batch, known)
        return batch


def _flat_rows(batch: Mapping[str, Any], rows: list[NDArray[Any]]) -> torch.Tensor:
    """(1, T) rows of the tokens of a batch whose items TRL concatenated, and may have padded at the end."""
    flat = np.concatenate(rows)
    return torch.from_numpy(_filled(flat, width=batch["input_ids"].shape[1]))[None]


def _padded_rows(batch: Mapping[str, Any], rows: list[NDArray[Any]], tokens: list[Any]) -> torch.Tensor | None:
    """(B, T) rows of the tokens of a batch; None where its sequences are not the items, padded on the right."""
    ids = batch.get("input_ids")
    if not isinstance(ids, torch.Tensor) or ids.dim() != 2 or len(ids) != len(rows):
        return None
    width = ids.shape[1]
    for sequence, own, expected in zip(ids, rows, tokens, strict=True):
        size = len(own)
        padded = size < width
        if size > width or (padded and not np.array_equal(sequence[:size].numpy(), np.asarray(expected))):
            return None
    return torch.from_numpy(np.stack([_filled(own, width=width) for own in rows]))


def _filled(rows: NDArray[Any], *, width: int) -> NDArray[np.int64]:
    """Rows of tokens and of the padding after them, which is not supervised: the last row again adds none."""
    found = np.full(width, rows[-1] if len(rows) else 0, dtype=np.int64)
    found[: len(rows)] = rows
    return found
