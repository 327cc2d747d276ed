"""`ParametersBeside`: what a loss or an optimizer has and the guarded model has not, such as a criterion's parameters.

Enters: a loss with its graph, and optimizers as they step. Leaves: the parameters beside the model's that the gradient
of a guarded loss may reach. Neither way alone finds all: before its first step nobody knows of an optimizer, and a
loss shows what is near its end only, and nothing of what is recomputed in a backward of its own (reentrant
checkpointing).
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch
from torch import nn

from trimtab.torch.sharding import is_shard

NUM_NODES: Final = 2_000
"""Nodes of a graph that are looked at: a criterion stands near the loss. What Python has seen of a graph torch frees by
recursion, which ends the process where that are some ten thousand in a row."""


class ParametersBeside:
    """Those of one model."""

    def __init__(self, model: nn.Module) -> None:
        """Knows none yet."""
        self._model = model
        self._behind_loss: list[nn.Parameter] = []
        self._optimizers: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()
        self._mark: tuple[int, ...] = ()
        self._now: list[nn.Parameter] = []

    def look_behind(self, loss: torch.Tensor, *, is_on: Callable[[nn.Parameter], bool]) -> None:
        """Takes in what the loss was computed from and nothing is known of; a few ms of the host.

        Args:
            loss: With its graph.
            is_on: Whether a parameter is known.
        """
        self._behind_loss += (parameter for parameter in _leaves_near(loss) if not is_on(parameter))

    def meet(self, optimizer: torch.optim.Optimizer) -> None:
        """Takes in what an optimizer steps, now and later, for as long as it is there."""
        self._optimizers.add(optimizer)

    def now(self) -> list[nn.Parameter]:
        """All that is known. A shard of another sharded module is not among them: no hook on it would fire."""
        optimizers = list(self._optimizers)
        # Asked once a window, and a walk over a model takes longer than one over lists.
        mark = (len(self._behind_loss), *(sum(map(id, parameters_of(optimizer))) for optimizer in optimizers))
        if mark != self._mark:
            known = self._of_model()
            found = {id(parameter): parameter for parameter in self._behind_loss}
            for optimizer in optimizers:
                found |= {id(p): p for p in parameters_of(optimizer) if id(p) not in known and not is_shard(p)}
            self._mark, self._now = mark, list(found.values())
        return self._now

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether an optimizer steps something that was seen behind a loss."""
        behind = set(map(id, self._behind_loss))
        return any(id(parameter) in behind for parameter in parameters_of(optimizer))

    def num_missed(self, optimizer: torch.optim.Optimizer, *, is_on: Callable[[nn.Parameter], bool]) -> int:
        """How many of an optimizer's parameters have a gradient that came past every hook.

        A shard shows nothing of its unsharded parameter. As many are taken to be known as were seen behind a loss and
        are no optimizer's own.
        """
        known = self._of_model()
        of_optimizer = parameters_of(optimizer)
        beside = [p for p in of_optimizer if id(p) not in known and p.grad is not None and not is_on(p)]
        num_shards = sum(map(is_shard, beside))
        num_unsharded = len(set(map(id, self._behind_loss)).difference(map(id, of_optimizer)))
        return len(beside) - min(num_shards, num_unsharded)

    def _of_model(self) -> set[int]:
        return set(map(id, self._model.parameters()))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """What an optimizer steps, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _leaves_near(loss: torch.Tensor) -> Iterable[nn.Parameter]:
    """The parameters among the graph's nodes that are nearest to the loss."""
    ahead: deque[Any] = deque([loss.grad_fn])
    seen: set[Any] = {None}
    while ahead and len(seen) < NUM_NODES:
        node = ahead.popleft()
        if node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)  # what autograd's AccumulateGrad, and nothing else, calls its leaf
        if isinstance(leaf, nn.Parameter):
            yield leaf
        ahead.extend(before for before, _ in node.next_functions)
