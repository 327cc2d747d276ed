"""What a training is made of before its first step: model, optimizer, schedule.

In go settings, out come the parts, always the same ones: a round trip loads a checkpoint into parts made afresh.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import torch
from torch.optim.lr_scheduler import LambdaLR

import trimtab
from recipes.twin_moe.config import TwinConfig
from recipes.twin_moe.model import TwinMoe

_DECAYED_FROM: Final = 2
"""Dimensions of the parameters that weight decay is for: matrices, and not the norms."""


class Parts(NamedTuple):
    """What is saved, loaded, and made afresh for a round trip."""

    model: TwinMoe
    optimizer: torch.optim.AdamW
    scheduler: LambdaLR


def build_parts(config: TwinConfig, *, device: torch.device) -> Parts:
    """Model, optimizer and scheduler as a training begins with them.

    Args:
        config: The settings.
        device: Where they are.
    """
    model = TwinMoe(config).to(device)
    decayed = [parameter for parameter in model.parameters() if parameter.dim() >= _DECAYED_FROM]
    others = [parameter for parameter in model.parameters() if parameter.dim() < _DECAYED_FROM]
    optimizer = torch.optim.AdamW(
        [{"params": decayed}, {"params": others, "weight_decay": 0.0}],
        lr=config.optim.lr,
        betas=(0.9, 0.95),
        weight_decay=config.optim.weight_decay,
        fused=device.type == "cuda",  # where the guard decides on the device, only a fused optimizer needs no wait
    )
    schedule = schedule_of(config)
    return Parts(model, optimizer, LambdaLR(optimizer, lambda num_done: schedule.rate(num_done + 1) / schedule.lr))


def schedule_of(config: TwinConfig) -> trimtab.Schedule:
    """What the rates follow, and what the log states, for `trimtab gate` to compare those of the steps with."""
    warmup = config.optim.warmup_steps
    return trimtab.Schedule(
        form="cosine",
        lr=config.optim.lr,
        num_steps=config.num_steps,
        num_warmup_steps=warmup,
        warmup_from=1 / warmup if warmup else 0.0,  # from 0 the first step would be one for nothing
        min_lr=config.optim.min_lr,
    )
