"""What a guard is handed of one micro-batch where it is one loss: a 0-d tensor, and how many tokens are behind it.

Enters: what a user passes. Leaves: the same, or a `UsageError` that says what was found; nothing here waits.
"""

from __future__ import annotations

import torch

from trimtab.errors import UsageError


def check_loss(loss: object, *, where: str, instead: str) -> None:
    """Refuses what is no 0-d tensor of a float dtype.

    Args:
        loss: What was given.
        where: The call that was given it, as the user wrote it.
        instead: What to do where the loss is a plain number.
    """
    if not isinstance(loss, torch.Tensor) or loss.dim() != 0 or not loss.is_floating_point():
        found = f"{loss.dtype} of shape {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else type(loss).__name__
        raise UsageError(
            f"{where} takes one loss, a 0-d tensor of a float dtype, found {found}: reduce it first "
            f"(.mean(), .sum()); {instead}."
        )


def check_tokens(num_tokens: object) -> None:
    """Refuses what is neither a whole number of 0 or more nor a 0-d integer tensor."""
    if isinstance(num_tokens, torch.Tensor):
        if num_tokens.dim() == 0 and not num_tokens.is_floating_point() and num_tokens.dtype != torch.bool:
            return
        found = f"{num_tokens.dtype} of shape {tuple(num_tokens.shape)}"
    elif isinstance(num_tokens, int) and not isinstance(num_tokens, bool) and num_tokens >= 0:
        return
    else:
        found = f"{num_tokens!r:.80}"
    raise UsageError(
        f"num_tokens is {found}: expected a whole number of 0 or more, or a 0-d integer tensor, for example mask.sum()."
    )


def token_count(num_tokens: torch.Tensor | int, *, device: torch.device) -> torch.Tensor:
    """0-d int64 on the device; never waits, but for what is on another device than it and the CPU."""
    if isinstance(num_tokens, torch.Tensor):
        return num_tokens.detach().to(device, torch.int64, non_blocking=device.type != "cpu")
    return torch.full((), num_tokens, dtype=torch.int64, device=device)
