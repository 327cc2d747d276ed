"""The data of one SFTTrainer's training: its constructor has made sequences of it, and what is known of their rows.

Enters: a built trainer, then the loader that it builds. Leaves: batches that carry their rows where these are known.
Invariant: as of `hf_data.py`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from trimtab.dataset import DatasetFacts
from trimtab.dataset.data import is_stream, is_table_dataset
from trimtab.errors import UsageError
from trimtab.integrations.hf_data import TrainingData, standing_in
from trimtab.integrations.hf_rows import id_book
from trimtab.integrations.trl_batches import NumberedStream, PackedDataset, SFTCollator
from trimtab.integrations.trl_keeping import own_preparation, were_kept
from trimtab.integrations.trl_rows import find_rows
from trimtab.notices import warn
from trimtab.torch.loader import TaggedDataset, TaggedStream, wrap_loader


class SFTData(TrainingData):
    """What a run knows of an SFTTrainer's data."""

    def __init__(self, trainer: Any, *, row_id: str, record: bool) -> None:
        """Finds out which rows the trainer's items are; for the other arguments see `trimtab.attach`."""
        super().__init__(trainer, row_id=row_id, record=record)
        self._found = find_rows(trainer)

    def _tell_replaced(self) -> None:
        self._found = find_rows(self._trainer)
        if not self._found.unknown:
            super()._tell_replaced()
            return
        warn("trl", f"Trimtab records no rows of this training: {self._found.unknown} ({self._found.remedy}).")

    @property
    def dataset(self) -> object:
        """What the constructor was given; what was found where there are no rows, which `row_index` says."""
        # What has neither length nor rows is described as such.
        return self._found if self._found.unknown else self._found.source

    @property
    def why_unknown(self) -> str:
        """Why rows are not known, in words; empty where they are."""
        return self._found.unknown

    @property
    def recorded(self) -> str:
        """What is recorded of the training, in words."""
        if not self._found.unknown:
            return f"rows, losses and steps of this SFTTrainer{self._numbered_by_class()}"
        return f"losses and steps of this SFTTrainer, not its rows ({self._found.unknown}: {self._found.remedy})"

    def _numbered_by_class(self) -> str:
        """That rows are not those of the constructor's dataset, in words, where a class of the user's prepares it."""
        name = own_preparation(self._trainer) if were_kept(self._trainer) else None
        if name is None:
            return ""
        return f", numbered in the dataset that {name}._prepare_dataset hands on to TRL's"

    def row_index(self, facts: DatasetFacts) -> str:
        """What a row number indexes, in words."""
        return f"no rows: {self._found.unknown}" if self._found.unknown else super().row_index(facts)

    def leave_out(self, path: str | os.PathLike[str]) -> NoReturn:
        """Raises `UsageError`: sequences were made of all rows."""
        raise UsageError(
            f"exclude={os.fspath(path)} comes too late for an SFTTrainer, which made its sequences when it was built: "
            "hand its constructor the dataset without those rows, dataset.select(...)."
        )

    def build_loader(self, build: Callable[[], Any]) -> Any:
        """Lets the trainer build its training loader, of a numbered stream over that one."""
        numbers = self._found.numbers
        if numbers is None or not is_stream(numbers):
            return build()
        with standing_in(self._trainer, numbers):
            return build()

    def tag_loader(self, loader: Any) -> None:
        """Makes the batches of a built loader carry their rows, where these are known; ids are told anew."""
        found = self._found
        if found.unknown:
            return
        if self._record and is_table_dataset(found.source):
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
    if is_table_dataset(numbers):
        return PackedDataset(dataset, numbers)
    return TaggedDataset(dataset, rows=numbers)
