"""How a loop is trained over given windows by its own verbs: a `Run`, an engine, a Hugging Face `Trainer`.

Enters: the parts that exist already. Leaves: the `train` of a `Loop`. Each calls the host's own verbs in the host's own
order, and knows the host by them only. The last backward of a window is the one that reduces gradients over the ranks,
as it is where micro-batches are accumulated for speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from trimtab.errors import UsageError

Windows = Sequence[Sequence[Any]]
"""windows[w][m] is micro-batch m of window w, as this rank trains on it."""

Train = Callable[[Windows], Sequence[float | None] | None]
"""Trains over windows; gives what it reports as the loss of each."""


def run_training(
    run: Any, model: nn.Module, micro_loss: Callable[[Any], torch.Tensor], *, scheduler: Any, scaler: Any
) -> Train:
    """The training of a loop around a `trimtab.Run`.

    Args:
        run: The run.
        model: The model, or the DDP or FSDP wrapper.
        micro_loss: Forward and `run.micro_batch`.
        scheduler: Is stepped on every window.
        scaler: Scales each loss, and is handed to `run.step`.
    """

    def train(windows: Windows) -> list[float | None]:
        losses: list[float | None] = []
        for micros in windows:
            for place, batch in enumerate(micros):
                with _syncing(model, is_last=place == len(micros) - 1):
                    loss = micro_loss(batch)
                    (loss if scaler is None else scaler.scale(loss)).backward()
            outcome = run.step(scaler)
            if scheduler is not None:
                scheduler.step()
            losses.append(outcome.loss)
        return losses

    return train


def engine_training(engine: Any, *, end_window: Callable[[], Any] | None) -> Train:
    """The training of an engine with `forward_step`, `backward_step` and, where it has one, `optimizer_step`.

    Args:
        engine: The engine.
        end_window: Is called after a window's last backward; None: `engine.optimizer_step`, and nothing where the
            engine has none, because its `backward_step` steps by itself.
    """
    end: Callable[[], Any] | None = end_window
    if end is None:
        end = getattr(engine, "optimizer_step", None)

    def train(windows: Windows) -> list[float | None]:
        losses: list[float | None] = []
        for micros in windows:
            for batch in micros:
                forwarded = engine.forward_step(batch)
                engine.backward_step(*forwarded if isinstance(forwarded, tuple) else (forwarded,))
            losses.append(_reported(end()) if end is not None else None)
        return losses

    return train


def engine_part(engine: Any, name: str) -> Any:
    """A part of an engine that a loop cannot do without.

    Raises:
        UsageError: The engine does not have it.
    """
    part = getattr(engine, name, None)
    if part is None:
        raise UsageError(
            f"The engine ({type(engine).__name__}) has no {name}: call prepare_optimizer() before Loop.of_engine, or "
            f"pass {name}= to it."
        )
    return part


def trainer_training(trainer: Any) -> Train:
    """The training of a Hugging Face `Trainer`, by one call of `trainer.train()`.

    Args:
        trainer: The trainer. Its `gradient_accumulation_steps` are the micro-batches of a window.
    """

    def train(windows: Windows) -> list[float | None]:
        steps = trainer.args.gradient_accumulation_steps
        if any(len(micros) != steps for micros in windows):
            raise UsageError(
                f"The windows have {', '.join(str(len(micros)) for micros in windows)} micro-batches, and the trainer "
                f"takes {steps} a step (gradient_accumulation_steps): make them the same."
            )
        with _fed(trainer, _Batches([batch for micros in windows for batch in micros])):
            trainer.train()
        logged = {entry["step"]: float(entry["loss"]) for entry in trainer.state.log_history if "loss" in entry}
        each = trainer.args.logging_strategy == "steps" and trainer.args.logging_steps == 1
        return [logged.get(window + 1) if each else None for window in range(len(windows))]

    return train


class _Batches(torch.utils.data.DataLoader[Any]):
    """A loader over batches that are ready; a trainer prepares them for its device itself."""

    def __init__(self, batches: Sequence[Any]) -> None:
        super().__init__(_Ready(batches), batch_size=None, shuffle=False)


class _Ready(torch.utils.data.Dataset[Any]):
    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches

    def __len__(self) -> int:
        return len(self._batches)

    def __getitem__(self, place: int) -> Any:
        batch = self._batches[place]
        return dict(batch) if isinstance(batch, dict) else batch  # a trainer may take things out of it


@contextmanager
def _fed(trainer: Any, batches: _Batches) -> Iterator[None]:
    """Lets the trainer train on these batches."""
    own = vars(trainer).get("get_train_dataloader")
    trainer.get_train_dataloader = lambda: batches
    try:
        yield
    finally:
        if own is None:
            del trainer.get_train_dataloader
        else:
            trainer.get_train_dataloader = own


def _syncing(model: nn.Module, *, is_last: bool) -> AbstractContextManager[Any]:
    """What stands around forward and backward of a micro-batch where gradients are accumulated."""
    if isinstance(model, nn.parallel.DistributedDataParallel) and not is_last:
        return model.no_sync()
    host: Any = model
    if hasattr(host, "set_requires_gradient_sync"):
        host.set_requires_gradient_sync(is_last)
    return nullcontext()


def _reported(result: Any) -> float | None:
    loss = getattr(result, "loss", result)
    if isinstance(loss, torch.Tensor):
        return float(loss.detach()) if loss.numel() == 1 else None
    return float(loss) if isinstance(loss, int | float) else None
