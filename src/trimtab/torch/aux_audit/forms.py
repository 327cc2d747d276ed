"""What an auxiliary term is, by its definition; and what it is instead in loops that have another one.

Enters: routers' logits of one micro-batch, with their graph. Leaves: one 0-d term each, with a gradient, and for a term
that was stated the other forms that are known to stand in its place. Invariant: no form has a factor of its own but
those of its definition.

Shapes: L layers, T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import torch

from trimtab.torch.router.inputs import Layer, layers_of
from trimtab.torch.router.losses import Convention, load_balancing_loss, router_z_loss

OverLayers = Literal["sum", "mean"]
"""How the values of several layers become one term."""

Z: Final = "z"
LOAD_BALANCE: Final = "load_balance"

Form = Callable[[Sequence[torch.Tensor], torch.Tensor | None], torch.Tensor]
"""Takes the logits (..., E) of all layers and the mask of real tokens; gives a 0-d term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Definitions:
    """What "z" and "load_balance" mean.

    Attributes:
        top_k: k; None where no load balance is asked about.
        convention: Of the load balance, as for `load_balancing_loss`.
        over_layers: Of both, but for "hf", which pools.
    """

    top_k: int | None
    convention: Convention
    over_layers: OverLayers

    def stated(self, name: str) -> Form:
        """The definition of "z" or "load_balance"."""
        if name == Z:
            return lambda logits, mask: self._over(router_z_loss(list(logits), mask=mask))
        if self.convention == "hf":
            return self._pooled
        return self._per_layer

    def others(self, name: str, *, num_layers: int, has_mask: bool) -> dict[str, Form]:
        """Other definitions that loops are known to have, by what they are, as the middle of a sentence.

        Only such as point another way: a factor between two definitions is no form of its own.
        """
        stated = self.stated(name)
        forms: dict[str, Form] = {}
        if has_mask:
            forms["its value with padding in it"] = lambda logits, mask: stated(logits, None)  # noqa: ARG005
        if num_layers > 1:
            forms["that of the first layer alone"] = lambda logits, mask: stated(logits[:1], mask)
            forms["that of the last layer alone"] = lambda logits, mask: stated(logits[-1:], mask)
        if name == Z:
            forms["(mean of logsumexp)^2 instead of the mean of logsumexp^2"] = self._squared_mean
            forms["z of probabilities, where it is of logits"] = lambda logits, mask: stated(_shares(logits), mask)
            return forms
        if num_layers > 1 and self.convention == "hf":
            forms["a load balance of each layer, not pooled over layers"] = self._per_layer
        elif num_layers > 1:
            forms['a load balance pooled over layers (convention="hf")'] = self._pooled
        # P is the mean of the full softmax; of the chosen experts alone it is too small, and balances otherwise.
        forms["a load balance whose P is made of the chosen experts alone, not of the full softmax"] = self._chosen_only
        forms["a load balance whose P is renormalised over the chosen experts"] = self._renormalised
        # As DeepSeek-V3's, whose router is a sigmoid.
        forms["a load balance whose P is made of sigmoids"] = self._of_sigmoids
        forms["a load balance whose f is the softmax's mean, not the share of choices"] = self._soft
        forms["a load balance of each sequence, the mean over them"] = self._per_sequence
        return forms

    def _per_layer(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        assert self.top_k is not None
        convention: Convention = "switch" if self.convention == "hf" else self.convention
        return self._over(load_balancing_loss(list(logits), top_k=self.top_k, convention=convention, mask=mask))

    def _pooled(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        assert self.top_k is not None
        return load_balancing_loss(list(logits), top_k=self.top_k, convention="hf", mask=mask)

    def _squared_mean(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        means = [layer.mean(layer.logits.logsumexp(-1)) for layer in layers_of(list(logits), mask=mask)]
        return self._over(torch.stack(means).square())

    def _chosen_only(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        return self._by_chosen(logits, mask, renormalised=False)

    def _renormalised(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        return self._by_chosen(logits, mask, renormalised=True)

    def _of_sigmoids(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        def share(scores: torch.Tensor) -> torch.Tensor:
            open_ = scores.sigmoid()
            return open_ / open_.sum(-1, keepdim=True)

        layers = layers_of(list(logits), mask=mask)
        return self._over(torch.stack([self._value(layer, share(layer.logits)) for layer in layers]))

    def _soft(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        layers = layers_of(list(logits), mask=mask)
        means = [layer.mean(layer.logits.softmax(-1)) for layer in layers]
        return self._over(torch.stack([mean.square().sum() * mean.shape[0] for mean in means]))

    def _per_sequence(self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None) -> torch.Tensor:
        if any(layer.dim() != 3 for layer in logits) or (mask is not None and mask.dim() != 2):
            return logits[0].new_zeros(())  # sequences are not told apart
        masks = [None] * logits[0].shape[0] if mask is None else list(mask)
        values = [
            self._per_layer([layer[place] for layer in logits], real)
            for place, real in enumerate(masks)
            if real is None or bool(real.any())
        ]
        return torch.stack(values).mean()

    def _by_chosen(
        self, logits: Sequence[torch.Tensor], mask: torch.Tensor | None, *, renormalised: bool
    ) -> torch.Tensor:
        values = []
        for layer in layers_of(list(logits), mask=mask):
            full = layer.logits.softmax(-1)
            part = full * self._chosen(layer)
            if renormalised:
                part = part / part.sum(-1, keepdim=True)
            values.append(self._value(layer, part))
        return self._over(torch.stack(values))

    def _chosen(self, layer: Layer) -> torch.Tensor:
        assert self.top_k is not None
        best = layer.logits.detach().topk(self.top_k, dim=-1).indices
        return torch.zeros_like(layer.logits).scatter(-1, best, 1.0)

    def _value(self, layer: Layer, part: torch.Tensor) -> torch.Tensor:
        assert self.top_k is not None
        divisor = 1 if self.convention == "hf" else self.top_k
        return (layer.mean(self._chosen(layer)) * layer.mean(part)).sum() * (part.shape[1] / divisor)

    def _over(self, values_L: torch.Tensor) -> torch.Tensor:  # noqa: N803 - L is a shape letter
        return values_L.sum() if self.over_layers == "sum" else values_L.mean()


def _shares(logits: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [layer.softmax(-1) for layer in logits]
