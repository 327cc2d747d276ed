"""What a router's figures are made of: logits, chosen experts, masks, k and P as they come, checked in one place.

Enters: the logits of one router or a list of them, and which tokens are real. Leaves: a `Layer` each, (T, E) in float32
or float64, whose padding is zeros; or what is wrong, in words. Invariant: what stands at a padded place, a NaN too,
reaches no value and no gradient; what stands at a real one is not touched. Nothing here waits for a device.

Shapes: L layers, B sequences, T tokens, E experts, k experts of a token, P populations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from trimtab.errors import UsageError
from trimtab.rules.scalar import MAX_WHOLE, whole_number

Logits = torch.Tensor | Sequence[torch.Tensor]
"""(T, E) or (..., E), floating point; or one such tensor a layer."""


class Layer(NamedTuple):
    """One router's logits.

    Attributes:
        logits: (T, E) float32, or float64 where they came so; zeros where padded.
        real: (T,) bool, which tokens are real; None: all.
        num_tokens: 0-d int64, how many of them are real.
    """

    logits: torch.Tensor
    real: torch.Tensor | None
    num_tokens: torch.Tensor

    def kept(self, values: torch.Tensor) -> torch.Tensor:
        """Values of tokens, (T,) or (T, E), with zeros where padded."""
        if self.real is None:
            return values
        real = self.real if values.dim() == 1 else self.real[:, None]
        return torch.where(real, values, 0.0)

    def mean(self, values: torch.Tensor) -> torch.Tensor:
        """The mean over real tokens, of (T,) or of each column of (T, E); 0 where no token is real."""
        return self.kept(values).sum(0) / self.num_tokens.clamp(min=1).to(values.dtype)


def is_list(logits: Logits) -> bool:
    """Whether they are of several layers, which a figure answers with (L,)."""
    return not isinstance(logits, torch.Tensor)


def layers_of(logits: Logits, *, mask: torch.Tensor | None) -> list[Layer]:
    """The layers, in the order in which they came.

    Args:
        logits: (T, E) or (..., E) floating point, or a sequence of them, which may differ in E.
        mask: Which tokens are real: bool, or integers of which 0 is padding, as Hugging Face's `attention_mask`; (T,),
            or the shape of the logits without E. It holds for every layer. None: all.

    Raises:
        UsageError: There is no layer; one is no floating-point tensor or has no dimension of experts; the mask is no
            bool or integer tensor or fits a layer's tokens in neither way.
    """
    given = [logits] if isinstance(logits, torch.Tensor) else list(logits)
    if not given:
        raise UsageError("logits is an empty list: pass the logits of at least one router, (T, E).")
    refuse_no_mask(mask)
    return [_layer(layer, mask, name="logits" if len(given) == 1 else f"logits[{i}]") for i, layer in enumerate(given)]


def checked_top_k(top_k: Any, *, num_experts: int | None = None) -> int:
    """The experts of a token, as an int.

    Args:
        top_k: What was given for it.
        num_experts: E, of several layers the smallest; None: not known yet.

    Raises:
        UsageError: No router can send a token to so many experts.
    """
    most = "on" if num_experts is None else f"to the {num_experts} experts of a layer"
    expected = f"a whole number from 1 {most}, the experts that a token is sent to."
    return whole_number(top_k, name="top_k", least=1, most=num_experts or MAX_WHOLE, expected=expected)


def top_k_of_layers(top_k: Any, *, layers: Sequence[Layer]) -> int:
    """The experts of a token, as `checked_top_k`, in each of some layers."""
    return checked_top_k(top_k, num_experts=min(layer.logits.shape[1] for layer in layers))


def checked_populations(num_populations: Any, *, num_experts: int | None = None, of: str = "", fewest: int = 1) -> int:
    """The number of populations, as an int.

    Args:
        num_populations: What was given for it.
        num_experts: E; None: not known yet.
        of: Whose experts these are, for the error.
        fewest: 2 where populations are compared.

    Raises:
        UsageError: It does not divide E into populations of one size.
    """
    divides = "" if num_experts is None else f" that divides the {num_experts} experts{of}"
    expected = f"a whole number from {fewest} on{divides}: each population has as many experts as any other."
    number = whole_number(
        num_populations, name="num_populations", least=fewest, most=num_experts or MAX_WHOLE, expected=expected
    )
    if num_experts is not None and num_experts % number:
        raise UsageError(f"num_populations is {number}: expected {expected}")
    return number


def wrong_logits(logits: Any) -> str | None:
    """What stands in the place of logits, and what was expected; None: they are logits."""
    if not isinstance(logits, torch.Tensor):
        found = f"a {type(logits).__name__}"
    elif not logits.is_floating_point():
        found = f"a tensor of {logits.dtype}"
    elif logits.dim() < 2 or logits.shape[-1] < 1:
        found = f"a tensor of shape {tuple(logits.shape)}"
    else:
        return None
    return (
        f"{found}, expected the router's output before softmax: floating point, (T, E) or (..., E), a row of E experts "
        "for each token"
    )


def wrong_indices(indices: Any, *, logits: torch.Tensor) -> str | None:
    """What stands in the place of the experts that were chosen by logits; None: they are these."""
    if not isinstance(indices, torch.Tensor) or indices.dtype not in (torch.int64, torch.int32):
        found = f"a tensor of {indices.dtype}" if isinstance(indices, torch.Tensor) else f"a {type(indices).__name__}"
        return f"{found} as chosen experts, expected int64 or int32, k for each token"
    num_experts = logits.shape[-1]
    num_tokens = logits.numel() // num_experts
    if not num_tokens or (indices.numel() % num_tokens == 0 and 1 <= indices.numel() // num_tokens <= num_experts):
        return None
    return f"{indices.numel()} chosen experts for {num_tokens} tokens, expected k for each, from 1 to {num_experts}"


def refuse_no_mask(mask: object) -> None:
    """Refuses, with `UsageError`, what does not say which tokens are real."""
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.is_floating_point() or mask.is_complex():
        found = f"dtype {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise UsageError(
            f"mask must be a bool or integer tensor, 1 where a token is real; found {found}. An additive mask of "
            "attention (0 where a token is real) goes in as `mask == 0`."
        )


def refuse_other_tokens(mask: torch.Tensor, logits: torch.Tensor, *, name: str) -> None:
    """Refuses, with `UsageError`, a mask of other tokens than those of logits."""
    places = logits.shape[:-1]
    num_tokens = places.numel()
    # Routers flatten (B, T) to B * T rows, so a mask (B, T) goes with (B * T, E) too. With (T, B, E) it has as many
    # entries and belongs to other tokens: then the shapes decide.
    fits = mask.shape == places or (mask.numel() == num_tokens and 1 in (mask.dim(), len(places)) and mask.dim() <= 2)
    if not fits:
        expected = " or ".join(str(shape) for shape in dict.fromkeys([(num_tokens,), tuple(places)]))
        raise UsageError(
            f"mask has shape {tuple(mask.shape)}, expected {expected} for {name} of shape {tuple(logits.shape)}: one "
            "entry for each token that the router saw."
        )


def in_one(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """One value a layer as one tensor, on the device of the first, where the layers lie on several."""
    return torch.stack([value.to(values[0].device) for value in values])


def _layer(logits: torch.Tensor, mask: torch.Tensor | None, *, name: str) -> Layer:
    wrong = wrong_logits(logits)
    if wrong is not None:
        raise UsageError(f"{name} is {wrong}.")
    wide = logits if logits.dtype == torch.float64 else logits.float()
    wide = wide.flatten(0, -2)
    if mask is None:
        return Layer(wide, None, torch.full((), wide.shape[0], dtype=torch.int64, device=wide.device))
    refuse_other_tokens(mask, logits, name=name)
    real = mask.to(wide.device, non_blocking=True).flatten() != 0
    # Before the figures and not behind them: the derivative at a NaN is NaN, whatever it is multiplied by.
    return Layer(torch.where(real[:, None], wide, 0.0), real, real.sum())
