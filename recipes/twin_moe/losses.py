"""The loss and its terms: `ce + lbl_weight * lbl + z_weight * z + xpop_weight * xpop`.

In go a forward's output and its labels, out come the tokens' losses and the terms beside them. Each weight is applied
once, here. Invariant: lbl, z and xpop are means over the layers of what `trimtab.moe` defines, so that a weight means
the same at any depth.

    term   what it is, of a layer                                       at its best
    lbl    load balance, Switch: E * sum f_i P_i / k                    1, where every expert has the same load
    z      mean over tokens of logsumexp(router logits)^2               (ln E)^2 where a router chooses nothing
    xpop   cosine between the populations' flattened weights, its size  0, where they have nothing in common

Of the cosine the size is taken: with its sign, a weight of 0.01 drove it to -0.19 in 100 steps of `tiny` and to -0.32
in 400 (seed 0; -0.16 and, at 200, -0.23 with seed 1), towards populations that are each other's negatives and share all
they know; by its size it stayed below 0.007.

Shapes: B rows, T tokens of a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

from recipes.twin_moe.config import OptimConfig
from recipes.twin_moe.model import Output, TwinMoe
from trimtab import moe


class Terms(NamedTuple):
    """The loss of one micro-batch, in its parts; all float32, with a graph.

    Attributes:
        token_losses: (B, T), cross-entropy of each token; ce is their mean.
        lbl: 0-d, load balance, without its weight.
        z: 0-d, router z, without its weight.
        xpop: 0-d, size of the cosine between populations, without its weight.
        aux: 0-d, the three with their weights: what is added to ce.
    """

    token_losses: torch.Tensor
    lbl: torch.Tensor
    z: torch.Tensor
    xpop: torch.Tensor
    aux: torch.Tensor


def loss_terms(output: Output, labels: torch.Tensor, *, optim: OptimConfig, model: TwinMoe) -> Terms:
    """The parts of a micro-batch's loss.

    Args:
        output: What the model gave.
        labels: (B, T) int64, the byte behind each.
        optim: The terms' weights.
        model: The bare model, for the weights of its populations.
    """
    layers = list(output.router_logits)
    lbl = moe.load_balancing_loss(layers, top_k=model.config.top_k).mean()
    z = moe.router_z_loss(layers).mean()
    xpop = moe.population_cosine(model.expert_weights(), num_populations=model.config.num_populations).abs().mean()
    aux = optim.lbl_weight * lbl + optim.z_weight * z + optim.xpop_weight * xpop
    return Terms(token_losses(output, labels), lbl, z, xpop, aux)


def token_losses(output: Output, labels: torch.Tensor) -> torch.Tensor:
    """(B, T) float32 (float64 for float64): cross-entropy of each token; half precision is made wide before it."""
    logits = output.logits if output.logits.dtype == torch.float64 else output.logits.float()
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none").view_as(labels)
