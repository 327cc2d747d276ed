"""The real Hugging Face `Trainer` around the demo's model: an ordinary fine-tuning script, as a function.

In go items and a model, out comes a trainer that is ready for `trimtab.attach` and `train()`. `walk_order` tells which
rows it will read when, without changing what it will read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch.utils.data import Dataset
from transformers import PrinterCallback, Trainer, TrainingArguments
from transformers.modeling_utils import PreTrainedModel

from trimtab.demo.tokenizer import Item

BATCH_SIZE: Final = 4
ACCUMULATION: Final = 2
"""Two micro-batches a step: with one of them skipped, the step still has a gradient to take."""


class Padding:
    """Collator: pads items on the right to the longest of the micro-batch."""

    def __init__(self, pad: int) -> None:
        self.pad = pad

    def __call__(self, items: Sequence[Item]) -> dict[str, torch.Tensor]:
        """Returns `input_ids`, `attention_mask` and `labels`, each (B, T) int64; labels -100 where padded."""
        longest = max(len(item["input_ids"]) for item in items)
        filled = {"input_ids": self.pad, "attention_mask": 0, "labels": -100}
        batch = {name: torch.full((len(items), longest), value) for name, value in filled.items()}
        for at, item in enumerate(items):
            length = len(item["input_ids"])
            batch["input_ids"][at, :length] = torch.tensor(item["input_ids"])
            batch["labels"][at, :length] = torch.tensor(item["labels"])
            batch["attention_mask"][at, :length] = 1
        return batch


def build_trainer(model: PreTrainedModel, items: list[Item], *, out: Path, pad: int, seed: int) -> Trainer:
    """A trainer for one epoch over the items.

    Args:
        model: What is trained.
        items: The dataset; a list, so that an item can be replaced before training.
        out: The trainer's output folder; it is made, nothing is saved into it.
        pad: Token id for padding.
        seed: Seeds weights' dropout-free training and the order of the rows.

    Returns:
        The trainer, silent: no progress bar, no printed dictionaries, no tracker, no checkpoint.
    """
    arguments = TrainingArguments(
        output_dir=str(out),
        num_train_epochs=1,
        per_device_train_batch_size=BATCH_SIZE,
        gradient_accumulation_steps=ACCUMULATION,
        dataloader_drop_last=True,
        learning_rate=3e-3,
        adam_beta2=0.99,
        weight_decay=0.0,
        lr_scheduler_type="cosine",
        warmup_steps=0.03,
        max_grad_norm=1.0,
        seed=seed,
        use_cpu=True,
        remove_unused_columns=False,
        save_strategy="no",
        report_to="none",
        logging_steps=1,
        # By default the trainer's log shows the running average where the loss is NaN, and so hides the fault.
        logging_nan_inf_filter=False,
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=items, data_collator=Padding(pad))
    trainer.remove_callback(PrinterCallback)
    return trainer


class _RowNumbers(Dataset[int]):
    """A dataset whose rows are their own numbers."""

    def __init__(self, num_rows: int) -> None:
        self._num_rows = num_rows

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, row: int) -> int:
        return row


def _as_they_are(rows: list[int]) -> Any:
    return rows


def walk_order(trainer: Trainer) -> list[list[int]]:
    """The row numbers of every micro-batch, in the order in which `train()` will read them.

    Builds the trainer's own loader over row numbers in place of items and walks it once. The random state is put back,
    so that training afterwards is what it would have been without the walk.

    Args:
        trainer: Left as it was.

    Returns:
        One list of row numbers a micro-batch.
    """
    dataset, collator = trainer.train_dataset, trainer.data_collator
    assert isinstance(dataset, list), "build_trainer was given a list"
    with torch.random.fork_rng(devices=[]):
        try:
            trainer.train_dataset = _RowNumbers(len(dataset))
            trainer.data_collator = _as_they_are
            return [list(rows) for rows in trainer.get_train_dataloader()]
        finally:
            trainer.train_dataset, trainer.data_collator = dataset, collator
