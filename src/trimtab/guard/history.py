"""`History`: what a guard compares the next loss with, handed between the host and what decides for it on a device.

Enters: the losses that one of them remembers. Leaves: the same losses for the other, which goes on from there. The
saved format of a guard is not this, and is nobody's business but the guard's.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple


class History(NamedTuple):
    """Losses, oldest first: finite float32 values as Python floats, as many as the rule's window holds at most.

    Attributes:
        window: The kept losses that the rule looks back at.
        streak: The finite losses that were skipped in a row since, the newest of them.
        num_finite: How many were skipped in a row; more than `streak` holds where the row is longer than the window.
        last_step: The optimizer step that was named last. None: none was, as on a device, which is told of none.
    """

    window: list[float]
    streak: list[float]
    num_finite: int
    last_step: int | None = None

    @property
    def told(self) -> str:
        """A few words that are the same where the histories are, for ranks to compare."""
        return f"{len(self.window)} losses ({sha256(repr(self).encode()).hexdigest()[:8]})"
