"""`RunningStatistics`: what a model learns of a batch during forward is unlearned when the batch is skipped.

Enters: a model, and once a micro-batch whether it counts. Leaves: the running mean, variance and count of batch norm
and its kin as if a skipped micro-batch had never been seen. Invariant: statistics that count are not touched.

A snapshot is taken before the first forward of a micro-batch and put back after a skip. A forward without gradients,
or before the end of a window, is none of a micro-batch that comes later; one with gradients that nobody judges, between
windows, is taken for a part of the next micro-batch. Checkpointing runs a module's forward, or the whole model's, again
during backward, where torch's batch norm takes the batch in a second time: that belongs to the micro-batch before, and
`settle` puts it right, before the next forward and at the end of the window. What else changes during forward, and what
`torch.compile` hides, is named once and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.hooks import RemovableHandle

from trimtab.notices import warn
from trimtab.torch.backward import backward_at_hand
from trimtab.torch.sharding import refuse_uninitialized


class RunningStatistics:
    """Keeps the running statistics of a model clean of skipped micro-batches; never waits for a device.

    Example:
        >>> model = nn.BatchNorm1d(2)
        >>> statistics = RunningStatistics(model)
        >>> _ = model(torch.full((4, 2), 7.0))
        >>> statistics.keep_or_restore(False)
        >>> model.running_mean.tolist(), model.num_batches_tracked.item()
        ([0.0, 0.0], 0)

    Attributes:
        names: The modules that keep such statistics.
    """

    def __init__(self, model: nn.Module) -> None:
        """Watches the forward of a model that has buffers.

        Args:
            model: The module that is called, or the `DistributedDataParallel` around it; modules that are put into it
                later are not seen.

        Raises:
            UsageError: If a lazy module in it has seen no batch yet.
        """
        refuse_uninitialized(model.buffers())
        # DDP writes the buffers of ranks > 0 anew before each forward: seen from within, that is no change.
        root: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
        modules = dict(root.named_modules())
        self.names = [name for name, module in modules.items() if _keeps_statistics(module)]
        self._modules = [modules[name] for name in self.names]
        self._others = [
            (f"{name}.{key}" if name else key, module, key)
            for name, module in modules.items()
            if not _keeps_statistics(module)
            for key, _ in module.named_buffers(recurse=False)
        ]
        self._now: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._is_taken = self._was_taken = self._had_no_gradients = False
        self._pending: bool | torch.Tensor = True
        self._own_versions = self._versions_of_own()
        self._versions: list[int] = []
        self._changed: dict[str, None] = {}
        self._said_changed = self._said_unseen = False
        self._root = root
        self._handles: list[RemovableHandle] = []
        self.hook()

    def hook(self) -> None:
        """Watches the forwards that come, again after `remove`; does nothing where it does so already."""
        if not self._handles and (self._modules or self._others):
            self._handles = [
                self._root.register_forward_pre_hook(_Hook(self._before_forward)),
                self._root.register_forward_hook(_Hook(self._after_forward)),
            ]

    def keep_or_restore(self, counts: bool | torch.Tensor) -> None:  # noqa: FBT001 - the verb's only object
        """Leaves the statistics as they are, or puts back those from before this micro-batch's first forward.

        Belongs between the last forward of a micro-batch and its backward.

        Args:
            counts: Whether the micro-batch counts; a bool of the host, or a 0-d bool tensor on any device, copied.
        """
        if self._changed and not self._said_changed:
            self._said_changed = True
            warn(
                "guard",
                f"Buffers that the forward changes: {_listed(list(self._changed))}. A micro-batch that is skipped does "
                "so too: only running statistics (batch norm and kin) are put back then, these are not.",
            )
        is_taken, self._is_taken = self._is_taken, False
        if is_taken:
            self._pending = counts.clone() if isinstance(counts, torch.Tensor) else counts
            self._restore()
        elif any(module.training for module in self._modules):
            self._say_unseen()

    def settle(self) -> None:
        """Puts back what backward has changed since a skip; belongs after the last backward of a window."""
        self._restore()
        self._pending = True
        self._is_taken = False
        before, self._own_versions = self._own_versions, self._versions_of_own()
        if not self._was_taken and before != self._own_versions:
            self._say_unseen()  # also where `keep_or_restore` is part of a compiled step, and cannot speak
        self._was_taken = False

    def remove(self) -> None:
        """Stops watching, and forgets the micro-batch at hand; `hook` goes on."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._is_taken = self._was_taken = False
        self._pending = True

    def _before_forward(self, _: nn.Module) -> None:
        if backward_at_hand() >= 0:  # checkpointing of the whole model runs it again: no new micro-batch
            return
        self._restore()
        self._pending = True
        self._versions = self._versions_of_others()
        # One without gradients may be somebody else's, or a micro-batch's whose whole model is checkpointed.
        has_gradients = torch.is_grad_enabled()
        is_taken = self._is_taken and not (self._had_no_gradients and has_gradients)
        if is_taken or not any(module.training for module in self._modules):
            return
        self._is_taken = self._was_taken = True
        self._had_no_gradients = not has_gradients
        self._now = [buffer for module in self._modules for buffer in module.buffers(recurse=False)]
        if list(map(_layout, self._now)) != list(map(_layout, self._before)):
            self._before = [torch.empty_like(buffer) for buffer in self._now]
        torch._foreach_copy_(self._before, self._now)

    def _after_forward(self, root: nn.Module) -> None:
        if backward_at_hand() >= 0:
            return
        versions = self._versions_of_others()
        if root.training and versions != self._versions:
            for (name, _, _), before, after in zip(self._others, self._versions, versions, strict=True):
                if before != after:
                    self._changed[name] = None

    def _restore(self) -> None:
        if self._pending is True:
            return
        # `.data`: autograd must not see it. It keeps these tensors for batch norm's backward, which does not look at
        # them in training, and would take the change for an error.
        now, before = [buffer.data for buffer in self._now], self._before
        if isinstance(self._pending, torch.Tensor):
            on = {device: self._pending.to(device) for device in {buffer.device for buffer in now}}
            before = [torch.where(on[new.device], new, old) for new, old in zip(now, before, strict=True)]
        torch._foreach_copy_(now, before)

    def _say_unseen(self) -> None:
        if self._said_unseen:
            return
        self._said_unseen = True
        warn(
            "guard",
            f"Running statistics that the guard cannot put back: {_listed(self.names)}. A micro-batch that is skipped "
            "stays in them: that is so inside torch.compile, where a part of the model is called by itself, and in the "
            "first forward after a run was closed. "
            "Compile the parts around these modules, or put these into eval mode.",
        )

    def _versions_of_own(self) -> list[int]:
        return [_version(buffer) for module in self._modules for buffer in module.buffers(recurse=False)]

    def _versions_of_others(self) -> list[int]:
        return [_version(getattr(module, key, None)) for _, module, key in self._others]


class _Hook:
    """A hook that a copy of the model, in memory or in a file, does not take with it; nothing under `torch.compile`."""

    def __init__(self, call: Callable[[nn.Module], None] | None) -> None:
        self._call = call

    def __call__(self, module: nn.Module, *_: Any) -> None:
        if self._call is not None and not torch.compiler.is_compiling():
            self._call(module)

    def __reduce__(self) -> tuple[type[_Hook], tuple[None]]:
        return _Hook, (None,)


def _keeps_statistics(module: nn.Module) -> bool:
    return bool(getattr(module, "track_running_stats", False)) and getattr(module, "running_mean", None) is not None


def _version(buffer: torch.Tensor | None) -> int:
    """How often it was changed in place; -1 for what is no longer there or keeps no count."""
    return -1 if buffer is None or buffer.is_inference() else buffer._version


def _layout(buffer: torch.Tensor) -> tuple[torch.Size, torch.dtype, torch.device]:
    return buffer.shape, buffer.dtype, buffer.device


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
