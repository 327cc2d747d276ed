"""Whether what a file holds is about as large as the file: a list that holds itself twice, forty times over, is not.

Enters: what `torch.load` made of a file. Leaves: nothing, or a `CheckpointError`. Invariant: the look itself takes no
longer than an honest file of this length would let it; after it whoever spells, compares or copies what was read is
done in a time that goes with the file's length.

A pickle names a list that it has made before in two bytes, so few bytes can be 2^40 entries, of which each look by
`repr`, `==` or `copy.deepcopy` goes through all.
"""

from __future__ import annotations

from typing import Final

from trimtab.errors import CheckpointError

_ENTRIES_PER_BYTE: Final = 16
"""What is honest and shared are small tuples, a shape for one: no more entries for each byte that names them."""

_ALWAYS: Final = 100_000
_MOST_CHARACTERS: Final = 2**30
"""Of text and bytes together, each as often as it is held."""

_MOST_DEPTH: Final = 150
"""What a save takes is nested 100 deep at most, in a few mappings of its own."""


def refuse_grown(value: object, *, size_bytes: int, where: str) -> None:
    """Refuses what has more entries than its file has bytes for, each counted as often as it is held.

    Args:
        value: Lists, tuples, sets and mappings of anything.
        size_bytes: The bytes that say it, without those of tensors.
        where: What to call the file in a message.

    Raises:
        CheckpointError: It was made to take the time or the memory of whoever loads it.
    """
    num_left, num_characters = _ALWAYS + _ENTRIES_PER_BYTE * size_bytes, 0
    waiting: list[tuple[object, int]] = [(value, 0)]
    while waiting:
        held, depth = waiting.pop()
        if isinstance(held, str | bytes):
            num_characters += len(held)
        elif isinstance(held, dict | list | tuple | set | frozenset):
            entries = (*held.keys(), *held.values()) if isinstance(held, dict) else held
            num_left -= len(entries)
            depth += 1
            if num_left >= 0:
                waiting.extend((entry, depth) for entry in entries)
        if num_left < 0 or num_characters > _MOST_CHARACTERS or depth > _MOST_DEPTH:
            raise CheckpointError(
                f"{where}: holds the same lists or text over and over, more than its {size_bytes:,} bytes can hold, or "
                f"nested more than {_MOST_DEPTH} deep: it was made to take the time of whoever loads it. Pick another "
                "one."
            )
