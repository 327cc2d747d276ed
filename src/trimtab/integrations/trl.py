"""TRL's `SFTTrainer`: a Trainer with a loss and a data preparation of its own. Seen with TRL 1.16, transformers 5.24.

What `hf.py` hooks is hooked here in the same way. Two things differ:

    rows      the constructor drops, shuffles and packs rows; `trimtab.keep_row_ids` keeps their numbers meanwhile
    losses    come out of the fused head of its model, never by `compute_loss_func`, which costs a second forward

A document's loss is its own, also where packing has put it beside others or split it over two sequences.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import NoReturn

from trimtab.dataset import DatasetFacts
from trimtab.errors import UsageError
from trimtab.integrations.hf import TrainerRun
from trimtab.integrations.trl_tagging import SFTData, find_rows
from trimtab.integrations.trl_tap import SFTTap
from trimtab.torch.exclusion import Exclusion
from trimtab.values import RunHeader


class SFTRun(TrainerRun):
    """A run whose loop is an SFTTrainer's."""

    def _row_dataset(self) -> object:
        self._found = find_rows(self._trainer)
        # What has neither length nor rows is described as such, and `_row_index` says why.
        return self._found if self._found.unknown else self._found.source

    def _host_header(self) -> RunHeader:
        return replace(super()._host_header(), backend="trl")

    def _row_index(self, facts: DatasetFacts, row_id: str) -> str:
        if self._found.unknown:
            return f"no rows: {self._found.unknown}"
        return super()._row_index(facts, row_id)

    def _read_exclusion(self, path: str | os.PathLike[str]) -> NoReturn:
        raise UsageError(
            f"exclude={os.fspath(path)} comes too late for an SFTTrainer, which made its sequences when it was built: "
            "hand its constructor the dataset without those rows, dataset.select(...)."
        )

    def _new_data(self, *, row_id: str, record: bool, exclusion: Exclusion | None) -> SFTData:
        return SFTData(self._trainer, self._found, row_id=row_id, record=record)

    def _new_tap(self) -> SFTTap:
        return SFTTap(self._trainer)

    def _recorded(self) -> str:
        if not self._found.unknown:
            return "rows, losses and steps of this SFTTrainer"
        return (
            f"losses and steps of this SFTTrainer, not its rows ({self._found.unknown}: build it inside `with "
            "trimtab.keep_row_ids():`)"
        )

    def _say_no_row_losses(self, why: str) -> None:
        if self._found.unknown:  # said already, with what to do about it
            why = self._found.unknown
            if not self._said_no_row_losses:
                self._said_no_row_losses = True
                self._core.event("no_row_losses", {"why": why})
            return
        super()._say_no_row_losses(why)


attach_to = SFTRun
"""What `trimtab.attach` calls for a trainer of this host."""
