"""What torch tells of the backward at hand, or of a transform, which it has no public name for.

Enters: nothing but a call from within a backward, as of a tensor's hook. Leaves: when that backward ends, and which it
is. DDP and FSDP2 end their own work on a backward by the same callback, and torch's multi-gradient hooks tell backwards
apart by the same number (seen in torch 2.6 to 2.13).
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def when_backward_ends(call: Callable[[], None]) -> None:
    """Has something called at the end of the backward at hand; it is not, where that backward raises.

    Of a backward within another one (reentrant checkpointing) it is the inner one.
    """
    torch.autograd.Variable._execution_engine.queue_callback(call)


def backward_at_hand() -> int:
    """The number of the backward at hand, of which no two have the same; -1 outside of one."""
    return torch._C._current_graph_task_id()


def is_transformed() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp, ...) is under way: its tensors are dead when it ends."""
    return torch._C._functorch.peek_interpreter_stack() is not None
