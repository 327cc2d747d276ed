"""`Loop`: what a proof needs of somebody's training loop.

Enters: the parts of a loop that exists already. Leaves: a `Loop`. Invariant: nothing here changes what the loop does;
what makes a `Loop` of a `Run` loop, an engine or a trainer calls their own verbs, in their own order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.proof.hosts import Train, Windows, engine_part, engine_training, run_training, trainer_training
from trimtab.rules.aux.values import AuxAudit

NUM_WINDOWS: Final = 6
"""Least windows of a loop: two before the faulty one, and three after it."""

NUM_MICROS: Final = (3, 7)
"""Least and most micro-batches of a window: first, middle and last; and fewer than the guard's 8 skips in a row, after
which it takes a new level for granted."""


@dataclass(slots=True, kw_only=True)
class Loop:
    """A training loop at small size, as a factory `build(guard)` gives it.

    Attributes:
        model: What one micro-batch calls once in forward, as the loop calls it: the DDP or FSDP wrapper where there is
            one. Its output, or a part of it, is what the loss comes from.
        optimizer: The optimizer that changes its parameters.
        train: Trains over the windows handed in, in their order, one optimizer step a window. Gives what it reports as
            each window's loss, or None where it reports none.
        windows: At least 6 windows of 3 to 7 micro-batches each, healthy ones, those of this rank; as many on every
            rank.
        scheduler: The schedule of the learning rate, where there is one.
        scaler: The gradient scaler, where there is one.
        num_skipped: How many micro-batches the guard says it has skipped; None where nobody counts them.
        num_judged: How many it says it was asked about, such as `lambda: guard.num_judged`; None likewise.
        audit: Gives what `trimtab.moe.audit_aux_weights` says of the loop's own loss; None: it has no auxiliary terms.
        skipped_tokens: Whether the tokens of a skipped micro-batch count in the divisor of its window. "removed" is for
            a loss of a window's tokens, in batches that name their labels or a mask.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    train: Train
    windows: Windows
    scheduler: Any = None
    scaler: Any = None
    num_skipped: Callable[[], int] | None = None
    num_judged: Callable[[], int] | None = None
    audit: Callable[[], AuxAudit] | None = None
    skipped_tokens: Literal["counted", "removed"] = "counted"

    @classmethod
    def of_run(
        cls,
        run: Any,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        micro_loss: Callable[[Any], torch.Tensor],
        windows: Windows,
        scheduler: Any = None,
        scaler: Any = None,
    ) -> Self:
        """A loop around a `trimtab.Run`: backward of each micro-batch, then `run.step` and the scheduler.

        Under DDP and FSDP2 the last backward of a window reduces the gradients.

        Args:
            run: The run, made with `guard=` as the factory was handed it; `record=False` leaves no folder behind.
            model: As in `Loop`, as are the others.
            optimizer: The run's own.
            micro_loss: Takes a micro-batch, calls the model on it and `run.micro_batch` on the losses, and gives back
                what that gave.
            windows: As in `Loop`; the run's `accumulation` micro-batches each.
            scheduler: Is stepped on every window.
            scaler: Scales each loss, and is handed to `run.step`.
        """
        return cls(
            model=model,
            optimizer=optimizer,
            train=run_training(run, model, micro_loss, scheduler=scheduler, scaler=scaler),
            windows=windows,
            scheduler=scheduler,
            scaler=scaler,
            num_skipped=lambda: int(run.num_skipped),
            num_judged=lambda: _judged(run),
        )

    @classmethod
    def of_engine(
        cls,
        engine: Any,
        *,
        windows: Windows,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        end_window: Callable[[], Any] | None = None,
        num_skipped: Callable[[], int] | None = None,
    ) -> Self:
        """An engine: `backward_step(*forward_step(batch))` once a micro-batch, `optimizer_step()` once a window.

        Args:
            engine: The engine, after its `prepare_optimizer()`. What `forward_step` gives is handed to `backward_step`,
                a tuple as several arguments.
            windows: As in `Loop`.
            model: None: `engine.model`.
            optimizer: None: `engine.optimizer`.
            scheduler: None: `engine.scheduler`, where it has one.
            scaler: None: `engine.scaler`, where it has one.
            end_window: Ends a window in place of `engine.optimizer_step`, and gives its reported loss, or what has it
                as `.loss`. An engine with neither steps in its `backward_step`.
            num_skipped: None: `engine.num_skipped`, where it has one; `engine.num_judged` is taken likewise.

        Raises:
            UsageError: The engine has no model or no optimizer.
        """
        if num_skipped is None and hasattr(engine, "num_skipped"):
            num_skipped = lambda: int(engine.num_skipped)  # noqa: E731 - asked after the training
        has_judged = hasattr(engine, "num_judged")
        return cls(
            model=model if model is not None else engine_part(engine, "model"),
            optimizer=optimizer if optimizer is not None else engine_part(engine, "optimizer"),
            train=engine_training(engine, end_window=end_window),
            windows=windows,
            scheduler=scheduler if scheduler is not None else getattr(engine, "scheduler", None),
            scaler=scaler if scaler is not None else getattr(engine, "scaler", None),
            num_skipped=num_skipped,
            num_judged=(lambda: int(engine.num_judged)) if has_judged else None,
        )

    @classmethod
    def of_trainer(cls, trainer: Any, *, windows: Windows, run: Any = None) -> Self:
        """A Hugging Face `Trainer`, trained by one call of `trainer.train()`.

        Args:
            trainer: The trainer, with as many `gradient_accumulation_steps` as a window has micro-batches, one epoch
                and, for its reported loss to be looked at, `logging_steps=1`.
            windows: As in `Loop`: batches as its collator makes them.
            run: What `trimtab.attach(trainer, guard=guard)` gave; None where no guard was handed over.
        """
        if trainer.optimizer is None:
            trainer.create_optimizer()
        return cls(
            model=trainer.model,
            optimizer=trainer.optimizer,
            train=trainer_training(trainer),
            windows=windows,
            num_skipped=None if run is None else lambda: int(run.num_skipped),
        )


def _judged(run: Any) -> int:
    """What a run's guard was asked about; 0 without one."""
    guard = run.state_dict()["guard"]
    return int(guard["num_judged"]) if guard is not None else 0


Factory = Callable[[GuardConfig | None], Loop]
"""`build(guard)`: makes a loop from scratch, always the same one, with the guard's settings wired in; None: without any
guard at all. It is called anew for each trial, in each process, after `torch.manual_seed(0)`."""


def build_loop(factory: Factory, guard: GuardConfig | None) -> Loop:
    """What a factory gives, looked at.

    Args:
        factory: Builds the loop.
        guard: Handed on to it.

    Raises:
        UsageError: It is no loop, or has too few windows or micro-batches, or too many.
    """
    loop = factory(guard)
    if not isinstance(loop, Loop):
        raise UsageError(
            f"The factory gave an object of type {type(loop).__name__}, expected a trimtab.proof.Loop(model=, "
            "optimizer=, train=, windows=)."
        )
    if not isinstance(loop.model, nn.Module):
        raise UsageError(
            f"Loop.model is of type {type(loop.model).__name__}, expected the torch.nn.Module that the loop calls."
        )
    if len(loop.windows) < NUM_WINDOWS:
        raise UsageError(
            f"The loop has {len(loop.windows)} windows, expected at least {NUM_WINDOWS}: two before the faulty one, "
            "and three after it."
        )
    least, most = NUM_MICROS
    for window, micros in enumerate(loop.windows):
        if not least <= len(micros) <= most:
            raise UsageError(
                f"windows[{window}] has {len(micros)} micro-batches, expected {least} to {most}: a first, a middle and "
                "a last one, and fewer than the 8 skips in a row after which the guard takes a new level for granted."
            )
    return loop
