"""`VitalsProbe`: what a machine, a model and one step of its optimizer are like, now and then.

Enters: a model and its optimizer. Leaves: `Vitals`. Invariants: it measures and decides nothing; training is the same
to the bit with it; nothing in a step waits for a device, and only what was armed is measured.

A model offers its largest attention logit by an attribute `max_attention_logit` of any of its modules: a number, or a
0-d tensor that may lie on the device. The largest of all is taken.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import nn

from trimtab import memory
from trimtab.torch.module_names import module_inside
from trimtab.torch.transfer import InFlight, to_host
from trimtab.torch.update_ratio import UpdateRatio
from trimtab.watched import Vitals

ATTENTION_LOGIT: Final = "max_attention_logit"
"""The attribute by which a module offers its largest attention logit."""


class VitalsReading:
    """A look whose numbers may still be on their way from a device."""

    def __init__(
        self,
        measured: Vitals,
        *,
        names: Sequence[str],
        ratios: Sequence[torch.Tensor | InFlight],
        logits: Sequence[torch.Tensor | InFlight],
    ) -> None:
        self._measured = measured
        self._names = names
        self._ratios = ratios
        self._logits = logits

    def is_ready(self) -> bool:
        """Whether `vitals` does not wait."""
        return all(not isinstance(copy, InFlight) or copy.is_ready() for copy in (*self._ratios, *self._logits))

    def vitals(self) -> Vitals:
        """The look, the host's memory as it is now; waits for what has not arrived.

        A ratio of 0 is left out: the step moved nothing, for it was dropped or its learning rate was 0. So is one that
        is not finite, of a weight that is 0 or not a number.
        """
        ratios = [float(ratio) for copy in self._ratios for ratio in np.asarray(copy).reshape(-1)]
        logits = [float(logit) for copy in self._logits for logit in np.asarray(copy).reshape(-1)]
        found = {name: ratio for name, ratio in zip(self._names, ratios, strict=True) if 0 < ratio < math.inf}
        finite = [logit for logit in logits if math.isfinite(logit)]
        measured = self._measured
        return Vitals(
            step=measured.step,
            host_available_bytes=memory.available_bytes(),  # by files of the system, so not in the thread that trains
            device_peak_bytes=measured.device_peak_bytes,
            device_total_bytes=measured.device_total_bytes,
            update_ratio=found,
            attention_logit=max(finite, default=None),
        )


class VitalsProbe:
    """Looks at memory, at the step that was armed, and at the attention logit of a model that offers it.

    Args:
        model: The model, or what it is wrapped in.
        optimizer: Its optimizer, or what that is wrapped in.

    Raises:
        UsageError: The optimizer has no step hooks.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model = weakref.ref(module_inside(model))
        self._ratio = UpdateRatio(model, optimizer)

    def arm(self) -> None:
        """Has the optimizer's next step measured: a copy of at most a million entries is kept until it has ended."""
        self._ratio.arm()

    def collect(self, step: int) -> VitalsReading:
        """Begins to bring what was measured to the host; waits only for a device that has no side stream.

        Args:
            step: Optimizer step (1-based) that has just ended.

        Returns:
            The look, without ratios where nothing was stepped since `arm`.
        """
        model = self._model()
        names, ratios = self._ratio.take()
        peak, total = _device_memory(model)
        measured = Vitals(
            step=step,
            device_peak_bytes=peak,
            device_total_bytes=total,
        )
        return VitalsReading(
            measured,
            names=names,
            ratios=[to_host(of_device) for of_device in ratios],
            logits=[to_host(of_device) for of_device in _attention_logits(model)],
        )

    def remove(self) -> None:
        """Takes the hooks off; a second call does nothing."""
        self._ratio.remove()


def _device_memory(model: nn.Module | None) -> tuple[int | None, int | None]:
    """Peak of what was allocated, and all there is; None where the model lies on no CUDA device."""
    first = next(model.parameters(), None) if model is not None else None
    if first is None or first.device.type != "cuda":
        return None, None
    # The peak since the process began, or since its owner has reset it: resetting it here would be seen by others.
    peak: int = torch.cuda.max_memory_allocated(first.device)
    total: int = torch.cuda.get_device_properties(first.device).total_memory
    return peak, total


def _attention_logits(model: nn.Module | None) -> list[torch.Tensor]:
    """What modules offer, as one (k,) float32 tensor a device."""
    if model is None:
        return []
    together: dict[torch.device, list[torch.Tensor]] = {}
    for module in model.modules():
        offered = _single(getattr(module, ATTENTION_LOGIT, None))
        if offered is not None:
            together.setdefault(offered.device, []).append(offered)
    return [torch.stack(logits) for logits in together.values()]


def _single(offered: Any) -> torch.Tensor | None:
    """One number as a 0-d float32 tensor; anything else is not what is documented, and None."""
    if isinstance(offered, torch.Tensor):
        is_one = offered.numel() == 1 and not offered.is_complex() and not offered.is_meta
        return offered.detach().reshape(()).to(torch.float32) if is_one else None
    if isinstance(offered, int | float) and not isinstance(offered, bool):
        return torch.tensor(float(offered), dtype=torch.float32)
    return None
