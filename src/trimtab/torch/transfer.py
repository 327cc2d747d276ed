"""Tensors on their way to the host: the training thread starts the copy, the writer thread waits for it.

A tensor on the CPU is handed over as it is. One on a device that has a side stream (`has_side_stream`: CUDA) is copied
to pinned memory by that stream, which waits for the one that computed it; nothing here makes the training thread wait.
Other devices have none here, and the copy waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_side_streams: dict[torch.device, torch.cuda.Stream] = {}


class InFlight:
    """A copy to pinned host memory that `numpy.asarray` waits for.

    Attributes:
        shape: Shape of the tensor.
        nbytes: Its size, by which the recorder bounds what waits.
    """

    __slots__ = ("_event", "_host", "nbytes", "shape")

    def __init__(self, tensor: torch.Tensor) -> None:
        """Starts copying a CUDA tensor; returns at once."""
        device = tensor.device
        stream = _side_streams.get(device)
        if stream is None:
            stream = _side_streams[device] = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self.shape = tensor.shape
        self.nbytes = tensor.nbytes
        self._host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            self._host.copy_(tensor, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record(stream)
        # Otherwise the allocator could hand the memory to the next kernel while the copy still reads it.
        tensor.record_stream(stream)

    def is_ready(self) -> bool:
        """Whether the values have arrived: asking for them does not wait any more."""
        return bool(self._event.query())  # type: ignore[no-untyped-call]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 - numpy's protocol
        """Waits for the copy and gives the values."""
        self._event.synchronize()
        return np.asarray(self._host.numpy(), dtype=dtype)

    def __float__(self) -> float:
        """Waits for the copy; numpy makes numbers of a list of 0-d values by this, and by the three below."""
        return float(self.__array__().item())

    def __int__(self) -> int:
        """Waits for the copy."""
        return int(self.__array__().item())

    def __index__(self) -> int:
        """Waits for the copy."""
        return int(self.__array__().item())

    def __bool__(self) -> bool:
        """Waits for the copy."""
        return bool(self.__array__().item())


class HostNumber:
    """One number of a copy that may still be in flight; asking for it waits.

    What writes a log makes numbers of it as it does of a 0-d tensor, in a thread that may wait.
    """

    __slots__ = ("_copy", "_place")

    def __init__(self, copy: torch.Tensor | InFlight, place: int) -> None:
        """The entry at `place` of a copy of (k,) values."""
        self._copy = copy
        self._place = place

    def is_ready(self) -> bool:
        """Whether asking for it does not wait."""
        return not isinstance(self._copy, InFlight) or self._copy.is_ready()

    def __float__(self) -> float:
        """Waits for the copy, as do the three below."""
        return float(np.asarray(self._copy)[self._place])

    def __int__(self) -> int:
        """A count or a code that came as a float; NaN is none and raises."""
        return int(float(self))

    def __index__(self) -> int:
        """A count or a code that came as a float."""
        return int(self)

    def __bool__(self) -> bool:
        """Whether it is not 0."""
        return float(self) != 0


def has_side_stream(device: torch.device) -> bool:
    """Whether what is on this device comes to the host without anybody waiting for it."""
    return device.type == "cuda"


def to_host(tensor: torch.Tensor) -> torch.Tensor | InFlight:
    """Starts bringing a tensor to the host; waits only for a device without a side stream.

    Args:
        tensor: Any shape; a dtype that numpy knows.

    Returns:
        Something that `numpy.asarray` turns into an array.
    """
    tensor = tensor.detach()
    return InFlight(tensor) if has_side_stream(tensor.device) else tensor.cpu()


def to_host_together(values: Mapping[str, Any]) -> dict[str, Any]:
    """Starts bringing the 0-d tensors among some values to the host, by one copy a device; waits as `to_host`.

    Args:
        values: Numbers, and 0-d tensors not to be changed afterwards; anything else is handed through.

    Returns:
        The same names; of each tensor a `HostNumber`, by way of float64.
    """
    together: dict[torch.device, list[str]] = {}
    brought = dict(values)
    for name, value in values.items():
        if not isinstance(value, torch.Tensor):
            continue
        if has_side_stream(value.device):
            together.setdefault(value.device, []).append(name)
        else:
            brought[name] = HostNumber(value.detach().cpu().to(torch.float64).reshape(1), 0)
    for names in together.values():
        copy = to_host(torch.stack([values[name].detach().to(torch.float64) for name in names]))
        brought.update((name, HostNumber(copy, place)) for place, name in enumerate(names))
    return brought
