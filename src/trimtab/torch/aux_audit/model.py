"""What an audit leaves as it was: a model's buffers and modes, the random numbers, and what its routers say meanwhile.

Enters: a model. Leaves: the same, bit for bit, whatever the loss that was run on it has changed of gradients, buffers,
modes and generators. Invariant: no parameter is written here; a `.grad` is put aside and put back, the same tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import nn

from trimtab.torch.rng import CheckedRng, checked_rng, kept_rng, rng_state
from trimtab.torch.router.families import Router
from trimtab.torch.router.tap import unheard


@contextmanager
def unchanged(model: nn.Module) -> Iterator[CheckedRng]:
    """Gives gradients, buffers, modes and generators back as they were; of DDP they are not reduced meanwhile.

    There are no gradients meanwhile, so that a loss that makes some is seen, and no `RouterWatch` counts what is
    called.

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
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    # A forward of the wrapper would else prepare the reduction of a backward that never comes.
    no_sync = model.no_sync() if isinstance(model, nn.parallel.DistributedDataParallel) else nullcontext()
    with kept_rng(), no_sync, unheard(), torch.enable_grad():
        try:
            for parameter, _ in gradients:
                parameter.grad = None
            yield checked_rng(rng_state(), where="this process")
        finally:
            for parameter, gradient in gradients:
                parameter.grad = gradient
            with torch.no_grad():
                for module, name, buffer, before in buffers:
                    buffer.copy_(before)
                    module._buffers[name] = buffer  # a forward may have put another one there
            for module, mode in modes:
                module.training = mode


class Listening:
    """Hears the logits of routers, with their graph, while a forward runs.

    Attributes:
        heard: By router, its logits (..., E), call by call. Of calls without gradients, as an evaluation in the midst
            of the loss makes them, only where there was no other, by which one knows that something is wrong.
        unread: By router, why what it gave cannot be read.
    """

    def __init__(self) -> None:
        self.heard: dict[str, list[torch.Tensor]] = {}
        self.unread: dict[str, str] = {}

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
            read = router.read(output)
            if isinstance(read, str):
                self.unread.setdefault(router.name, read)
                return
            calls = self.heard.setdefault(router.name, [])
            if not calls or not calls[0].requires_grad:
                calls[:] = [read.logits]
            elif read.logits.requires_grad:
                calls.append(read.logits)

        return hear
