"""Which parameters a loss was computed from, by what autograd remembers of it.

Enters: a loss with its graph. Leaves: the parameters at its ends, those of the model and those that only a criterion or
an optimizer knows. A part that is recomputed in a backward of its own (reentrant checkpointing) shows none.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def parameters_behind(loss: torch.Tensor) -> list[nn.Parameter]:
    """The parameters that a backward from here would reach; walks the whole graph, about 1 us a node."""
    found: list[nn.Parameter] = []
    ahead: list[Any] = [loss.grad_fn]
    seen: set[Any] = {None}
    while ahead:
        node = ahead.pop()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # what autograd's AccumulateGrad, and nothing else, calls its leaf
        if isinstance(leaf, nn.Parameter):
            found.append(leaf)
        ahead += [before for before, _ in node.next_functions]
    return found
