"""What is wrong with a poisoned row, as text.

In goes a clean row, out comes the same question with an answer that went wrong in one of three ways, each of which a
real dataset has seen. Standard library only.
"""

from __future__ import annotations

import random
from typing import Final

from trimtab.demo.plant import Kind
from trimtab.demo.rows import Row

TOOL: Final = "<|tool|>"
"""The token that the tokenizer gained after the checkpoint was made."""

GARBAGE_TOKENS: Final = 1200
"""Long, so that in a step of 8 rows it carries about 90 % of the loss."""
REPEATED_TOKENS: Final = 640
_PHRASE: Final = "Return the value of the object. "
_EXCERPT_CHARS: Final = 64


def poison_row(row: Row, kind: Kind, *, seed: int) -> Row:
    """The row with its answer gone wrong.

    Args:
        row: A clean row.
        kind: `garbage`: characters that no other row holds, as a file in the wrong encoding gives them.
            `nonfinite`: one new token in the middle of the answer. `repeated`: one sentence, over and over.
        seed: Draws the garbage.

    Returns:
        The poisoned row. A repeated answer is longer than needed, to be cut to `max_answer_tokens`.
    """
    if kind == "nonfinite":
        words = row.answer.split(" ")
        middle = len(words) // 2
        return row._replace(answer=" ".join([*words[:middle], TOOL, *words[middle:]]))
    if kind == "repeated":
        return row._replace(answer=_PHRASE * REPEATED_TOKENS)
    draw = random.Random(f"trimtab demo, garbage, seed {seed}, {row.question}")
    # Three bytes a character, and bytes that training never met: three tokens each. Every row has its own draw.
    return row._replace(answer="".join(chr(draw.randrange(0x4E00, 0x9FA6)) for _ in range(GARBAGE_TOKENS // 3)))


def max_answer_tokens(kind: Kind) -> int | None:
    """Where an answer of this kind is cut, in tokens; None where it is not."""
    return REPEATED_TOKENS if kind == "repeated" else None


def excerpt(row: Row) -> str:
    """The part of an answer that shows what is wrong with it: its start, or the surroundings of `TOOL`."""
    at = row.answer.find(TOOL)
    start = max(0, at - _EXCERPT_CHARS // 2)
    return f"{'...' if start else ''}{row.answer[start : start + _EXCERPT_CHARS * 2]}"
