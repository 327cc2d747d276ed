"""Router logits and masks as they come, in the one shape that the figures are computed from.

Enters: the logits of one router or a list of them, and which tokens are real. Leaves: a `Layer` each, (T, E) in float32
or float64, whose padding is zeros. Invariant: what stands at a padded place, a NaN too, reaches no value and no
gradient; what stands at a real one is not touched. Nothing here waits for a device.

Shapes: L layers, B sequences, T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from trimtab.errors import UsageError

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
    _refuse_no_mask(mask)
    return [_layer(layer, mask, name="logits" if len(given) == 1 else f"logits[{i}]") for i, layer in enumerate(given)]


def refuse_no_top_k(top_k: int, *, layers: Sequence[Layer]) -> None:
    """Refuses, with `UsageError`, a number of experts that no router can send a token to."""
    fewest = min(layer.logits.shape[1] for layer in layers)
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 1 <= top_k <= fewest:
        raise UsageError(f"top_k must be a whole number from 1 to the {fewest} experts of a layer, found {top_k!r}.")


def in_one(values: Sequence[torch.Tensor]) -> torch.Tensor:
    """One value a layer as one tensor, on the device of the first, where the layers lie on several."""
    return torch.stack([value.to(values[0].device) for value in values])


def _layer(logits: torch.Tensor, mask: torch.Tensor | None, *, name: str) -> Layer:
    if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
        found = f"dtype {logits.dtype}" if isinstance(logits, torch.Tensor) else type(logits).__name__
        raise UsageError(
            f"{name} must be a floating-point tensor (T, E), the router's output before softmax; found {found}."
        )
    if logits.dim() < 2 or logits.shape[-1] < 1:
        raise UsageError(
            f"{name} has shape {tuple(logits.shape)}, expected (T, E) or (..., E): a row of E experts for each token."
        )
    wide = logits if logits.dtype == torch.float64 else logits.float()
    wide = wide.flatten(0, -2)
    if mask is None:
        return Layer(wide, None, torch.full((), wide.shape[0], dtype=torch.int64, device=wide.device))
    _refuse_other_shape(mask, logits, name=name)
    real = mask.to(wide.device, non_blocking=True).flatten() != 0
    # Before the figures and not behind them: the derivative at a NaN is NaN, whatever it is multiplied by.
    return Layer(torch.where(real[:, None], wide, 0.0), real, real.sum())


def _refuse_no_mask(mask: object) -> None:
    if mask is None:
        return
    if not isinstance(mask, torch.Tensor) or mask.is_floating_point() or mask.is_complex():
        found = f"dtype {mask.dtype}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise UsageError(
            f"mask must be a bool or integer tensor, 1 where a token is real; found {found}. An additive mask of "
            "attention (0 where a token is real) goes in as `mask == 0`."
        )


def _refuse_other_shape(mask: torch.Tensor, logits: torch.Tensor, *, name: str) -> None:
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
