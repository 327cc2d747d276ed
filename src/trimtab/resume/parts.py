"""What a run consists of, by name, and which of it a resume cannot do without.

Enters: the parts of a checkpoint and the files that hold each. Leaves: the names of those that are missing. Invariant:
a part that the checkpoint says its run has is missing where no file holds it, whatever the part.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

ALWAYS: Final = ("model", "optimizer", "step", "rng")
"""Every run has these; without one of them what goes on is another run."""

PARTS: Final = (
    *ALWAYS,
    "scheduler",
    "scaler",
    "loss",
    "data",
    "guard",
    "watch",
    "recorder",
    "best_eval",
    "config",
    "extra",
)
"""All parts that this version knows, in the order in which they are told. A later one may write more of them."""

FRESH_START: Final = "as an explicit fresh start, which restarts the schedule, load its model alone by its path"
"""What a checkpoint whose weights are there, and no more, is still good for."""


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names of parts as they are told: those known here first, any others by the alphabet."""
    known = {name: place for place, name in enumerate(PARTS)}
    return tuple(sorted(names, key=lambda name: (known.get(name, len(known)), name)))


def missing_parts(parts: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """What a resume lacks.

    Args:
        parts: What the run has, and the files that hold it; none where the run has it and no file does.

    Returns:
        Names, in the order in which they are told; empty for a complete checkpoint.

    Example:
        >>> missing_parts({"model": ("model.pt",), "scheduler": (), "step": ("run.pt",)})
        ('optimizer', 'rng', 'scheduler')
    """
    return in_order({*ALWAYS, *parts} - {name for name, files in parts.items() if files})
