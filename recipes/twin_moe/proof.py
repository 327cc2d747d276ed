"""The trainer's own step at a small size, for `trimtab prove recipes.twin_moe.proof:build --processes 1`.

In goes the guard of a trial, out comes a `Loop` around `Engine.train_step`. Its audit measures, in the gradient, that
z and the load balance weigh what the preset states. The term xpop is off: it is of the weights and not of a batch, so
no change of a micro-batch can take it out of a reference run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

import torch

import trimtab
from recipes.twin_moe.config import ModelConfig, TwinConfig, read_preset
from recipes.twin_moe.data import Batch, MicroBatches
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.losses import loss_terms
from trimtab import moe
from trimtab.proof import Loop

_NUM_WINDOWS: Final = 6

_ACCUMULATION: Final = 3
"""Least micro-batches of a window: a first, a middle and a last one."""


def build(guard: trimtab.GuardConfig | None) -> Loop:
    """The preset `tiny` at a smaller size, built from scratch; always the same.

    Args:
        guard: Its settings; None: a loop without a guard.
    """
    config = _small(read_preset("tiny"))
    engine = Engine(config, out=None, guard=guard)
    batches = MicroBatches(config.data, seed=config.seed)
    numbers = [range(_ACCUMULATION * window, _ACCUMULATION * (window + 1)) for window in range(_NUM_WINDOWS)]
    # As plain tuples, in which nothing is called labels: every byte is predicted, and no label says that it is not.
    windows = [[tuple(batches[number]) for number in micros] for micros in numbers]

    def train(windows: Sequence[Sequence[tuple[torch.Tensor, ...]]]) -> list[float]:
        return [engine.train_step([Batch(*parts) for parts in micros]).outcome.loss for micros in windows]

    return Loop(
        model=engine.model,
        optimizer=engine.optimizer,
        train=train,
        windows=windows,
        scheduler=engine.scheduler,
        num_skipped=lambda: engine.run.num_skipped,
        audit=lambda: audit(engine, [batches[number] for micros in numbers for number in micros]),
    )


def audit(engine: Engine, micro_batches: Sequence[Batch]) -> moe.AuxAudit:
    """What z and the load balance weigh in the gradient of what backward is called on.

    Args:
        engine: The trainer; nothing of it changes.
        micro_batches: Some.
    """
    optim = engine.config.optim

    def losses(batch: Batch, accumulation: int) -> Mapping[str, torch.Tensor]:
        terms = loss_terms(engine.model(batch.input_ids), batch.labels, optim=optim, model=engine.model)
        run = trimtab.Run(None, record=False, model=engine.model, optimizer=engine.optimizer, accumulation=accumulation)
        total = run.micro_batch(terms.token_losses, rows=batch.rows, aux=terms.aux)
        return {"total": total, "ce": terms.token_losses.mean()}

    return moe.audit_aux_weights(
        engine.model,
        losses=losses,
        micro_batches=micro_batches,
        weights={"z": optim.z_weight, "load_balance": optim.lbl_weight},
        routers=lambda model: model.routers,
        convention="switch",
        over_layers="mean",
    )


def _small(tiny: TwinConfig) -> TwinConfig:
    return replace(
        tiny,
        accumulation=_ACCUMULATION,
        data=replace(tiny.data, batch_size=2, num_tokens=32, num_eval_batches=1),
        model=ModelConfig(dim=16, num_layers=2, num_heads=2, num_experts=8, top_k=2, num_populations=2, expert_dim=16),
        optim=replace(tiny.optim, xpop_weight=0.0),
    )
