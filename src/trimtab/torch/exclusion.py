"""Rows that a trainer does not train on: the rest of a map-style dataset, a stream with some rows passed over.

Enters: a drop list and the trainer's dataset. Leaves: the dataset without those rows, and the number that each
remaining row has in the whole one. Invariant: training on what leaves here is training on a dataset that never had the
rows; the user's own dataset object is not touched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from trimtab.dataset.data import is_table_dataset
from trimtab.drop_list import DropList, read_drop_list
from trimtab.errors import UsageError
from trimtab.text import plain


class Exclusion:
    """Which rows of one dataset are left out, because a file lists them.

    Attributes:
        kept: (K,) int64, map-style: the rows that stay, ascending; None for a stream.
        passed_over: What passes over the rows of a stream; None for a map-style dataset.
        num_listed: Rows in the file.
    """

    def __init__(self, path: str | os.PathLike[str], *, dataset: Any, row_id: str = "row_id") -> None:
        """Reads the drop list at `path` and makes sure that it is one of `dataset`.

        Args:
            path: The file.
            dataset: What its rows are left out of.
            row_id: Column of a stream with the user's own row numbers.

        Raises:
            UsageError: It is no drop list, or one of another dataset, or nothing would be left, or no row of it could
                be known again.
        """
        drops = read_drop_list(path)
        facts = drops.check(dataset)
        self.num_listed = len(drops.rows)
        self.kept: NDArray[np.int64] | None = None
        self.passed_over: PassedOver | None = None
        self._path = plain(drops.path)
        self._dataset = dataset
        self._compared = facts.fingerprint is not None
        if facts.num_rows is None:
            self._check_stream(drops, dataset, row_id=row_id)
            self.passed_over = PassedOver(drops)
            return
        self.kept = np.delete(np.arange(facts.num_rows), np.array(drops.rows, np.int64))
        if not self.kept.size:
            raise UsageError(f"{self._path} lists all {facts.num_rows} rows of the dataset: none would be left.")

    def remainder(self, dataset: Any) -> Any:
        """What the trainer is to train on in place of `dataset`, which must be the one that was checked.

        A Hugging Face Dataset is given as one, so that its trainer treats it as it treats the whole; of another
        map-style dataset a view; a stream as it is, for its rows are passed over where they are read.
        """
        if dataset is not self._dataset:
            raise UsageError(
                f"The trainer's train_dataset was replaced after attach(exclude={self._path}), so nobody knows whether "
                "the rows are those of the new one: attach after it is in place."
            )
        if self.kept is None:
            return dataset
        if is_table_dataset(dataset):
            return dataset.select(self.kept)
        return Remainder(dataset, self.kept)

    def facts(self) -> dict[str, Any]:
        """What the log says of it, JSON-ready."""
        return {"file": self._path, "num_rows": self.num_listed}

    def introduction(self) -> str:
        """What it does, in one line."""
        if not self.num_listed:
            return f"Trimtab leaves no row out of training: {self._path} lists none."
        if self.kept is None:
            return (
                f"Trimtab passes over the {_rows(self.num_listed)} of {self._path} wherever the stream yields them, "
                f"told by their content{self._told_by_number()}."
            )
        unsure = "" if self._compared else " The dataset has no fingerprint: only its length was compared."
        whole = self.num_listed + self.kept.size
        return f"Trimtab leaves {self.num_listed} of {_rows(whole)} out of training, those of {self._path}.{unsure}"

    def outcome(self) -> str | None:
        """What became of it in the end, in one line; None where the introduction has said it all."""
        if self.passed_over is None:
            return None
        met, unknowable = self.passed_over.num_met, self.passed_over.num_unknowable
        rest = ""
        if unknowable:
            rest += (
                f" Of {_rows(unknowable)} the file has no digest, and no row of the stream has an integer number of "
                "its own: they could not be known again, and may have been trained on."
            )
        if met + unknowable < self.num_listed:
            rest += " The others were not in what was read of the stream."
        return f"Trimtab met {met} of the {_rows(self.num_listed)} of {self._path} and passed over them.{rest}"

    def _check_stream(self, drops: DropList, dataset: Any, *, row_id: str) -> None:
        """Refuses a list by which nothing of a stream could be left out, and one that leaves nothing of it."""
        listed, columns = drops.digests, getattr(dataset, "column_names", None)
        if listed and columns is not None and row_id not in columns and set(listed.values()) == {None}:
            raise UsageError(
                f"{self._path} has no digest of any of its rows, and this stream no column {row_id!r} of integer row "
                "numbers, so none of them could be known again: give the stream such a column in the run that the list "
                "is made from and in this one."
            )
        if listed and hasattr(dataset, "__len__") and len(listed) >= len(dataset):
            raise UsageError(f"{self._path} lists all {len(dataset)} rows of the stream: none would be left.")

    def _told_by_number(self) -> str:
        """By what else than their content rows of a stream are told, in words."""
        assert self.passed_over is not None, "it is a stream"
        number = self.passed_over.num_by_row
        if not number:
            return ""
        return f", the {_rows(number)} without a digest by the stream's own integer row numbers alone"


class Forwarding:
    """Gives the attributes of the dataset that it wraps, so that hosts find what they look for."""

    dataset: Any

    def __getattr__(self, name: str) -> Any:
        """What is not found on the wrapper itself."""
        if name.startswith("__") or name == "dataset":  # before unpickling has set it
            raise AttributeError(name)
        return getattr(self.dataset, name)


class Remainder(Forwarding, Dataset[Any]):
    """A map-style dataset without some of its rows. Nothing is copied, and it can be sent to a worker."""

    def __init__(self, dataset: Any, rows: NDArray[np.int64]) -> None:
        """Shows of `dataset` the `rows`, in their order."""
        self.dataset = dataset
        self.rows = rows

    def __len__(self) -> int:
        """Number of rows that are left."""
        return int(self.rows.size)

    def __getitem__(self, index: int) -> Any:
        """Row `index` of those that are left."""
        return self.dataset[int(self.rows[index])]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Several at once, by the dataset's own batch fetch where it has one."""
        rows = [int(self.rows[index]) for index in indices]
        fetch = getattr(self.dataset, "__getitems__", None)
        return list(fetch(rows)) if fetch is not None else [self.dataset[row] for row in rows]


class PassedOver:
    """Rows of a stream that are not yielded: by content, or by the user's own row numbers where the file has no digest.

    What was met is counted in memory that workers share, forked or spawned. Of rows with the same content all are met
    with the first.
    """

    def __init__(self, drops: DropList) -> None:
        """Passes over the rows of `drops`."""
        self.path = plain(drops.path)
        self._by_digest: dict[int, list[int]] = {}
        self._by_row: dict[int, list[int]] = {}
        for entry, (row, digest) in enumerate(drops.digests.items()):
            if digest is not None:
                self._by_digest.setdefault(digest, []).append(entry)
            else:
                self._by_row[row] = [entry]
        self._met = torch.zeros(len(drops.digests), dtype=torch.uint8)
        self._met.share_memory_()  # type: ignore[no-untyped-call]
        self._saw_numbers = torch.zeros(1, dtype=torch.uint8)
        self._saw_numbers.share_memory_()  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        """Rows that are looked for."""
        return len(self._met)

    def holds(self, *, digest: int | None, own_row: int | None) -> bool:
        """Whether an item with this content, or with this row number of the user's, is to be passed over."""
        entries = self._by_digest.get(digest) if digest is not None else None
        if own_row is not None:
            self._saw_numbers[0] = 1
            entries = self._by_row.get(own_row) if entries is None else entries
        if entries is None:
            return False
        self._met[entries] = 1
        return True

    @property
    def num_by_row(self) -> int:
        """Rows that are known again by the user's own row numbers alone."""
        return len(self._by_row)

    @property
    def num_unknowable(self) -> int:
        """The same, where nothing that was read has such a number."""
        return 0 if self._saw_numbers.any() else self.num_by_row

    @property
    def num_met(self) -> int:
        """Rows that were met so far, by any worker."""
        return int(self._met.sum())


def _rows(number: int) -> str:
    return "1 row" if number == 1 else f"{number} rows"
