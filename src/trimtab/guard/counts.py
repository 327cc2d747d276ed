"""`WindowCounts`: what became of the micro-batches of one accumulation window.

Enters: one verdict a micro-batch, with its tokens. Leaves: sums. They are numbers where the host decides, and 0-d
arrays of any framework where a device does; nothing here looks at them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class WindowCounts:
    """What is known about the accumulation window that is being filled.

    Tokens are known only where there is a guard; without one they stay 0.

    Attributes:
        num_micros: Micro-batches on this rank, and so on every rank; always a number.
        num_tokens: Supervised tokens, of all ranks.
        num_skipped_micros: Micro-batches that the guard left out.
        num_skipped_tokens: Their supervised tokens, of all ranks.
        num_own_skipped_tokens: The same of this rank.
        has_unjudged: Whether it holds a micro-batch that nobody judged, whose tokens are in none of these sums.
    """

    num_micros: int = 0
    num_tokens: Any = 0
    num_skipped_micros: Any = 0
    num_skipped_tokens: Any = 0
    num_own_skipped_tokens: Any = 0
    has_unjudged: bool = False

    def next_micro(self) -> int:
        """Counts the micro-batch that comes now; gives its 0-based place."""
        self.num_micros += 1
        return self.num_micros - 1

    def count_unjudged(self) -> None:
        """Tells that the micro-batch at hand went by unseen: it is kept, and nobody knows its tokens."""
        self.has_unjudged = True

    def count(self, *, skipped: Any, num_tokens: Any, num_own_tokens: Any) -> None:
        """Counts what became of a micro-batch; `next_micro` counts the micro-batch itself.

        Args:
            skipped: 1 if it was left out, else 0; integer.
            num_tokens: Its supervised tokens, of all ranks.
            num_own_tokens: Those of this rank.
        """
        self.num_tokens = self.num_tokens + num_tokens
        self.num_skipped_micros = self.num_skipped_micros + skipped
        self.num_skipped_tokens = self.num_skipped_tokens + skipped * num_tokens
        self.num_own_skipped_tokens = self.num_own_skipped_tokens + skipped * num_own_tokens

    @property
    def num_kept_micros(self) -> Any:
        """Micro-batches that take part in the update."""
        return self.num_micros - self.num_skipped_micros

    @property
    def num_kept_tokens(self) -> Any:
        """Supervised tokens that take part in the update, of all ranks."""
        return self.num_tokens - self.num_skipped_tokens

    @property
    def may_step(self) -> Any:
        """Whether anything in it takes part in the update, so that there is something to step by."""
        return (self.num_kept_tokens > 0) | self.has_unjudged
