"""Row numbers that travel with the data, inside the loader that the host itself built.

The innermost dataset of a loader is replaced by one that yields `(row, item, mark)`, and its collate function by one
that collates the items as before and adds the rows to the batch under `ROW_KEY`, and what else is known of them under
`MARKS_KEY`. Sampler, shuffling, batching and workers are not touched, nothing is copied, and no queue beside the
sampler can fall out of step with it.

All classes are picklable, so they also work in workers that are spawned.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from trimtab.errors import UsageError
from trimtab.spelling import row_digest
from trimtab.torch.exclusion import Exclusion, Forwarding, PassedOver
from trimtab.torch.marks import MARKS_KEY, Mark, integer_of, mark_by_name, name_of, pack_marks

ROW_KEY: Final = "trimtab_row"
"""Key under which a batch carries its rows until they are taken out, before the model sees it."""

LOOSE_KEY: Final = "trimtab_loose_rows"
"""Key under which a batch carries the rows that it was made of, where nobody can tell which sequence is whose."""

POSITION_BITS: Final = 40
"""Streams without ids: `worker << 40 | position`; 2**40 rows a worker and 2**23 workers fit into an int64."""


class TaggedItem(NamedTuple):
    """An item of the dataset with its row number, and what else is known of the row.

    Of an item that was packed of several rows, `row` holds (T,) the row number of each token.
    """

    row: Any
    item: Any
    mark: Mark | None = None


class TaggedDataset(Forwarding, Dataset[TaggedItem]):
    """A map-style dataset whose items carry their row number, and the id they hold where that is to be kept."""

    def __init__(self, dataset: Any, *, rows: NDArray[np.int64] | None = None, row_id: str | None = None) -> None:
        """Wraps `dataset`.

        Args:
            dataset: Map-style.
            rows: The row number of each index; None: the index itself.
            row_id: Name under which an item that is a mapping holds the user's own id; None: ids are not looked for.
        """
        self.dataset = dataset
        self.rows = rows
        self.row_id = row_id

    def __len__(self) -> int:
        """Length of the wrapped dataset."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> TaggedItem:
        """Item `index` with its row number."""
        return self._tag(index, self.dataset[index])

    def __getitems__(self, indices: Sequence[int]) -> list[TaggedItem]:
        """Several items at once, by the wrapped dataset's own batch fetch where it has one."""
        fetch = getattr(self.dataset, "__getitems__", None)
        items = fetch(indices) if fetch is not None else [self.dataset[index] for index in indices]
        return [self._tag(index, item) for index, item in zip(indices, items, strict=True)]

    def _tag(self, index: int, item: Any) -> TaggedItem:
        row = int(index if self.rows is None else self.rows[index])
        return TaggedItem(row, item, None if self.row_id is None else mark_by_name(item, row_id=self.row_id))


class TaggedStream(Forwarding, IterableDataset[TaggedItem]):
    """An iterable dataset whose items carry a row number: the user's own, or the position in this worker's stream.

    An item without a number of its own is marked by the digest of its content, and by an id of another kind.
    """

    def __init__(
        self, dataset: Any, *, row_id: str, with_marks: bool = True, passed_over: PassedOver | None = None
    ) -> None:
        """Wraps `dataset`.

        Args:
            dataset: Iterable.
            row_id: Column with the user's own ids; integers among them are the row numbers.
            with_marks: False: the items carry nothing but their number.
            passed_over: Rows that are not yielded; the others keep the numbers they have.
        """
        self.dataset = dataset
        self.row_id = row_id
        self.with_marks = with_marks
        self.passed_over = passed_over

    def __iter__(self) -> Iterator[TaggedItem]:
        """The stream, tagged."""
        passed_over = self.passed_over
        num_passed_over = num_left = 0
        for position, item in enumerate(self.dataset):
            own_row = own_number(item, row_id=self.row_id)
            needed = own_row is None and (self.with_marks or passed_over is not None)
            digest = row_digest(item) if needed else None
            if passed_over is not None and passed_over.holds(digest=digest, own_row=own_row):
                num_passed_over += 1
                continue
            num_left += 1
            row = number_in_stream(item, position, row_id=self.row_id)
            yield TaggedItem(row, item, self._mark(item, digest) if self.with_marks and own_row is None else None)
        worker = get_worker_info()
        # Of several workers another one may have rows left.
        if passed_over is not None and num_passed_over and not num_left and (worker is None or worker.num_workers == 1):
            raise UsageError(
                f"{passed_over.path} lists every row that the stream has, {num_passed_over} in this pass: none is left "
                "to train on."
            )

    def _mark(self, item: Any, digest: int | None) -> Mark:
        name = name_of(item.get(self.row_id)) if isinstance(item, Mapping) else None
        return Mark(digest or 0, name)


class SizedTaggedStream(TaggedStream):
    """A tagged stream that knows its length, as the one that it wraps does; hosts plan their steps by it."""

    def __len__(self) -> int:
        """Length of the wrapped stream, less the rows that are passed over if it yields each of them once."""
        num_passed_over = len(self.passed_over) if self.passed_over is not None else 0
        return max(0, len(self.dataset) - num_passed_over)


class TaggingCollator:
    """Collates the items as before and adds their rows to the batch."""

    def __init__(self, collate: Callable[[list[Any]], Any], *, always_marks: bool = False) -> None:
        """Wraps `collate`; `always_marks`: a batch without a mark carries an empty tensor of them all the same."""
        self.collate = collate
        self.always_marks = always_marks

    def __call__(self, tagged: list[TaggedItem]) -> Any:
        """The batch with (B,) rows, or (1, L) rows a token where the items were concatenated into one sequence.

        Marks are (B, W), or (1, B, W) beside rows a token: both are of the batch's own leading size. A batch that is no
        mapping is left without rows; one whose sequences are not the items one by one has them under `LOOSE_KEY`.
        """
        items = [entry.item for entry in tagged]
        lengths = _lengths(items)  # before collating: some collators take the items apart
        batch = self.collate(items)
        if isinstance(batch, MutableMapping):
            numbers = [entry.row for entry in tagged]
            rows = _rows(batch, numbers, lengths)
            if rows is None:
                batch[LOOSE_KEY] = loose_rows(batch, numbers)
            else:
                batch[ROW_KEY] = rows
                if self.always_marks or any(entry.mark is not None for entry in tagged):
                    marks = pack_marks(numbers, [entry.mark for entry in tagged])
                    batch[MARKS_KEY] = marks if rows.dim() == 1 else marks[None]
        return batch


def tag_rows(loader: Any, *, row_id: str, with_marks: bool = True, exclusion: Exclusion | None = None) -> None:
    """Makes a built loader tag its batches; sampler, order and workers stay as they are.

    Args:
        loader: A `DataLoader`, or one that accelerate prepared, before it is iterated for the first time.
        row_id: Column with the user's own ids; integers of an iterable dataset are its row numbers.
        with_marks: Whether ids, and digests of a stream's rows, travel with the rows.
        exclusion: Rows that the loader's dataset is without (map-style), or that are to be passed over (a stream).

    Raises:
        UsageError: The loader was built over another dataset than the one without the rows.
    """
    # It puts the batches of several processes together, key by key, and takes all for the first one's like.
    dispatches = type(loader).__name__ == "DataLoaderDispatcher"
    wrap_loader(
        loader,
        dataset=functools.partial(_tagged, row_id=row_id, with_marks=with_marks, exclusion=exclusion),
        collate=functools.partial(TaggingCollator, always_marks=with_marks and dispatches),
    )


def wrap_loader(
    loader: Any,
    *,
    dataset: Callable[[Any], TaggedDataset | TaggedStream],
    collate: Callable[[Callable[[list[Any]], Any]], TaggingCollator],
) -> None:
    """Puts a tagging dataset and collate function in place of a built loader's own; a second call does nothing.

    Args:
        loader: A `DataLoader`, or one that accelerate prepared, before it is iterated for the first time.
        dataset: Makes the tagging dataset of the innermost one.
        collate: Makes the tagging collate function of the loader's own.
    """
    base = getattr(loader, "base_dataloader", loader)
    assert isinstance(base, DataLoader), "the host builds its loader from torch's"
    holder: Any = base
    if type(base.dataset).__name__ == "IterableDatasetShard":  # accelerate's; the stream inside is what has rows
        holder = base.dataset
    if isinstance(holder.dataset, TaggedDataset | TaggedStream):
        return
    # DataLoader forbids assigning `dataset` once it is built; the sampler keeps its own reference to the original.
    holder.__dict__["dataset"] = dataset(holder.dataset)
    base.collate_fn = collate(base.collate_fn)


def own_number(item: Any, *, row_id: str) -> int | None:
    """The user's own row number of a stream's item; None where it holds no integer under `row_id`."""
    return integer_of(item.get(row_id)) if isinstance(item, Mapping) else None


def number_in_stream(item: Any, position: int, *, row_id: str) -> int:
    """The row number of a stream's item: the user's own, else this process's worker and the position in its stream."""
    own_row = own_number(item, row_id=row_id)
    if own_row is not None:
        return own_row
    worker = get_worker_info()
    return position if worker is None else worker.id << POSITION_BITS | position


def _tagged(
    dataset: Any, *, row_id: str, with_marks: bool, exclusion: Exclusion | None
) -> TaggedDataset | TaggedStream:
    if not isinstance(dataset, IterableDataset):
        rows = exclusion.kept if exclusion is not None else None
        if exclusion is not None and (rows is None or len(dataset) != rows.size):
            raise UsageError(
                f"This trainer builds its training loader over {len(dataset)} rows of its own choice, and not over its "
                "train_dataset, so exclude= cannot leave rows out: filter the data where the loader is built."
            )
        return TaggedDataset(dataset, rows=rows, row_id=row_id if with_marks else None)
    kind = SizedTaggedStream if hasattr(dataset, "__len__") else TaggedStream
    passed_over = exclusion.passed_over if exclusion is not None else None
    return kind(dataset, row_id=row_id, with_marks=with_marks, passed_over=passed_over)


def _lengths(items: list[Any]) -> list[int] | None:
    try:
        return [len(item["input_ids"]) for item in items]
    except (TypeError, KeyError, IndexError, AttributeError):
        return None


def loose_rows(batch: Mapping[str, Any], rows: Sequence[int]) -> torch.Tensor:
    """(S, K) int64: the rows, at least one, of a batch of S sequences, the last of them as often as it takes.

    Of the batch's own leading size, because a host that cuts batches takes it for one tensor more of them.
    """
    num_sequences = max((1, *_leading_shape(batch)[:1]))
    width = -(-len(rows) // num_sequences)
    padded = np.full(num_sequences * width, rows[-1], dtype=np.int64)
    padded[: len(rows)] = rows
    return torch.from_numpy(padded.reshape(num_sequences, width))


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
