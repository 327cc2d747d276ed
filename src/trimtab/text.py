"""Text that came from a log, a path or a stranger, made safe to show. The one place that does it.

Enters: any text. Leaves: printable ASCII on one line. Invariant: what was not printable is visible as an escape, so
that no control sequence, bidirectional override or lone surrogate acts on a terminal, and every encoding can hold it.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_CHARACTERS = 2_000


def plain(text: str) -> str:
    r"""The text in printable ASCII; everything else as a Python escape.

    Args:
        text: Any text, lone surrogates included.

    Returns:
        One line, cut with "..." after 2,000 characters.

    Example:
        >>> plain("a\x1b[31mb\u202e\udc80")
        'a\\x1b[31mb\\u202e\\udc80'
    """
    cut = text[:MAX_CHARACTERS]
    escaped = "".join(char if " " <= char <= "~" else _escape(char) for char in cut)
    return escaped + ("..." if len(text) > len(cut) else "")


def listed(names: Iterable[str], *, most: int | None = None) -> str:
    """Names as a sentence has them, as they are.

    Args:
        names: At least one.
        most: How many to name; of the others their number is told. None: all.

    Example:
        >>> listed(["model", "optimizer", "rng"]), listed("abcde", most=2)
        ('model, optimizer and rng', 'a, b and 3 more')
    """
    told = list(names)
    if most is not None and len(told) > most:
        told[most:] = [f"{len(told) - most} more"]
    *head, last = told
    return f"{', '.join(head)} and {last}" if head else last


def without_surrogates(text: str) -> str:
    """The text with lone surrogates as visible escapes: strict readers of JSON refuse them."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _escape(char: str) -> str:
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")
