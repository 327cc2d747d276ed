"""Which rows are poisoned, and at which step the trainer meets them: decided by the seed before training.

In goes the order in which the trainer will read its rows, out come `Plant`s. Standard library only. Two plants are at
least `SPACING` steps apart, none comes before the loss has settled, and each row is met once.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple

from trimtab.errors import UsageError

Kind = Literal["garbage", "nonfinite", "repeated"]

GUARDED_KINDS: Final[tuple[Kind, ...]] = ("garbage", "garbage", "garbage", "nonfinite", "nonfinite", "repeated")
UNGUARDED_KINDS: Final[tuple[Kind, ...]] = ("garbage", "nonfinite")
"""Without a guard nothing after the first non-finite row is training any more, so nothing is planted there, and a
second garbage row would be no spike: trained on once, the model half knows it (loss 14, then 8)."""

FIRST_AT: Final = 0.4
"""Part of the run before the first plant. At 8 to 20 % the loss still falls and the robust rule saw 0 of 5."""
SPACING: Final = 12
"""A gradient-norm notice up to 10 steps before a loss finding claims the row table: the repeated row makes one."""
LAST_STEPS_FREE: Final = 5
NEEDED: Final[frozenset[Kind]] = frozenset({"garbage", "nonfinite"})
"""Kinds that the loss alone must show. A repeated row's loss is low: only the gradient norm sees it."""


class Plant(NamedTuple):
    """One poisoned row.

    Attributes:
        step: 1-based optimizer step that meets it.
        micro: 0-based micro-batch inside the step.
        row: Index into the dataset.
        kind: What is wrong with it.
    """

    step: int
    micro: int
    row: int
    kind: Kind


def draw_plants(
    order: Sequence[Sequence[int]], *, seed: int, kinds: Sequence[Kind], accumulation: int, until: float = 1.0
) -> list[Plant]:
    """Draws the plants of one demo.

    Args:
        order: Row numbers of every micro-batch, in the order of training.
        seed: Decides everything; the same seed and order give the same plants.
        kinds: What to plant, one entry a row. `UNGUARDED_KINDS` are met in the order given, others in a drawn one.
        accumulation: Micro-batches in one optimizer step.
        until: Part of the run in which the last plant must lie.

    Returns:
        Plants by step.

    Raises:
        UsageError: The run is too short for that many plants.
    """
    num_steps = len(order) // accumulation
    first = int(FIRST_AT * num_steps) + 1
    last = min(int(until * num_steps), num_steps - LAST_STEPS_FREE)
    # Any k numbers at least d apart are k distinct numbers of a range shorter by (k - 1)(d - 1), spread out again.
    room = last - first + 1 - (len(kinds) - 1) * (SPACING - 1)
    if room < len(kinds):
        raise UsageError(
            f"{num_steps} steps leave no room for {len(kinds)} planted rows {SPACING} steps apart between steps "
            f"{first} and {last}; expected about {len(kinds) * SPACING} steps there. Train on more rows."
        )
    draw = random.Random(f"trimtab demo, seed {seed}")
    steps = [
        first + place + at * (SPACING - 1) for at, place in enumerate(sorted(draw.sample(range(room), len(kinds))))
    ]
    drawn = list(kinds) if tuple(kinds) == UNGUARDED_KINDS else draw.sample(list(kinds), len(kinds))
    plants = []
    for step, kind in zip(steps, drawn, strict=True):
        micro = draw.randrange(accumulation)
        row = draw.choice(order[(step - 1) * accumulation + micro])
        plants.append(Plant(step, micro, row, kind))
    return plants


def planted_document(plants: Sequence[Plant]) -> dict[str, Any]:
    """The content of `planted.json`: row numbers and steps in parallel, and the kind of each row; no text."""
    return {
        "rows": [plant.row for plant in plants],
        "steps": [plant.step for plant in plants],
        "kinds": {str(plant.row): plant.kind for plant in plants},
    }
