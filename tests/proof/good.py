"""Training loops whose guard is wired as it should be; each is a factory for `trimtab prove tests.proof.good:NAME`.

One small net on tokens for all of them, under DDP where torch.distributed is there. None of them makes a mistake, so
the proof must find none.
"""

import tempfile
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import trimtab
from trimtab import GuardConfig
from trimtab.proof import Loop

NUM_WINDOWS, NUM_MICROS = 6, 3
NUM_CLASSES = 5
SHAPE = (2, 4)
"""B = 2 sequences of T = 4 tokens."""


def rank_and_world_size() -> tuple[int, int]:
    return (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)


class Net(nn.Module):
    """(B, T, 6) in, (B, T, 5) logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.outer = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


def wrapped(net: nn.Module) -> nn.Module:
    return DistributedDataParallel(net) if dist.is_initialized() else net


def syncing(model: nn.Module, micro: int) -> Any:
    """Gradients are reduced in the last backward of a window."""
    is_ddp = isinstance(model, DistributedDataParallel)
    return model.no_sync() if is_ddp and micro < NUM_MICROS - 1 else nullcontext()


def batches() -> list[list[dict[str, torch.Tensor]]]:
    """This rank's windows; one token in each micro-batch is not supervised."""
    dice = torch.Generator().manual_seed(rank_and_world_size()[0])
    windows = []
    for _ in range(NUM_WINDOWS):
        window = []
        for _ in range(NUM_MICROS):
            labels = torch.randint(NUM_CLASSES, SHAPE, generator=dice)
            labels[0, 0] = -100
            window.append({"x": torch.randn(*SHAPE, 6, generator=dice), "labels": labels})
        windows.append(window)
    return windows


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)


def schedule(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda window: 1.0 / (1.0 + 0.1 * window))


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """(B, T); zeros where the label is -100."""
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)


# A `trimtab.Run`.


def run_loop(
    guard: GuardConfig | None, *, wrap: Any = wrapped, fused: bool = False, scaler: Any = None, **settings: Any
) -> Loop:
    model = wrap(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1, fused=fused)
    run = trimtab.Run(
        None,
        record=False,
        model=model,
        optimizer=optimizer,
        accumulation=NUM_MICROS,
        max_grad_norm=1.0,
        guard=guard,
        **settings,
    )

    def micro_loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        labels = batch["labels"]
        losses = token_losses(model(batch["x"]), labels)
        return run.micro_batch(losses, mask=labels != -100, rows=[0] * len(labels))

    return Loop.of_run(
        run,
        model=model,
        optimizer=optimizer,
        micro_loss=micro_loss,
        windows=batches(),
        scheduler=schedule(optimizer),
        scaler=scaler,
    )


def token_run_loop(guard: GuardConfig | None) -> Loop:
    return run_loop(guard, normalize="window")


def scaled_run_loop(guard: GuardConfig | None) -> Loop:
    """Under a gradient scaler whose scale grows every third window."""
    return run_loop(guard, fused=True, scaler=torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3))


def fsdp_run_loop(guard: GuardConfig | None) -> Loop:
    """In one process nothing is sharded."""
    return run_loop(guard, wrap=lambda net: fully_shard(net) if dist.is_initialized() else net)


# `loss = guard(loss)`.


def tensor_guard_loop(guard: GuardConfig | None) -> Loop:
    model = wrapped(Net())
    optimizer = adamw(model)
    scheduler = schedule(optimizer)
    judge = None if guard is None else trimtab.PerTokenLossGuard(guard, model=model)

    def train(windows: Any) -> None:
        for window in windows:
            for micro, batch in enumerate(window):
                labels = batch["labels"]
                with syncing(model, micro):
                    loss_sum = token_losses(model(batch["x"]), labels).sum()
                    if judge is not None:
                        loss_sum = judge(loss_sum, (labels != -100).sum())
                    (loss_sum / (labels.numel() * NUM_MICROS)).backward()
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()

    def num_skipped() -> int:
        return 0 if judge is None else judge.state_dict()["num_skipped"]

    return Loop(
        model=model,
        optimizer=optimizer,
        train=train,
        windows=batches(),
        scheduler=scheduler,
        num_skipped=num_skipped,
    )


def scalar_guard_loop(guard: GuardConfig | None) -> Loop:
    """The guard is told a mean loss, which is 0 / 0 without supervised tokens."""
    model = wrapped(Net())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)
    judge = None if guard is None else trimtab.LossGuard(guard, model=model)

    def train(windows: Any) -> None:
        for window in windows:
            for micro, batch in enumerate(window):
                with syncing(model, micro):
                    loss = F.cross_entropy(model(batch["x"]).flatten(0, 1), batch["labels"].flatten())
                    if judge is not None:
                        loss = judge(loss)
                    (loss / NUM_MICROS).backward()
            optimizer.step()
            optimizer.zero_grad()

    return Loop(model=model, optimizer=optimizer, train=train, windows=batches())


# An engine with a kit.


class Engine:
    def __init__(self, guard: GuardConfig | None) -> None:
        self.model = wrapped(Net())
        self.num_skipped = 0
        self._guard = guard
        self._micro = 0

    def prepare_optimizer(self) -> None:
        self.optimizer = adamw(self.model)
        self.scheduler = schedule(self.optimizer)
        self._kit = trimtab.TokenNormedLossKit(self.model, optimizer=self.optimizer)
        if self._guard is not None:
            self._kit.build_loss_guard(
                {
                    "loss_spike_skip_multiplier": self._guard.multiplier,
                    "loss_spike_skip_window_size": self._guard.window_size,
                    "loss_spike_skip_min_history": self._guard.min_history,
                }
            )

    def forward_step(self, batch: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        labels = batch["labels"]
        with syncing(self.model, self._micro):
            return token_losses(self.model(batch["x"]), labels).sum(), (labels != -100).sum()

    def backward_step(self, loss_sum: torch.Tensor, num_tokens: torch.Tensor) -> None:
        if not self._kit.guard_loss(loss_sum, num_tokens):
            loss_sum = torch.zeros(())
        with syncing(self.model, self._micro):
            self._kit.accumulate_microbatch(loss_sum, num_tokens).backward()
        self._micro += 1

    def optimizer_step(self) -> Any:
        parameters = list(self.model.parameters())
        result = self._kit.finish_window(parameters)
        nn.utils.clip_grad_norm_(parameters, 1.0)
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        self.num_skipped += result.num_skipped_micros
        self._micro = 0
        return result


def kit_engine(guard: GuardConfig | None) -> Loop:
    engine = Engine(guard)
    engine.prepare_optimizer()
    return Loop.of_engine(engine, windows=batches())


# A Hugging Face Trainer.


def trainer(guard: GuardConfig | None) -> Loop:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=16,
    )
    folder = tempfile.mkdtemp(prefix="trimtab-proof-")
    arguments = TrainingArguments(
        folder,
        use_cpu=True,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=NUM_MICROS,
        num_train_epochs=1,
        learning_rate=0.01,
        weight_decay=0.1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        seed=0,
    )
    host = Trainer(model=LlamaForCausalLM(config), args=arguments, train_dataset=[{}])
    run = None if guard is None else trimtab.attach(host, guard=guard, record=False)
    dice = torch.Generator().manual_seed(rank_and_world_size()[0])

    def batch() -> dict[str, torch.Tensor]:
        ids = torch.randint(16, (2, 6), generator=dice)
        return {"input_ids": ids, "labels": ids.clone()}

    windows = [[batch() for _ in range(NUM_MICROS)] for _ in range(NUM_WINDOWS)]
    return Loop.of_trainer(host, windows=windows, run=run)
