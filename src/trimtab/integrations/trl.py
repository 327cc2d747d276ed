"""TRL's `SFTTrainer`: a Trainer with a loss and a data preparation of its own. Seen with TRL 1.16, transformers 5.24.

What `hf.py` hooks is hooked here in the same way. Two things differ:

    rows      the constructor drops, shuffles and packs rows; `trimtab.keep_row_ids` keeps their numbers meanwhile
    losses    come out of the fused head of its model, never by `compute_loss_func`, which costs a second forward

A document's loss is its own, also where packing has put it beside others or split it over two sequences.
"""

from __future__ import annotations

from typing import Any, ClassVar

from trimtab.errors import UsageError
from trimtab.integrations.hf import TrainerRun
from trimtab.integrations.trl_data import SFTData
from trimtab.integrations.trl_tap import SFTTap


class SFTRun(TrainerRun):
    """A run whose loop is an SFTTrainer's."""

    _backend: ClassVar[str] = "trl"

    def _new_data(self, *, row_id: str, record: bool) -> SFTData:
        return SFTData(self._trainer, row_id=row_id, record=record)

    def _new_tap(self) -> SFTTap:
        return SFTTap(self._trainer)


def attach_to(trainer: Any, **settings: Any) -> SFTRun:
    """What `trimtab.attach` calls for an object of TRL.

    Args:
        trainer: An `SFTTrainer`, also of a class of the user's own.
        settings: Those of `attach`.

    Raises:
        UsageError: If it is another of TRL's trainers, also one that TRL builds on this one.
    """
    of_trl = next(kind.__name__ for kind in type(trainer).__mro__ if kind.__module__.partition(".")[0] == "trl")
    if of_trl != "SFTTrainer":
        raise UsageError(
            f"Of TRL's trainers attach knows SFTTrainer, found {of_trl}, whose loss is made in another way: use "
            "trimtab.Run in a loop of your own."
        )
    return SFTRun(trainer, **settings)
