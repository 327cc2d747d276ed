"""What a training is made of before its first step: model, optimizer, schedule.

In go settings, out come the parts, always the same ones: a round trip loads a checkpoint into parts made afresh.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch.optim.lr_scheduler import LambdaLR

import trimtab
from recipes.twin_moe.config import OptimConfig, TwinConfig
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
    return Parts(model, optimizer, LambdaLR(optimizer, part_of_lr(config.optim, num_steps=config.num_steps)))


def part_of_lr(optim: OptimConfig, *, num_steps: int) -> Callable[[int], float]:
    """What part of the peak rate is due once so many steps are finished: warm-up in a line, then a cosine.

    Args:
        optim: Peak and floor of the rate, and the warm-up.
        num_steps: Steps of the whole schedule.
    """
    warmup, falling = optim.warmup_steps, num_steps - optim.warmup_steps
    floor = optim.min_lr / optim.lr if optim.lr else 0.0

    def part(num_finished: int) -> float:
        if num_finished < warmup:
            return _begin(warmup) + (1 - _begin(warmup)) * num_finished / warmup
        cosine = 0.5 * (1 + math.cos(math.pi * min(1.0, (num_finished - warmup) / falling)))
        return floor + (1 - floor) * cosine

    return part


def schedule_of(config: TwinConfig) -> trimtab.Schedule:
    """The same as a statement, for the log: what `trimtab gate` compares the rates of the steps with."""
    return trimtab.Schedule(
        form="cosine",
        lr=config.optim.lr,
        num_steps=config.num_steps,
        num_warmup_steps=config.optim.warmup_steps,
        warmup_from=_begin(config.optim.warmup_steps),
        min_lr=config.optim.min_lr,
    )


def _begin(warmup: int) -> float:
    """What part of the peak rate the first step of a warm-up has; 0 would be a step for nothing."""
    return 1 / warmup if warmup else 0.0
