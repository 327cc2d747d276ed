"""How far one step of an optimizer moves each weight, against the weight's own size.

Enters: a model and its optimizer, and that the next step is to be measured. Leaves: |change| / |weight| by name, on the
device. Invariants: nothing is changed and nobody waits; what is kept meanwhile is a sample of at most a million
entries, whatever the size of the model; a step that is not measured costs two calls of an empty function.

Of a weight that is sharded this rank's part is measured: a ratio of norms, which a part of like rows has alike.
"""

from __future__ import annotations

import math
import weakref
from typing import Any, Final

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from trimtab.errors import UsageError
from trimtab.torch.module_names import bare_name, module_inside
from trimtab.torch.sharding import is_shard

MAX_ENTRIES: Final = 1 << 20
"""Entries of all weights together that are looked at: 4 MB, of a matrix at least 16,384."""

MAX_WEIGHTS: Final = 64
"""Weights that are looked at, evenly spread through the model: two kernels each in a measured step."""


class UpdateRatio:
    """Measures the step that follows `arm`, by hooks of the optimizer.

    Args:
        model: The model, or what it is wrapped in.
        optimizer: Its optimizer, or what that is wrapped in.

    Raises:
        UsageError: The optimizer has no step hooks.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = weakref.ref(module_inside(model))
        self._is_armed = False
        self._weights: list[tuple[str, torch.Tensor]] = []
        self._before: list[torch.Tensor] = []
        self._measured: tuple[tuple[str, ...], list[torch.Tensor]] | None = None
        self._handles = self._hooked(optimizer)

    def arm(self) -> None:
        """Has the next step measured."""
        self._is_armed = True
        self._before, self._measured = [], None

    def take(self) -> tuple[tuple[str, ...], list[torch.Tensor]]:
        """Names and ratios of the step that was measured since `arm`; none where there was no step.

        Returns:
            The names, and the ratios in their order: one (k,) float32 tensor a device. A ratio is 0 where the step
            moved nothing, as one that was dropped, and NaN where the weight is 0.
        """
        measured, self._measured, self._is_armed = self._measured, None, False
        self._before = []
        return measured if measured is not None else ((), [])

    def remove(self) -> None:
        """Takes the hooks off; a second call does nothing."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._is_armed, self._weights, self._before, self._measured = False, [], [], None

    def _hooked(self, optimizer: Any) -> list[RemovableHandle]:
        # The hooks hold this object weakly: an optimizer outlives a watch that was thrown away.
        watch = weakref.ref(self)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def before_step(stepping: torch.optim.Optimizer, *_: Any) -> None:
            measuring = watch()
            if measuring is not None and measuring._is_armed:
                measuring._copy(stepping)

        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def after_step(*_: Any) -> None:
            measuring = watch()
            if measuring is not None and measuring._before:
                measuring._compare()

        found = optimizer
        while found is not None:
            try:
                # accelerate's wrapper is an Optimizer that never ran its constructor: it has the methods and no hooks.
                return [found.register_step_pre_hook(before_step), found.register_step_post_hook(after_step)]
            except AttributeError:
                found = getattr(found, "optimizer", None)
        raise UsageError(
            f"optimizer has no step hooks, found {type(optimizer).__name__}: how far its steps move the weights cannot "
            "be measured. Pass the torch.optim.Optimizer whose step() changes the parameters."
        )

    @torch.no_grad()
    def _copy(self, optimizer: torch.optim.Optimizer) -> None:
        self._weights = self._chosen(optimizer)
        per_weight = MAX_ENTRIES // max(1, len(self._weights))
        self._weights = [(name, _sample(weight, most=per_weight)) for name, weight in self._weights]
        self._before = [torch.cat(parts) for parts in _by_device(self._weights)]
        self._is_armed = False

    @torch.no_grad()
    def _compare(self) -> None:
        ratios = []
        for before, samples in zip(self._before, _by_device(self._weights), strict=True):
            # In float32 whatever the weights are: a square of 2e-5, a small step, is 0 in float16.
            old = before.to(torch.float32)
            moved = torch.cat(samples).to(torch.float32).sub_(old)
            sizes = [len(sample) for sample in samples]
            changes, norms = (torch.stack(torch._foreach_norm(torch.split(whole, sizes))) for whole in (moved, old))
            ratios.append(changes / norms)
        ordered = [name for names in _names_by_device(self._weights) for name in names]
        self._measured = (tuple(ordered), ratios)
        self._weights, self._before = [], []

    def _chosen(self, optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
        """Matrices that the optimizer steps, this rank's part of each; evenly spread where they are many."""
        model = self._model()
        if model is None:
            return []
        stepped = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        found: list[tuple[str, torch.Tensor]] = []
        for name, parameter in model.named_parameters():
            # Biases and norms have few entries, and a size near 0 to begin with.
            if id(parameter) not in stepped or not parameter.requires_grad or parameter.dim() < 2:
                continue
            local = parameter.to_local() if is_shard(parameter) else parameter
            local = local.detach()
            is_plain = local.is_floating_point() and local.layout is torch.strided and local.is_contiguous()
            if is_plain and local.element_size() > 1 and not local.is_meta and local.numel():
                found.append((bare_name(name), local))
        if len(found) <= MAX_WEIGHTS:
            return found
        return [found[place * (len(found) - 1) // (MAX_WEIGHTS - 1)] for place in range(MAX_WEIGHTS)]


def _sample(weight: torch.Tensor, *, most: int) -> torch.Tensor:
    """1-d view of at most `most` entries, spread over rows and columns."""
    stride = -(-weight.numel() // most)
    # A step that divides the rows would look at the same few columns of each.
    while stride > 1 and math.gcd(stride, weight.shape[-1]) > 1:
        stride += 1
    return weight.view(-1)[::stride]


def _by_device(weights: list[tuple[str, torch.Tensor]]) -> list[list[torch.Tensor]]:
    """The samples that can be laid behind each other: of one device and one dtype."""
    together: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for _, sample in weights:
        together.setdefault((sample.device, sample.dtype), []).append(sample)
    return list(together.values())


def _names_by_device(weights: list[tuple[str, torch.Tensor]]) -> list[list[str]]:
    """Their names, in the same order."""
    together: dict[tuple[torch.device, torch.dtype], list[str]] = {}
    for name, sample in weights:
        together.setdefault((sample.device, sample.dtype), []).append(name)
    return list(together.values())
