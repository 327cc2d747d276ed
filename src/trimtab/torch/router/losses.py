"""The terms that keep a router sound: router z-loss and load balance, as they are defined and without a hidden factor.

Enters: router logits before softmax. Leaves: terms in float32 (float64 for float64), to be multiplied by their weight
once, at one place. Invariant: the value is the definition's and the gradient is the value's, where the counts carry
none; over ranks it is the gradient of the whole batch once the ranks' gradients are averaged.

With f_i = tokens sent to expert i / tokens (f sums to k = top_k), P_i = mean of the full softmax over E experts:

    convention   a layer's term         at balance   where it comes from
    switch       E * sum f_i P_i / k    1            Fedus et al., arXiv:2101.03961, equations 4 to 6, where k is 1
    olmo         E * sum f_i P_i / k    1            OLMo-core, nn/moe/loss.py, MoELoadBalancingLoss of a local batch;
                                                     megablocks, batched_load_balancing_loss, a mean over layers
    megatron     E * sum f_i P_i / k    1            Megatron-LM, moe_utils.py, switch_load_balancing_loss_func
    hf           E * sum f_i P_i        k            transformers, load_balancing_loss_func of Mixtral, Qwen2-MoE and
                                                     OLMoE: f and P over the tokens of all layers together

The first three are one formula. What differs between those trainers is how layers are put together (Switch, OLMo-core
and Megatron add them, megablocks takes their mean), and that is the caller's `.sum()` or `.mean()`: a weight that was
tuned for one is L times off for the other.

Shapes: L layers, T tokens, E experts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, get_args

import torch
import torch.distributed as dist

from trimtab.errors import UsageError
from trimtab.torch.ranks import Ranks
from trimtab.torch.router.expert_load import layer_counts, refuse_unlike_experts
from trimtab.torch.router.inputs import Logits, in_one, is_list, layers_of, top_k_of_layers
from trimtab.torch.router.window_load import Load, WindowLoad, whole_batch

Convention = Literal["switch", "olmo", "megatron", "hf"]
"""Whose load-balance loss."""

_CONVENTIONS: Final = get_args(Convention)


def router_z_loss(logits: Logits, *, mask: torch.Tensor | None = None) -> torch.Tensor:
    """Router z-loss of a layer: the mean over real tokens of logsumexp(logits)^2, without a factor.

    From ST-MoE (Zoph et al., arXiv:2202.08906), equation 5. It penalises large logits and tells nothing of balance:
    zero logits over 48 experts give (ln 48)^2 = 14.99.

    Args:
        logits: (T, E) or (..., E) floating point, before softmax; or a list of layers, which may differ in E.
        mask: (T,), or the shape of the logits without E; bool or integer, 1 where a token is real. None: all are.

    Returns:
        0-d, or (L,) for a list, one a layer; float32, float64 for float64; 0 where no token is real.

    Raises:
        UsageError: A shape or dtype makes no sense.

    Example:
        >>> round(router_z_loss(torch.tensor([[1.0], [3.0]])).item(), 4)  # of one expert logsumexp is the logit
        5.0
    """
    values = [layer.mean(layer.logits.logsumexp(-1).square()) for layer in layers_of(logits, mask=mask)]
    return in_one(values) if is_list(logits) else values[0]


def load_balancing_loss(
    logits: Logits,
    *,
    top_k: int,
    convention: Convention = "switch",
    mask: torch.Tensor | None = None,
    global_batch: bool = False,
    process_group: dist.ProcessGroup | None = None,
    window: WindowLoad | None = None,
) -> torch.Tensor:
    """Load-balance loss: E * sum_i f_i P_i, 1 at balance, or k with the convention "hf".

    f has no gradient, P has. Among equal logits `torch.topk` chooses the experts.

    Args:
        logits: (T, E) or (..., E) floating point, before softmax; or a list of layers, which may differ in E but with
            "hf".
        top_k: k, experts that a token is sent to.
        convention: Whose definition: "switch", "olmo" and "megatron" are divided by k and are of each layer; "hf" is
            not divided, and pools the tokens of all layers, which hides a collapse: two layers that send every token
            to one of two experts, but to different ones, pool to 1.0, and are 2.0 each.
        mask: (T,), or the shape of the logits without E; bool or integer, 1 where a token is real. None: all are.
        global_batch: Whether the batch is that of all ranks: f and P are summed over them before the product. One
            collective; every rank calls it equally often. The value is then the whole batch's, the same bits on every
            rank, and the gradient is such that the mean of the ranks' gradients, as DDP and FSDP2 make it, is that of
            one big batch, however the tokens are spread. Without torch.distributed there is one rank.
        process_group: The ranks that see different rows; None: all of them.
        window: Counts of the micro-batches of an accumulation window: f is then the window's, see `WindowLoad`.

    Returns:
        (L,) for a list, one a layer; 0-d for one tensor, and always with "hf". float32, float64 for float64; 0 where no
        token is real. Divide by the accumulation, as the loss beside it, and multiply by the weight once.

    Raises:
        UsageError: A shape, dtype, `top_k` or convention makes no sense; layers with "hf" differ in E; a group or a
            window was handed over without `global_batch`.

    Example:
        >>> logits = torch.log(torch.tensor([[0.7, 0.3], [0.3, 0.7]]))
        >>> load_balancing_loss(logits, top_k=1).item()
        1.0
    """
    layers = layers_of(logits, mask=mask)
    top_k = top_k_of_layers(top_k, layers=layers)
    scale = balanced_value(convention, top_k=top_k) / top_k
    if not global_batch and (process_group is not None or window is not None):
        name = "process_group" if process_group is not None else "window"
        raise UsageError(f"{name} goes with global_batch=True, which sums the load over it; pass both or neither.")
    if window is not None and not isinstance(window, WindowLoad):
        raise UsageError(f"window is a {type(window).__name__}: expected a trimtab.moe.WindowLoad, one a window.")
    if convention == "hf":
        refuse_unlike_experts(layers, remedy='convention="hf" pools layers; the others give each layer its own value.')
    loads = []
    for layer in layers:
        prob_sums = layer.kept(layer.logits.softmax(-1)).sum(0)
        loads.append(Load(layer_counts(layer, top_k=top_k), layer.num_tokens, prob_sums, layer.num_tokens))
    if global_batch:
        loads = whole_batch(loads, top_k=top_k, ranks=Ranks.of(process_group), window=window)
    if convention == "hf":
        loads = [_pooled(loads)]
    # A product of elements, for under autocast one of matrices would be made in half precision.
    values = [(f * P).sum() * (f.shape[0] * scale) for f, P in (load.shares() for load in loads)]
    return in_one(values) if is_list(logits) and convention != "hf" else values[0]


def balanced_value(convention: Convention, *, top_k: int) -> float:
    """What a load-balance loss is where every expert has the same load: 1, or `top_k` with "hf".

    Raises:
        UsageError: There is no such convention.

    Example:
        >>> balanced_value("switch", top_k=2), balanced_value("hf", top_k=2)
        (1.0, 2.0)
    """
    if convention not in _CONVENTIONS:
        known = ", ".join(map(repr, _CONVENTIONS))
        raise UsageError(f"convention must be one of {known}, found {convention!r}.")
    return float(top_k) if convention == "hf" else 1.0


def _pooled(loads: Sequence[Load]) -> Load:
    """The tokens of all layers as if they were one layer's."""
    return Load(*(in_one(values).sum(0) for values in zip(*loads, strict=True)))
