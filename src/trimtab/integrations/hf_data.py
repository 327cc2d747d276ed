"""The data of one trainer's training: which rows are left out of it, and what is known of those that remain.

Enters: a trainer, then the loader that it builds, then its batches. Leaves: a loader over the remainder of the dataset
whose batches carry their rows; and of each batch its rows and their ids, so that the model sees neither. Invariant:
`trainer.train_dataset` is the user's object before, while and after it trains; the remainder stands in its place only
while the trainer builds its loader.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any

import torch

from trimtab.dataset import DatasetFacts
from trimtab.integrations.hf_rows import id_book
from trimtab.notices import say
from trimtab.run import RunCore
from trimtab.torch.exclusion import Exclusion
from trimtab.torch.loader import LOOSE_KEY, ROW_KEY, tag_rows
from trimtab.torch.marks import MARKS_KEY
from trimtab.torch.row_ids import IdBook


class TrainingData:
    """What a run knows of its trainer's data.

    Attributes:
        exclusion: Which rows are left out; None: none.
        rows: (B,) rows of the micro-batch at hand, or (1, L) or (B, T) rows of its tokens; None where the batch did not
            carry any.
        loose_rows: (S, K) rows that the micro-batch at hand was made of, where it does not carry rows in their places.
        book: Ids of the rows; None where nothing is known beside their numbers, or nothing is recorded.
    """

    def __init__(self, trainer: Any, *, row_id: str, record: bool) -> None:
        """Knows the trainer; for the other arguments see `trimtab.attach`."""
        self.exclusion: Exclusion | None = None
        self.rows: torch.Tensor | None = None
        self.loose_rows: torch.Tensor | None = None
        self.book: IdBook | None = None
        self._trainer = trainer
        self._seen = trainer.train_dataset
        self._row_id = row_id
        self._record = record

    @property
    def dataset(self) -> object:
        """The dataset that the row numbers index."""
        return self._trainer.train_dataset

    @property
    def why_unknown(self) -> str:
        """Why rows are not known, in words; empty where they are."""
        return ""

    @property
    def recorded(self) -> str:
        """What is recorded of the training, in words."""
        return "rows, losses and steps of this Trainer"

    def look_again(self) -> bool:
        """Finds out, where a training begins, whether the trainer's dataset is another than when it was looked at last.

        Says so: what is known of the rows is then that of the new one.
        """
        if self._trainer.train_dataset is self._seen:
            return False
        self._seen = self._trainer.train_dataset
        if self.exclusion is None:  # else it is refused
            self._tell_replaced()
        return True

    def _tell_replaced(self) -> None:
        say("hf", "The trainer's train_dataset was replaced after attach: rows are numbered by the new one.")

    def row_index(self, facts: DatasetFacts) -> str:
        """What a row number indexes, in words."""
        if facts.num_rows is not None:
            return facts.row_index
        return f"column {self._row_id!r} of the stream where it holds integers, else {facts.row_index}"

    def leave_out(self, path: str | os.PathLike[str]) -> None:
        """Leaves out of the training the rows that the file at `path` lists.

        Raises:
            UsageError: It is no drop list of this dataset.
        """
        self.exclusion = Exclusion(path, dataset=self._trainer.train_dataset, row_id=self._row_id)

    def build_loader(self, build: Callable[[], Any]) -> Any:
        """Lets the trainer build its training loader, over the remainder of its dataset if rows are left out."""
        if self.exclusion is None:
            return build()
        with standing_in(self._trainer, self.exclusion.remainder(self._trainer.train_dataset)):
            return build()

    def tag_loader(self, loader: Any) -> None:
        """Makes the batches of a built loader carry their rows, and what travels with them; ids are told anew."""
        self.book = id_book(self._trainer.train_dataset, row_id=self._row_id) if self._record else None
        with_marks = self.book is not None and self.book.by_marks
        tag_rows(loader, row_id=self._row_id, with_marks=with_marks, exclusion=self.exclusion)
        looks_up = self.book is not None and not with_marks
        if looks_up and self.exclusion is None and not _is_over(loader, self._trainer.train_dataset):
            self.book = None  # an id looked up by the index would be another row's

    def record_exclusion(self, core: RunCore) -> None:
        """Writes into the log of a training that begins what is left out of it, if anything is."""
        if self.exclusion is not None:
            core.event("excluded", self.exclusion.facts(), step=0)

    def take(self, inputs: Any, *, core: RunCore) -> None:
        """Takes out of a batch what its model must not see, and records the ids of its rows. Does not wait."""
        found = inputs if isinstance(inputs, MutableMapping) else {}
        self.rows, marks = found.pop(ROW_KEY, None), found.pop(MARKS_KEY, None)
        self.loose_rows = found.pop(LOOSE_KEY, None)
        if self.book is None:
            return
        numbers = marks if self.book.by_marks else self.rows if self.rows is not None else self.loose_rows
        ids = self.book.late(numbers) if numbers is not None else None
        if ids is not None:
            core.record_row_ids(ids)

    def known_rows(self) -> torch.Tensor:
        """The rows of the micro-batch at hand, in whatever place; none where the batch did not carry any."""
        known = (rows for rows in (self.rows, self.loose_rows) if rows is not None)
        return next(known, torch.zeros(0, dtype=torch.int64))

    def tell_outcome(self) -> None:
        """Says at the end of a training what became of the rows that were to be left out."""
        outcome = self.exclusion.outcome() if self.exclusion is not None else None
        if outcome is not None:
            say("hf", outcome)


@contextmanager
def standing_in(trainer: Any, dataset: Any) -> Iterator[None]:
    """Puts `dataset` in the place of a trainer's `train_dataset`, which is put back afterwards."""
    whole = trainer.train_dataset
    trainer.train_dataset = dataset
    try:
        yield
    finally:
        trainer.train_dataset = whole


def _is_over(loader: Any, dataset: Any) -> bool:
    """Whether a loader reads as many rows as the dataset has: one of the trainer's own making may read others."""
    return hasattr(loader.dataset, "__len__") and len(loader.dataset) == len(dataset)
