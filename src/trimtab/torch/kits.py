"""`LossKit` and `TokenNormedLossKit`: guard and accumulation for an engine that owns forward, backward and step.

Enters: a micro-batch's loss, or the sum of its losses and their number. Leaves: whether it counts, and the loss to call
backward on. What the two have in common, and in which order they are called, is in `trimtab.torch.kit`; here is only
what a call may hold and what the gradients are the mean of.
"""

from __future__ import annotations

import torch
from torch import nn

from trimtab.torch.kit import Kit
from trimtab.torch.outcome import WindowResult
from trimtab.torch.settings import at_least_one

__all__ = ["LossKit", "TokenNormedLossKit", "WindowResult"]


class LossKit(Kit):
    """Accumulates the scalar losses of micro-batches; the gradients become those of their mean, over all ranks.

    Without a guard, which `build_loss_guard` makes, nothing is ever skipped or dropped, and nothing waits.

    Example:
        >>> model = nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> kit = LossKit(model, optimizer=optimizer, accumulation=2)
        >>> guard = kit.build_loss_guard({"loss_spike_skip_multiplier": 3.0})
        >>> for x in (torch.ones(2, 4), torch.full((2, 4), torch.nan)):
        ...     loss = model(x).square().mean()
        ...     takes_part = kit.guard_loss(loss)
        ...     kit.accumulate(loss).backward()  # also where it takes no part
        >>> result = kit.finish_window(model.parameters())
        >>> optimizer.step()
        >>> takes_part, result.num_skipped_micros, result.reason
        (False, 1, 'stepped')
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        accumulation: int | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        """Begins without a guard.

        Args:
            model: The model, wrapped (DDP) or sharded (`fully_shard`) already; needed by a guard that is on.
            optimizer: The optimizer whose step is dropped where nothing counts; None: the engine looks at `stepped`.
            accumulation: Micro-batches of a full window, by which each loss is divided; a window with fewer or more is
                put right by `finish_window`. None: only that divides.
            process_group: The ranks that train together on different rows. None: the default group where
                torch.distributed is initialised, else this process alone.

        Raises:
            UsageError: If a setting makes no sense.
        """
        if accumulation is not None:
            accumulation = at_least_one(accumulation, name="accumulation", unit="micro-batches")
        super().__init__(
            model,
            optimizer=optimizer,
            normalize="micro",
            accumulation=1 if accumulation is None else accumulation,
            process_group=process_group,
        )

    def guard_loss(self, loss: torch.Tensor | float) -> bool:
        """Judges a micro-batch before its backward, by the mean of the ranks' losses; every rank decides alike.

        With a guard it waits for the loss, and among several ranks for one sum of three numbers, in the first call also
        for a comparison of settings. Without one it does nothing.

        Args:
            loss: 0-d, float: the unscaled mean loss of the micro-batch on this rank. The tensor with its graph: a skip
                needs it where `accumulate` is then given something without one. Any number may stand for it.

        Returns:
            True where the micro-batch takes part in backward. Call `accumulate` and backward where it is False, too.

        Raises:
            UsageError: If the micro-batch before was not accumulated, or `loss` is none.
            GuardLockupError: If the guard is set to raise on a lock-up; on every rank, and this micro-batch is not
                counted.
        """
        return self._judge(loss, 1)

    def accumulate(self, loss: object) -> torch.Tensor:
        """Counts the micro-batch in its window, and gives the loss to call backward on, once. Never waits.

        Args:
            loss: 0-d, float, with its graph; other terms may have been added to it. Of a micro-batch that is skipped it
                may be anything.

        Returns:
            0-d: `loss` divided by `accumulation`, or, where it is skipped, a zero whose backward leaves zeros.

        Raises:
            UsageError: If there is a guard and it was not asked, or `loss` is no such tensor.
        """
        return self._accumulate(loss, 1, where="accumulate")


class TokenNormedLossKit(Kit):
    """Accumulates sums of losses; the gradients become those of the mean over all supervised tokens of the window.

    That is: (sum of the losses over the supervised tokens of all micro-batches and ranks) / (their number), however
    they are split. Ranks are expected to average gradients, as DDP and `fully_shard` do.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        *,
        optimizer: torch.optim.Optimizer | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        """Begins without a guard; for the arguments see `LossKit`."""
        super().__init__(model, optimizer=optimizer, normalize="window", accumulation=1, process_group=process_group)

    def guard_loss(self, loss_sum: torch.Tensor | float, num_tokens: torch.Tensor | int) -> bool:
        """Judges a micro-batch before its backward, by the loss per token over all ranks; every rank decides alike.

        Waits as `LossKit.guard_loss`. A micro-batch without a token on any rank is kept and blamed on nobody.

        Args:
            loss_sum: 0-d, float: the sum of the unscaled losses over this rank's supervised tokens, with its graph (see
                `LossKit.guard_loss`).
            num_tokens: Their number: a whole number of any kind, or a 0-d integer tensor. With a guard the window is
                divided by what is given here.

        Returns:
            True where the micro-batch takes part in backward; call `accumulate_microbatch` and backward either way.

        Raises:
            UsageError: As `LossKit.guard_loss`.
            GuardLockupError: As there.
        """
        return self._judge(loss_sum, num_tokens)

    def accumulate_microbatch(self, loss_sum: object, num_tokens: torch.Tensor | int) -> torch.Tensor:
        """Counts the micro-batch in its window, and gives the loss to call backward on, once. Never waits.

        Args:
            loss_sum: As in `guard_loss`. Of a micro-batch that is skipped it may be anything, and so may `num_tokens`.
            num_tokens: As there.

        Returns:
            0-d, for backward only: `finish_window` puts its scale right. A zero whose backward leaves zeros where the
            micro-batch is skipped, or has no token on this rank.

        Raises:
            UsageError: As `LossKit.accumulate`, or if the tokens are not those that the guard was told of, where both
                are on the host.
        """
        return self._accumulate(loss_sum, num_tokens, where="accumulate_microbatch")
