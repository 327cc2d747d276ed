"""What an audit leaves as it was: a model's buffers and modes, the random numbers, and what its routers say meanwhile.

Enters: a model. Leaves: the same, bit for bit, whatever the loss that was run on it has changed of buffers, modes and
generators. Invariant: no parameter and no `.grad` is written here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from trimtab.torch.rng import CheckedRng, checked_rng, kept_rng, rng_state
from trimtab.torch.router.families import Router


@contextmanager
def unchanged(model: nn.Module) -> Iterator[CheckedRng]:
    """Gives buffers, modes and generators back as they were; gradients of DDP are not reduced meanwhile.

    Args:
        model: The model, or its DDP wrapper.

    Yields:
        The state of the generators now, for a loss that is to draw the same numbers again.
    """
    buffers = [
        (module, name, buffer, buffer.detach().clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    modes = [(module, module.training) for module in model.modules()]
    # A forward of the wrapper would else prepare the reduction of a backward that never comes.
    no_sync = model.no_sync() if isinstance(model, nn.parallel.DistributedDataParallel) else nullcontext()
    with kept_rng(), no_sync, torch.enable_grad():
        try:
            yield checked_rng(rng_state(), where="this process")
        finally:
            with torch.no_grad():
                for module, name, buffer, before in buffers:
                    buffer.copy_(before)
                    module._buffers[name] = buffer  # a forward may have put another one there
            for module, mode in modes:
                module.training = mode


class Listening:
    """Hears the logits of routers, with their graph, while a forward runs.

    Attributes:
        heard: By router, its logits (..., E) of the first call: a second forward in the same loss, and activations that
            are computed again, come later.
    """

    def __init__(self) -> None:
        self.heard: dict[str, torch.Tensor] = {}

    @contextmanager
    def to(self, routers: Sequence[Router]) -> Iterator[None]:
        """Listens until the block ends."""
        handles = [router.module.register_forward_hook(self._hook(router)) for router in routers]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _hook(self, router: Router) -> Callable[[nn.Module, Any, Any], None]:
        def hear(module: nn.Module, inputs: Any, output: Any) -> None:  # noqa: ARG001 - torch's signature
            if isinstance(output, tuple | list):
                output = output[router.logits_at] if len(output) >= router.fewest_outputs else None
            if isinstance(output, torch.Tensor):
                self.heard.setdefault(router.name, output)

        return hear
