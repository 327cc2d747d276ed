"""What of a loss that is called ce is a term, seen where ce itself has no gradient.

By a router's logits the gradient of ce lies in few directions, for ce knows them by the weights of the chosen experts
alone: a softmax does not change when all logits of a token grow alike, so its gradients sum to 0 over experts (those
of z do not); and the logits of experts that were not chosen act through the softmax's sum at most, so its gradients
there are a multiple of the softmax, or 0 (those of a load balance are not). What is outside of these directions is a
term.

Enters: gradients of ce and of the terms by the logits of one micro-batch. Leaves: dot products of their parts outside,
(1 + K + 1, 1 + K + 1) for each kind, ce first and zeros last. Invariant: nothing is assumed of a router: a kind that
the model's own ce has a part of is explained by no term, and is not used (`rules/aux/held.py`).

Shapes: T tokens, E experts, K terms.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trimtab.rules.aux.held import Outside
from trimtab.torch.aux_audit.grams import Gradients, dot_products


def parts_outside(
    gradients: Sequence[Gradients], logits: Sequence[torch.Tensor], *, top_k: int | None
) -> tuple[Outside, ...]:
    """The parts of gradients that ce has not.

    Args:
        gradients: Of ce, and of each of K terms, by the logits of each layer, (..., E).
        logits: (..., E) of each layer.
        top_k: k; None: not known, and then nothing is known of experts that were not chosen.
    """
    gradients = [[None if part is None else _wide(part) for part in one] for one in gradients]
    sums: list[Gradients] = [[None if part is None else part.sum(-1) for part in one] for one in gradients]
    num_tokens = sum(layer.numel() // layer.shape[-1] for layer in logits)
    whole = dot_products(gradients[:1])[0][0]
    kinds = [_outside(sums, num_free=num_tokens, whole=whole)]
    if top_k is None or any(layer.shape[-1] <= top_k for layer in logits):
        return tuple(kinds)
    shares = [_wide(layer).softmax(-1) for layer in logits]
    others = [share.scatter(-1, share.topk(top_k, dim=-1).indices, 0.0) for share in shares]
    left: list[Gradients] = []
    unchosen: list[Gradients] = []
    for one in gradients:
        there = [None if part is None else part * (other > 0.0) for part, other in zip(one, others, strict=True)]
        unchosen.append(there)
        left.append([None if part is None else _beside(part, other) for part, other in zip(there, others, strict=True)])
    num_unchosen = sum(layer.numel() // layer.shape[-1] * (layer.shape[-1] - top_k) for layer in logits)
    kinds.append(_outside(left, num_free=num_unchosen - num_tokens, whole=whole))
    kinds.append(_outside(unchosen, num_free=num_unchosen, whole=whole))
    return tuple(kinds)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """In float64, which some devices have not."""
    return (values.cpu() if values.device.type == "mps" else values).detach().to(torch.float64)


def _beside(part: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    along = (part * other).sum(-1, keepdim=True) / other.square().sum(-1, keepdim=True).clamp_min(1e-300)
    return part - along * other


def _outside(gradients: Sequence[Gradients], *, num_free: int, whole: float) -> Outside:
    nothing: Gradients = [None] * len(gradients[0])
    return Outside(gram=dot_products([*gradients, nothing]), num_free=num_free, whole=whole)
