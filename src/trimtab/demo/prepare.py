"""From clean rows to a trainer that is about to meet poisoned ones.

In go rows and a seed, out comes a `Prepared` trainer, with the plants already in its dataset. Trimtab is not attached
yet: up to here this is an ordinary fine-tuning script.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import Trainer

from trimtab.demo.console import Console
from trimtab.demo.model import build_model, leave_uninitialised
from trimtab.demo.plant import Kind, Plant, draw_plants
from trimtab.demo.poison import TOOL, max_answer_tokens, poison_row
from trimtab.demo.rows import Row
from trimtab.demo.tokenizer import BOS, EOS, PAD, Item, make_item, make_items, token_id, train_tokenizer
from trimtab.demo.train import ACCUMULATION, BATCH_SIZE, build_trainer, walk_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A trainer and what was done to its rows.

    Attributes:
        trainer: Ready for `trimtab.attach` and `train()`.
        order: Row numbers of every micro-batch, in the order in which the trainer will read them.
        plants: The poisoned rows, by step.
        poisoned: Their texts, parallel to `plants`.
        items: The dataset, poisoned rows included.
        tool: Token id of the token without an initialised embedding.
    """

    trainer: Trainer
    order: list[list[int]]
    plants: list[Plant]
    poisoned: list[Row]
    items: list[Item]
    tool: int


def prepare(
    rows: Sequence[Row], *, out: Path, seed: int, kinds: Sequence[Kind], until: float, console: Console
) -> Prepared:
    """Trains the tokenizer, builds model and trainer, and poisons the rows that the seed names.

    Sets torch to one thread for this process: on a busy machine two threads spin and take ten times the CPU time.

    Args:
        rows: Clean rows.
        out: The trainer's output folder.
        seed: Decides weights, order and plants.
        kinds: What to plant, one entry a row.
        until: Part of the run in which the last plant must lie.
        console: Where to tell.

    Raises:
        UsageError: The run is too short for the plants.
    """
    torch.set_num_threads(1)
    tokenizer = train_tokenizer(rows)
    pad, tool = token_id(tokenizer, PAD), token_id(tokenizer, TOOL)
    items = make_items(tokenizer, rows)
    console.stage(
        f"trained a BPE tokenizer of {tokenizer.get_vocab_size() - 1:,} tokens on the rows, then added {TOOL}"
    )
    model = build_model(
        vocab_size=tokenizer.get_vocab_size(),
        bos=token_id(tokenizer, BOS),
        eos=token_id(tokenizer, EOS),
        pad=pad,
        seed=seed,
    )
    leave_uninitialised(model, tool)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    console.stage(
        f"built a Llama of {num_parameters / 1e6:.2f} M parameters, random start; the embedding of {TOOL} holds NaN\n"
        "(resize_token_embeddings would have filled it with finite numbers; a loader that takes the\n"
        "larger matrix from torch.empty and copies the checkpoint's rows into it does not)"
    )
    trainer = build_trainer(model, items, out=out, pad=pad, seed=seed)
    order = walk_order(trainer)
    plants = draw_plants(order, seed=seed, kinds=kinds, accumulation=ACCUMULATION, until=until)
    poisoned = [poison_row(rows[plant.row], plant.kind, seed=seed) for plant in plants]
    for plant, row in zip(plants, poisoned, strict=True):
        items[plant.row] = make_item(tokenizer, row, max_answer_tokens=max_answer_tokens(plant.kind))
    return Prepared(trainer=trainer, order=order, plants=plants, poisoned=poisoned, items=items, tool=tool)


def num_steps(prepared: Prepared) -> int:
    """Optimizer steps of the whole run."""
    return math.ceil(len(prepared.order) / ACCUMULATION)


def rows_a_step() -> int:
    """Rows in one optimizer step."""
    return BATCH_SIZE * ACCUMULATION


def nonfinite_parameters(prepared: Prepared) -> list[str]:
    """Names of the parameters that hold a number that is not finite, the planted embedding row left aside."""
    names = []
    assert prepared.trainer.model is not None, "build_trainer was given a model"
    for name, parameter in prepared.trainer.model.named_parameters():
        values = parameter.detach()
        if name.endswith("embed_tokens.weight"):
            values = torch.cat([values[: prepared.tool], values[prepared.tool + 1 :]])
        if not bool(torch.isfinite(values).all()):
            names.append(name)
    return names
