"""Token losses out of a host's own cross-entropy, without computing the loss twice.

Inside `CrossEntropyCapture` an `F.cross_entropy` that asks for a sum or a plain mean is taken apart into the two calls
that torch itself makes of it, log-softmax and negative log-likelihood. The host gets what it would have got, value and
gradient, bit for bit; of the log-probabilities in between the token losses are picked, which costs one gather. Calls
that are no plain sum over tokens (class weights, soft targets, torch's own label smoothing) are left alone and not
captured.

Shapes: B sequences, T tokens, N = B * T entries, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_HALF: Final = (torch.float16, torch.bfloat16)


class TokenLosses(NamedTuple):
    """What one call of cross-entropy computed.

    Attributes:
        losses: (N,) detached losses, 0 where not supervised.
        supervised: (N,) bool.
    """

    losses: torch.Tensor
    supervised: torch.Tensor


class CrossEntropyCapture(TorchFunctionMode):
    """Catches cross-entropy calls while it is entered; their token losses are in `calls`."""

    def __init__(self) -> None:
        """Starts with no calls."""
        super().__init__()
        self.calls: list[TokenLosses] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not F.cross_entropy:
            return func(*args, **(kwargs or {}))
        return self._cross_entropy(*args, **(kwargs or {}))

    def _cross_entropy(
        self,
        input: torch.Tensor,  # noqa: A002 - names and order are torch's
        target: torch.Tensor,
        weight: torch.Tensor | None = None,
        size_average: bool | None = None,  # noqa: FBT001
        ignore_index: int = -100,
        reduce: bool | None = None,  # noqa: FBT001
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> torch.Tensor:
        a_plain_sum_over_tokens = (
            weight is None
            and size_average is None
            and reduce is None
            and label_smoothing == 0.0
            and reduction in ("mean", "sum")
            and not target.is_floating_point()
        )
        if not a_plain_sum_over_tokens:
            return F.cross_entropy(
                input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
            )
        # Autocast does the same to the logits of a cross-entropy as a whole; its parts it would run in half precision.
        halved = input.dtype in _HALF and torch.is_autocast_enabled(input.device.type)
        log_probabilities = F.log_softmax(input.float() if halved else input, dim=min(input.dim() - 1, 1))
        losses = F.nll_loss(log_probabilities.detach(), target, ignore_index=ignore_index, reduction="none")
        self.calls.append(TokenLosses(losses.flatten(), (target != ignore_index).flatten()))
        return F.nll_loss(log_probabilities, target, ignore_index=ignore_index, reduction=reduction)


class CapturingLoss:
    """A loss function that runs another one inside a capture; replaces a model's loss function while it trains.

    Attributes:
        original: The loss function that is run.
        active: Whether token losses are kept.
        calls: The token losses that were kept and not yet taken.
        was_called: Whether the loss function was called while active.
    """

    def __init__(self, original: Callable[..., torch.Tensor]) -> None:
        """Wraps `original`."""
        self.original = original
        self.active = False
        self.calls: list[TokenLosses] = []
        self.was_called = False

    def __call__(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """The original's result; its token losses are kept while `active`."""
        if not self.active:
            return self.original(*args, **kwargs)
        self.was_called = True
        with CrossEntropyCapture() as capture:
            loss = self.original(*args, **kwargs)
        self.calls += capture.calls
        return loss
