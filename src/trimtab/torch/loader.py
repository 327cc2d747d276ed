"""Row numbers that travel with the data, inside the loader that the host itself built.

The innermost dataset of a loader is replaced by one that yields `(row, item)`, and its collate function by one that
collates the items as before and adds the rows to the batch under `ROW_KEY`. Sampler, shuffling, batching and workers
are not touched, nothing is copied, and no queue beside the sampler can fall out of step with it.

All classes are picklable, so they also work in workers that are spawned.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

ROW_KEY: Final = "trimtab_row"
"""Key under which a batch carries its rows until they are taken out, before the model sees it."""

_WORKER_SHIFT: Final = 40
"""Streams without ids: `worker << 40 | position`; 2**40 rows a worker and 2**23 workers fit into an int64."""

_INT64: Final = range(-(2**63), 2**63)


class TaggedItem(NamedTuple):
    """An item of the dataset with its row number."""

    row: int
    item: Any


class _Forwarding:
    """Gives the attributes of the dataset that it wraps, so that hosts find what they look for."""

    dataset: Any

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "dataset":  # before unpickling has set it
            raise AttributeError(name)
        return getattr(self.dataset, name)


class TaggedDataset(_Forwarding, Dataset[TaggedItem]):
    """A map-style dataset whose items carry their index."""

    def __init__(self, dataset: Any) -> None:
        """Wraps `dataset`."""
        self.dataset = dataset

    def __len__(self) -> int:
        """Length of the wrapped dataset."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> TaggedItem:
        """Item `index` with its row number."""
        return TaggedItem(int(index), self.dataset[index])

    def __getitems__(self, indices: Sequence[int]) -> list[TaggedItem]:
        """Several items at once, by the wrapped dataset's own batch fetch where it has one."""
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(indices) if fetch is not None else [self.dataset[index] for index in indices]
        return [TaggedItem(int(index), item) for index, item in zip(indices, items, strict=True)]


class TaggedStream(_Forwarding, IterableDataset[TaggedItem]):
    """An iterable dataset whose items carry a row number: the user's own, or the position in this worker's stream."""

    def __init__(self, dataset: Any, *, row_id: str) -> None:
        """Wraps `dataset`; `row_id` names the column with the user's own integer row numbers."""
        self.dataset = dataset
        self.row_id = row_id

    def __iter__(self) -> Iterator[TaggedItem]:
        """The stream, tagged."""
        worker = get_worker_info()
        base = worker.id << _WORKER_SHIFT if worker is not None else 0
        for position, item in enumerate(self.dataset):
            own = _integer(item.get(self.row_id)) if isinstance(item, Mapping) else None
            yield TaggedItem(base | position if own is None else own, item)


class SizedTaggedStream(TaggedStream):
    """A tagged stream that knows its length, as the one that it wraps does; hosts plan their steps by it."""

    def __len__(self) -> int:
        """Length of the wrapped stream."""
        return len(self.dataset)


class TaggingCollator:
    """Collates the items as before and adds their rows to the batch."""

    def __init__(self, collate: Callable[[list[Any]], Any]) -> None:
        """Wraps `collate`."""
        self.collate = collate

    def __call__(self, tagged: list[TaggedItem]) -> Any:
        """The batch with (B,) rows, or (1, L) rows a token where the items were concatenated into one sequence.

        A batch that is no mapping, or whose sequences are not the items one by one, is left without rows.
        """
        items = [item for _, item in tagged]
        lengths = _lengths(items)  # before collating: some collators take the items apart
        batch = self.collate(items)
        if isinstance(batch, MutableMapping):
            rows = _rows(batch, [row for row, _ in tagged], lengths)
            if rows is not None:
                batch[ROW_KEY] = rows
        return batch


def tag_rows(loader: Any, *, row_id: str) -> None:
    """Makes a built loader tag its batches; sampler, order and workers stay as they are.

    Args:
        loader: A `DataLoader`, or one that accelerate prepared, before it is iterated for the first time.
        row_id: Column of an iterable dataset with the user's own integer row numbers.
    """
    base = getattr(loader, "base_dataloader", loader)
    assert isinstance(base, DataLoader), "the host builds its loader from torch's"
    holder: Any = base
    if type(base.dataset).__name__ == "IterableDatasetShard":  # accelerate's; the stream inside is what has rows
        holder = base.dataset
    dataset = holder.dataset
    if isinstance(dataset, TaggedDataset | TaggedStream):
        return
    # DataLoader forbids assigning `dataset` once it is built; the sampler keeps its own reference to the original.
    holder.__dict__["dataset"] = _tagged(dataset, row_id=row_id)
    base.collate_fn = TaggingCollator(base.collate_fn)


def _tagged(dataset: Any, *, row_id: str) -> TaggedDataset | TaggedStream:
    if not isinstance(dataset, IterableDataset):
        return TaggedDataset(dataset)
    kind = SizedTaggedStream if hasattr(dataset, "__len__") else TaggedStream
    return kind(dataset, row_id=row_id)


def _integer(value: Any) -> int | None:
    """An integer of any library as int64 can hold it; None for anything else."""
    if isinstance(value, bool):
        return None
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return number if number in _INT64 else None


def _lengths(items: list[Any]) -> list[int] | None:
    try:
        return [len(item["input_ids"]) for item in items]
    except (TypeError, KeyError, IndexError, AttributeError):
        return None


def _rows(batch: Mapping[str, Any], rows: list[int], lengths: list[int] | None) -> torch.Tensor | None:
    shape = _leading_shape(batch)
    if shape[:1] == (len(rows),):
        return torch.tensor(rows, dtype=torch.int64)
    if lengths is not None and shape == (1, sum(lengths)):
        return torch.repeat_interleave(torch.tensor(rows, dtype=torch.int64), torch.tensor(lengths))[None, :]
    return None


def _leading_shape(batch: Mapping[str, Any]) -> tuple[int, ...]:
    """Shape of the tensor that tells how many sequences there are: the tokens, the labels, or the first there is."""
    for value in (batch.get("input_ids"), batch.get("labels"), *batch.values()):
        if isinstance(value, torch.Tensor) and value.dim() > 0:
            return tuple(value.shape)
    return ()
