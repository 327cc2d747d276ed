"""Which rows of the user's dataset the items are that an SFTTrainer trains on.

Enters: a built trainer. Leaves: what its row numbers index, and the numbers of its items. Invariant: what nothing is
left of is said in words, never guessed; a packed sequence that was not built inside `trimtab.keep_row_ids()` has no
rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np

from trimtab.dataset.data import is_stream, selection_of, table_of
from trimtab.integrations.trl_keeping import COLUMN, kept_rows, own_preparation, were_kept


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
        remedy: What to do about it, in words.
    """

    source: object | None
    numbers: Any = None
    unknown: str = ""
    remedy: str = "build it inside `with trimtab.keep_row_ids():`"


def find_rows(trainer: Any) -> SFTRows:
    """Finds out what is known of the rows behind a trainer's `train_dataset`."""
    dataset, args = trainer.train_dataset, trainer.args
    kept = kept_rows(trainer)
    if kept is not None:
        packed = is_stream(kept.rows) or not isinstance(kept.rows.features[COLUMN], datasets.Value)
        return SFTRows(source=kept.source, numbers=kept.rows if packed else kept.rows[:][COLUMN].astype(np.int64))
    if were_kept(trainer):
        name = own_preparation(trainer)
        if name is None:
            unknown, where = "its train_dataset was replaced after it was built", "hand it to the constructor"
        else:
            unknown = f"its train_dataset was replaced, or {name}._prepare_dataset changed it after TRL had prepared it"
            where = "call super()._prepare_dataset"
        return SFTRows(source=None, unknown=unknown, remedy=f"change the data before you {where}")
    # Private to TRL, as is what follows from it, so tests hold both in place.
    unprepared = vars(trainer).get("_skip_prepare_dataset")
    if unprepared is None:
        return SFTRows(source=None, unknown="this version of TRL prepares its data in another way than TRL 1.16")
    if unprepared:
        return SFTRows(source=dataset)
    if args.packing:
        return SFTRows(source=None, unknown="its constructor has packed them")
    selection = selection_of(dataset)
    if selection is None:  # a stream, or as many items as there were rows, in their order
        return SFTRows(source=dataset if is_stream(dataset) else HandedOver(len(dataset)))
    if args.max_length is not None:
        # Cutting rewrote the rows in their order, and all that came after it, dropping and shuffling, selects.
        numbers = selection.column(0).to_numpy().astype(np.int64)
        return SFTRows(source=HandedOver(len(table_of(dataset))), numbers=numbers)
    if not args.shuffle_dataset:  # nothing was dropped: the user's own selection
        return SFTRows(source=dataset)
    return SFTRows(source=None, unknown="its constructor has shuffled them")
