"""Figures that a device has decided by, heard of by the host when they have arrived, and not earlier.

Enters: copies on their way to the host, each with what is to be done about it. Leaves: that, done in the order in which
the copies were added. Invariant: only `drain` waits for a device.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np
import torch

from trimtab.torch.transfer import HostNumber, InFlight

_Copy = torch.Tensor | InFlight | HostNumber


class LateFigures:
    """What is on its way from a device, oldest first.

    A training thread asks at moments of its own; nothing here has a thread. What waits is bounded by how far the host
    can run ahead of its device.
    """

    def __init__(self) -> None:
        self._waiting: deque[tuple[_Copy, Callable[[list[float]], None]]] = deque()

    def add(self, copy: _Copy, on_arrival: Callable[[list[float]], None]) -> None:
        """Begins to wait for a copy; nothing is done about it yet, also where it has arrived.

        Args:
            copy: What `to_host` gave, (k,) numbers; or one number of such a copy.
            on_arrival: What to do with the numbers. What it raises comes out of the `poll` or `drain` that called it;
                its copy is done with then, and the next call goes on behind it.
        """
        self._waiting.append((copy, on_arrival))

    def poll(self) -> None:
        """Does what is to be done about all that has arrived, in order; never waits."""
        while self._waiting and _is_ready(self._waiting[0][0]):
            self._hear()

    def drain(self) -> None:
        """Does what is to be done about everything that was added; waits for the device."""
        while self._waiting:
            self._hear()

    def _hear(self) -> None:
        copy, on_arrival = self._waiting.popleft()
        on_arrival(np.asarray(copy, np.float64).reshape(-1).tolist())


def _is_ready(copy: _Copy) -> bool:
    return isinstance(copy, torch.Tensor) or copy.is_ready()
