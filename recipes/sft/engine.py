"""The engine: it owns forward, backward, clipping and step; Trimtab's kit is the middle of it.

In go micro-batches, `accumulation` of them a step on each rank; out comes a model whose every update is the gradient of
the mean loss over the supervised tokens of the whole window, on all ranks. Where the stage sets
`optim.loss_spike_skip_multiplier`, an anomalous micro-batch contributes nothing to it: `guard_loss` judges the loss,
and backward runs all the same, on every rank. Works alone, and under torch.distributed with DDP.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import trimtab
from recipes.sft.config import ConfigError, ModelConfig, StageConfig, read_stage
from recipes.sft.data import IGNORED, Batch, MicroBatches
from recipes.sft.model import ByteModel

if TYPE_CHECKING:
    from trimtab.checkpoint import Checkpointer, CheckpointInfo
    from trimtab.proof import Loop


class Engine:
    """One stage of training; the calls of a step, in their order:

    for batch in window:                       # `accumulation` of them
        engine.backward_step(*engine.forward_step(batch))
    result = engine.optimizer_step()

    Attributes:
        config: The stage.
        model: What a forward calls: the module itself, or DDP around it.
        optimizer: AdamW, once it is prepared.
        scheduler: Warm-up, then a cosine to zero, once it is prepared.
        step: Windows that are behind, stepped or dropped: the schedule's clock.
        num_skipped: Micro-batches that the guard has left out so far, those of the window now open not counted.
    """

    optimizer: torch.optim.Optimizer
    scheduler: torch.optim.lr_scheduler.LambdaLR

    def __init__(self, config: StageConfig, module: nn.Module) -> None:
        """Takes the model; under torch.distributed, which must be initialised by now, wraps it in DDP.

        Args:
            config: The stage.
            module: The bare model, on the device that it is trained on.
        """
        self.config = config
        self.model = DistributedDataParallel(module) if is_distributed() else module
        self.step = 0
        self.num_skipped = 0
        self._module = module
        self._device = next(module.parameters()).device
        self._num_micros = 0

    def prepare_optimizer(self) -> None:
        """Makes optimizer, scheduler, kit and guard; once, after the model has its weights.

        A stage that wants no guard leaves the multiplier out: none is built then.
        """
        optim = self.config.optim
        self.optimizer = torch.optim.AdamW(self._module.parameters(), lr=optim.lr, weight_decay=optim.weight_decay)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._part_of_lr)
        self._kit = trimtab.TokenNormedLossKit(self.model, optimizer=self.optimizer)
        self._kit.build_loss_guard(optim)

    def forward_step(self, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        """The loss of one micro-batch.

        Args:
            batch: `input_ids` and `labels`, (B, T) each.

        Returns:
            Sum of the losses over the supervised tokens, 0-d float32 with a graph; how many those are, 0-d int64.
        """
        with self._sync_if_last():
            logits = self.model(batch["input_ids"].to(self._device))
        predictions = logits[:, :-1].flatten(0, 1).float()
        labels = batch["labels"].to(self._device)[:, 1:].flatten()
        loss_sum = F.cross_entropy(predictions, labels, ignore_index=IGNORED, reduction="sum")
        return loss_sum, (labels != IGNORED).sum()

    def backward_step(self, loss_sum: torch.Tensor, num_tokens: torch.Tensor) -> bool:
        """Judges the micro-batch, then backward; what is skipped goes backward as well, and leaves nothing behind.

        Args:
            loss_sum: As `forward_step` gave it.
            num_tokens: As `forward_step` gave it.

        Returns:
            Whether the micro-batch takes part in the update; the same on every rank.
        """
        kept = self._kit.guard_loss(loss_sum, num_tokens)
        loss = self._kit.accumulate_microbatch(loss_sum, num_tokens)
        with self._sync_if_last():
            loss.backward()
        self._num_micros += 1
        return kept

    def optimizer_step(self) -> trimtab.WindowResult:
        """Closes the window: scales the gradients, clips, steps, advances the schedule, clears.

        Returns:
            What became of the window. Reading its `loss` waits for the device.

        Raises:
            RuntimeError: The window is not full; under DDP its gradients would not be summed yet.
        """
        if self._num_micros != self.config.accumulation:
            raise RuntimeError(
                f"optimizer_step came after {self._num_micros} of {self.config.accumulation} micro-batches of step "
                f"{self.step}; call forward_step and backward_step for each of them first."
            )
        parameters = list(self._module.parameters())
        result = self._kit.finish_window(parameters)
        torch.nn.utils.clip_grad_norm_(parameters, self.config.optim.max_grad_norm)
        self.optimizer.step()  # a window that was skipped whole leaves no gradients, and nothing moves
        self.scheduler.step()
        self.optimizer.zero_grad()
        self._num_micros = 0
        self.step += 1
        self.num_skipped += result.num_skipped_micros
        return result

    def save(self, checkpointer: Checkpointer, *, loss: float) -> None:
        """Saves everything that decides how training goes on; between two steps, on every rank.

        Args:
            checkpointer: Where to.
            loss: Of the last window, on this rank; rank 0's is the one that is kept.
        """
        checkpointer.save(
            self.step,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            run=self._kit,  # the guard's history
            loss=loss,
            extra={"num_skipped": self.num_skipped},
            config={"stage": self.config.stage},
        )

    def resume(self, checkpointer: Checkpointer, checkpoint: CheckpointInfo | Path, *, lr: float | None = None) -> None:
        """Goes on where `save` was called; after `prepare_optimizer`, on every rank.

        Args:
            checkpointer: What is to save the steps to come.
            checkpoint: Which one to go on from.
            lr: Peak learning rate from here on, at the same place of the schedule; None: the one that was saved.

        Raises:
            ConfigError: It is of another stage.
        """
        resumed = checkpointer.load(
            checkpoint, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, lr=lr, run=self._kit
        )
        stage = (resumed.config or {}).get("stage")
        if stage != self.config.stage:
            raise ConfigError(f"{resumed.path}: is of stage {stage!r}, not {self.config.stage!r}; did you mean --init?")
        self.step, self.num_skipped = resumed.step, resumed.extra["num_skipped"]

    def _sync_if_last(self) -> AbstractContextManager[None]:
        """Gradients are summed over the ranks in the window's last backward, for all of its micro-batches."""
        is_last = self._num_micros == self.config.accumulation - 1
        if isinstance(self.model, DistributedDataParallel) and not is_last:
            return self.model.no_sync()
        return nullcontext()

    def _part_of_lr(self, step: int) -> float:
        """What part of the peak rate a step has."""
        warmup = self.config.optim.warmup_steps
        if step < warmup:
            return (step + 1) / (warmup + 1)
        progress = min(1.0, (step - warmup) / max(1, self.config.num_steps - warmup))
        return 0.5 * (1 + math.cos(math.pi * progress))


def is_distributed() -> bool:
    """Whether several ranks train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def rank_and_world_size() -> tuple[int, int]:
    """This process and how many there are; (0, 1) alone."""
    return (dist.get_rank(), dist.get_world_size()) if is_distributed() else (0, 1)


def build(guard: trimtab.GuardConfig | None) -> Loop:
    """The stage `sft` at a small size, for `trimtab prove recipes.sft.engine:build`.

    Args:
        guard: Its settings; None: a loop without a guard.
    """
    from trimtab.proof import Loop  # here, so that training does not load the prover

    sft = read_stage("sft")
    config = replace(
        sft,
        accumulation=3,
        data=replace(sft.data, package="email", batch_size=2),
        model=ModelConfig(dim=16, num_layers=1, num_heads=2, max_tokens=160),
        optim=replace(
            sft.optim,
            loss_spike_skip_multiplier=None if guard is None else guard.multiplier,
            loss_spike_skip_window_size=None if guard is None else guard.window_size,
            loss_spike_skip_min_history=None if guard is None else guard.min_history,
        ),
    )
    engine = Engine(config, ByteModel(config.model))
    engine.prepare_optimizer()
    rank, world_size = rank_and_world_size()
    batches = MicroBatches(
        config.data, max_tokens=config.model.max_tokens, seed=config.seed, rank=rank, world_size=world_size
    )
    windows = [[batches[config.accumulation * window + micro] for micro in range(3)] for window in range(6)]
    return Loop.of_engine(engine, windows=windows)
