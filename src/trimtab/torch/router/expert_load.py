"""How tokens fall on experts: counts, and the figures that are made of counts or of logits; none has a gradient.

Enters: router logits, or counts. Leaves: integers that sum to tokens x top_k, and figures of them. Nothing here waits
for a device.

Token entropy and load entropy are two figures. The first is of each token's own softmax: how sure the router is. The
second is of the counts: how even the load is. A router may be sure and even (specialised), unsure and even (uniform),
or sure and uneven (collapsed).

Shapes: L layers, T tokens, E experts, K experts of a token (top_k).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from trimtab.errors import UsageError
from trimtab.torch.router.inputs import Layer, Logits, in_one, is_list, layers_of, top_k_of_layers


def expert_counts(logits: Logits, *, top_k: int, mask: torch.Tensor | None = None) -> torch.Tensor:
    """How many real tokens go to each expert, by the `top_k` largest logits of each.

    Among equal logits `torch.topk` chooses. A router that adds a bias for the choice alone, or chooses among groups of
    experts, sends tokens elsewhere than their largest logits say.

    Args:
        logits: (T, E) or (..., E) floating point, before softmax; or a list of layers with one E.
        top_k: Experts that a token is sent to.
        mask: (T,), or the shape of the logits without E; bool or integer, 1 where a token is real. None: all are.

    Returns:
        (E,) int64, or (L, E) for a list; each row sums to real tokens x top_k.

    Raises:
        UsageError: A shape, dtype or `top_k` makes no sense, or the layers of a list differ in E.

    Example:
        >>> expert_counts(torch.tensor([[3.0, 1.0, 2.0], [0.0, 5.0, 4.0]]), top_k=2).tolist()
        [1, 1, 2]
    """
    layers = layers_of(logits, mask=mask)
    top_k = top_k_of_layers(top_k, layers=layers)
    refuse_unlike_experts(layers, remedy="Call it for each layer by itself.")
    counts = [layer_counts(layer, top_k=top_k) for layer in layers]
    return in_one(counts) if is_list(logits) else counts[0]


@torch.no_grad()
def layer_counts(layer: Layer, *, top_k: int) -> torch.Tensor:
    """(E,) int64, the counts of one layer."""
    chosen = layer.logits.topk(top_k).indices
    # No bincount, which waits for a device to tell it the largest index, and no sum by atomics: a token that is marked
    # is summed in any order to the same integer.
    marked = torch.zeros_like(layer.logits, dtype=torch.bool).scatter(-1, chosen, True)
    if layer.real is not None:
        marked = marked & layer.real[:, None]
    return marked.sum(0)


@torch.no_grad()
def max_vio(counts: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """MaxVio, by how much the fullest expert exceeds its share: max load / mean load - 1, 0 at balance.

    From "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts" (arXiv:2408.15664), section 4.1.

    Args:
        counts: (E,) or (L, E), tokens of each expert.

    Returns:
        0-d or (L,) float32, from 0 to E / k - 1 where a token goes to k; NaN (None in a report) without any token.

    Raises:
        UsageError: The counts have another shape or dtype.

    Example:
        >>> max_vio([8, 0, 0, 0]).item()
        3.0
    """
    load = _load(counts)
    return (load.amax(-1) / load.mean(-1) - 1.0).float()


@torch.no_grad()
def load_entropy(counts: torch.Tensor | Sequence[int]) -> torch.Tensor:
    """The entropy of the load, in nats: ln E where every expert has as many tokens, 0 where one has all. Balance.

    Args:
        counts: (E,) or (L, E), tokens of each expert.

    Returns:
        0-d or (L,) float32; NaN (None in a report) where there is no token.

    Raises:
        UsageError: The counts have another shape or dtype.

    Example:
        >>> round(load_entropy([5, 5]).item(), 4)
        0.6931
    """
    load = _load(counts)
    entropy: torch.Tensor = torch.special.entr(load / load.sum(-1, keepdim=True)).sum(-1)
    return entropy.float()


@torch.no_grad()
def token_entropy(logits: Logits, *, mask: torch.Tensor | None = None) -> torch.Tensor:
    """The mean entropy of a token's softmax over all experts, in nats: ln E where uniform, 0 where sure. Confidence.

    A figure to look at and no term of a loss, so it carries no gradient.

    Args:
        logits: (T, E) or (..., E) floating point, before softmax; or a list of layers.
        mask: (T,), or the shape of the logits without E; bool or integer, 1 where a token is real. None: all are.

    Returns:
        0-d, or (L,) for a list; float32, float64 for float64; 0 where no token is real.

    Raises:
        UsageError: A shape or dtype makes no sense.

    Example:
        >>> round(token_entropy(torch.zeros(3, 48)).item(), 4)  # ln 48
        3.8712
    """
    layers = layers_of(logits, mask=mask)
    values = [layer.mean(torch.special.entr(layer.logits.softmax(-1)).sum(-1)) for layer in layers]
    return in_one(values) if is_list(logits) else values[0]


def refuse_unlike_experts(layers: Sequence[Layer], *, remedy: str) -> None:
    """Refuses, with `UsageError`, layers that differ in their number of experts."""
    found = list(dict.fromkeys(layer.logits.shape[1] for layer in layers))
    if len(found) > 1:
        raise UsageError(f"The layers have {' and '.join(map(str, found))} experts, expected one number. {remedy}")


def _load(counts: torch.Tensor | Sequence[int]) -> torch.Tensor:
    load = torch.as_tensor(counts)
    if load.dim() not in (1, 2) or load.shape[-1] < 1 or load.dtype == torch.bool or load.is_complex():
        raise UsageError(
            f"counts has shape {tuple(load.shape)} and dtype {load.dtype}, expected (E,) or (L, E) numbers of tokens, "
            "as expert_counts gives them."
        )
    # float32 counts to 2**24 alone; Apple's GPUs have nothing wider.
    return load.float() if load.device.type == "mps" else load.double()
