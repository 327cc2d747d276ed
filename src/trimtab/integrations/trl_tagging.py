"""Which rows the items of an SFTTrainer's data are, and how its batches come to carry them.

Enters: a built trainer, then the loader that it builds. Leaves: batches with (B,) rows, or (B, T) rows of the tokens
where a sequence holds tokens of several rows. What nothing is left of is said in words, never guessed: a packed
sequence that was not built inside `trimtab.keep_row_ids()` has no rows.

Shapes: B sequences, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray

from trimtab.integrations.hf_data import TrainingData
from trimtab.integrations.hf_rows import id_book
from trimtab.integrations.trl_rows import COLUMN, kept_rows, were_kept
from trimtab.torch.loader import ROW_KEY, TaggedDataset, TaggedItem, TaggedStream, TaggingCollator, wrap_loader


class HandedOver:
    """The dataset that the constructor was given, of which only the length is left."""

    def __init__(self, num_rows: int) -> None:
        """Knows that there were `num_rows`."""
        self._num_rows = num_rows

    def __len__(self) -> int:
        """Number of rows."""
        return self._num_rows


@dataclass(frozen=True, slots=True, kw_only=True)
class SFTRows:
    """What is known of the rows behind the data of an SFTTrainer.

    Attributes:
        source: What the row numbers index, as `trimtab.dataset.describe` takes it; None where there are no numbers.
        numbers: (N,) int64, the row of each item. Of packed items: a dataset parallel to the trainer's own with the
            rows of their tokens in `COLUMN`. Of a stream: the one to train on in its place, with the row or the rows
            in `COLUMN`. None: an item's row is its index, or its place in the stream.
        unknown: Why rows are not known, in words; empty where they are.
    """

    source: object | None
    numbers: Any = None
    unknown: str = ""


def find_rows(trainer: Any) -> SFTRows:
    """Finds out what is known of the rows behind a trainer's `train_dataset`."""
    dataset, args = trainer.train_dataset, trainer.args
    kept = kept_rows(trainer)
    if kept is not None:
        packed = is_stream(kept.rows) or not isinstance(kept.rows.features[COLUMN], datasets.Value)
        return SFTRows(source=kept.source, numbers=kept.rows if packed else kept.rows[:][COLUMN].astype(np.int64))
    if were_kept(trainer):
        return SFTRows(source=None, unknown="its train_dataset was replaced after it was built")
    # Private to TRL, as is what follows from it, so tests hold both in place.
    unprepared = vars(trainer).get("_skip_prepare_dataset")
    if unprepared is None:
        return SFTRows(source=None, unknown="this version of TRL prepares its data in another way than TRL 1.16")
    if unprepared:
        return SFTRows(source=dataset)
    if args.packing:
        return SFTRows(source=None, unknown="its constructor has packed them")
    indices = getattr(dataset, "_indices", None)
    if indices is None:  # a stream, or as many items as there were rows, in their order
        return SFTRows(source=dataset if is_stream(dataset) else HandedOver(len(dataset)))
    if args.max_length is not None:
        # Cutting rewrote the rows in their order, and all that came after it, dropping and shuffling, selects.
        numbers = indices.column(0).to_numpy().astype(np.int64)
        return SFTRows(source=HandedOver(len(dataset._data)), numbers=numbers)
    if not args.shuffle_dataset:  # nothing was dropped: the user's own selection
        return SFTRows(source=dataset)
    return SFTRows(source=None, unknown="its constructor has shuffled them")


def is_stream(dataset: Any) -> bool:
    """Whether a trainer's dataset is iterable only."""
    return isinstance(dataset, datasets.IterableDataset)


class PackedDataset(TaggedDataset):
    """A map-style dataset of packed sequences, which carry the row of each token that stands in a parallel dataset."""

    def __init__(self, dataset: Any, numbers: datasets.Dataset) -> None:
        """Wraps `dataset`; `numbers` is as long, with numpy values in `COLUMN`."""
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
        """The batch with (B,) rows, or (B, T) rows of the tokens; without rows where they cannot be told."""
        if not self.flattens and np.ndim(tagged[0].row) == 0:
            return super().__call__(tagged)
        items = [entry.item for entry in tagged]
        tokens = [item["input_ids"] for item in items]  # before collating: it may take the items apart
        rows = [np.broadcast_to(entry.row, len(ids)) for entry, ids in zip(tagged, tokens, strict=True)]
        batch = self.collate(items)
        if isinstance(batch, MutableMapping):
            found = _flat_rows(batch, rows) if self.flattens else _padded_rows(batch, rows, tokens)
            if found is not None:
                batch[ROW_KEY] = found
        return batch


class SFTData(TrainingData):
    """What a run knows of an SFTTrainer's data."""

    def __init__(self, trainer: Any, found: SFTRows, *, row_id: str, record: bool) -> None:
        """Knows the trainer and what was found of its rows; for the other arguments see `trimtab.attach`."""
        super().__init__(trainer, row_id=row_id, record=record, exclusion=None)
        self._found = found

    def build_loader(self, build: Callable[[], Any]) -> Any:
        """Lets the trainer build its training loader, of a numbered stream over that one."""
        if not is_stream(self._found.numbers):
            return build()
        whole = self._trainer.train_dataset
        self._trainer.train_dataset = self._found.numbers
        try:
            return build()
        finally:
            self._trainer.train_dataset = whole

    def tag_loader(self, loader: Any) -> None:
        """Makes the batches of a built loader carry their rows, where these are known; ids are told anew."""
        found = self._found
        if found.unknown:
            return
        if self._record and isinstance(found.source, datasets.Dataset):
            self.book = id_book(found.source, row_id=self._row_id)
        wrap_loader(
            loader,
            dataset=partial(_tagged, numbers=found.numbers, row_id=self._row_id),
            collate=partial(SFTCollator, flattens=self._trainer.padding_free),
        )


def _tagged(dataset: Any, *, numbers: Any, row_id: str) -> TaggedDataset | TaggedStream:
    if is_stream(dataset):
        kind = TaggedStream if numbers is None else NumberedStream
        return kind(dataset, row_id=row_id, with_marks=False)
    if isinstance(numbers, datasets.Dataset):
        return PackedDataset(dataset, numbers)
    return TaggedDataset(dataset, rows=numbers)


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
