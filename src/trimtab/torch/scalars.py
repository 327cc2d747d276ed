"""What a guard is handed of one micro-batch where it is one loss: a 0-d tensor, and how many tokens are behind it.

Enters: what a user passes. Leaves: the same, or a `UsageError` that says what was found; nothing here waits. What is on
the host, a number or a CPU tensor, is looked at; what is on a device never.
"""

from __future__ import annotations

from typing import Any

import torch

from trimtab.errors import UsageError
from trimtab.rules.scalar import MAX_WHOLE, real_number
from trimtab.rules.scalar import token_count as read_count


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


def judged_loss(loss: Any, *, where: str) -> torch.Tensor:
    """The loss that a host is to judge, 0-d: a tensor as it is, a number of any kind as float64 on the CPU.

    Args:
        loss: What was given: a tensor, or a number or an array with one element.
        where: The call that was given it, as the user wrote it.

    Raises:
        UsageError: It is no loss, or on the meta device, where it has no value.
    """
    if isinstance(loss, torch.Tensor) and loss.is_meta:
        raise UsageError(f"{where} was given a loss on the meta device, which has no value: judge a real one.")
    if isinstance(loss, (torch.Tensor, bool)):
        check_loss(loss, where=where, instead="a plain number may stand for it")
        assert isinstance(loss, torch.Tensor), "a truth is refused"
        return loss
    return torch.tensor(real_number(loss, name=f"the loss of {where}"), dtype=torch.float64)


def given_count(num_tokens: Any) -> torch.Tensor | int:
    """The count as it was given: an integer tensor as it is, a whole number of any kind as an int.

    Raises:
        UsageError: It is none, or negative or too large for int64 as far as the host can see that.
    """
    if not isinstance(num_tokens, torch.Tensor):
        return read_count(num_tokens, name="num_tokens")
    check_tokens(num_tokens)
    if num_tokens.is_meta:
        raise UsageError("num_tokens is on the meta device and has no value: pass the count itself.")
    known = known_count(num_tokens)
    if known is not None and not 0 <= known <= MAX_WHOLE:
        raise UsageError(f"num_tokens is {known}: expected a whole number of 0 or more, for example mask.sum().")
    return num_tokens


def known_count(num_tokens: torch.Tensor | int) -> int | None:
    """The count as a number where the host has it; None on a device, which is not asked."""
    if isinstance(num_tokens, int):
        return num_tokens
    # As a list: of a tensor of the host that is a look into its memory, and no operation.
    known: Any = num_tokens.tolist() if num_tokens.device.type == "cpu" else None
    return None if known is None else int(known)


def token_count(num_tokens: torch.Tensor | int, *, device: torch.device) -> torch.Tensor:
    """0-d int64 on the device; never waits, but for what is on another device than it and the CPU."""
    if isinstance(num_tokens, torch.Tensor):
        return num_tokens.detach().to(device, torch.int64, non_blocking=device.type != "cpu")
    return torch.full((), num_tokens, dtype=torch.int64, device=device)
