"""Which checkpoints were saved as healthy while what was found later had begun, or may have.

    100 healthy, 120 healthy, 140 not: "collapse, found at step 140", all was well at step 100    120 is in doubt

Enters: what each checkpoint of a folder says of itself. Leaves: the same, with the doubt of each; the short form of a
reason. Invariant: a doubt comes from a checkpoint of the same run that was saved later and is further on: what a run
did after it was taken back says nothing of the way before, and nothing of the one after.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from trimtab.resume.info import CheckpointInfo
from trimtab.text import plain

MAX_SHORT: Final = 120
"""Characters of a reason that is told shortly."""

MAX_REASONS: Final = 2
"""Reasons of one checkpoint that are told shortly: its manifest has all of them, and `trimtab ckpt ls` tells them."""

_HEAD: Final = re.compile(r"([^:]{1,300} at step [0-9]+): ")
"""What a watch's reason begins with: what, where and when. The rest of it is figures."""

_SINCE: Final = re.compile(r"(.*?) (?:at|since) step ([0-9]+)(?:, last seen at step [0-9]+)?")
"""What and where, and the step at which it was found first."""


def with_doubts(infos: Iterable[CheckpointInfo]) -> tuple[CheckpointInfo, ...]:
    """Checkpoints, with what speaks against those that were healthy when they were saved.

    Args:
        infos: All of a folder, in any order.

    Returns:
        The same ones in the same order.
    """
    infos = tuple(infos)
    telling = [info for info in infos if info.unhealthy_since is not None]
    return tuple(_with_doubt(info, telling) if info.healthy else info for info in infos)


def short(because: Sequence[str]) -> str:
    """The first reasons on one short line, and how many more there are; empty where there is none.

    Example:
        >>> short(["w: 1 entry is NaN", "collapse in gate at step 200: the load has collapsed (8 experts: MaxVio 3)"])
        'w: 1 entry is NaN; collapse in gate at step 200'
    """
    more = [f"and {len(because) - MAX_REASONS:,} more"] if len(because) > MAX_REASONS else []
    return "; ".join([*map(_short, because[:MAX_REASONS]), *more])


def finding_in(reason: str) -> str:
    """What a reason is about and since when: the same in all checkpoints that were saved while it was so.

    Its figures are those of the last time that it was seen, and differ.

    Example:
        >>> finding_in("collapse in moe since step 200, last seen at step 250: MaxVio 3")
        'collapse in moe: 200'
        >>> finding_in("collapse in moe at step 200: MaxVio 2")
        'collapse in moe: 200'
    """
    head = _HEAD.match(reason)
    since = _SINCE.fullmatch(head[1]) if head is not None else None
    return f"{since[1]}: {since[2]}" if since is not None else reason


def found_late(because: str, *, since_step: int) -> str:
    """Why a checkpoint is not taken that was healthy when it was saved."""
    return f"after step {since_step}, the last known to be well before {because}"


def _with_doubt(info: CheckpointInfo, telling: Sequence[CheckpointInfo]) -> CheckpointInfo:
    for other in telling:
        is_later = (other.serial or 0) > (info.serial or 0) and other.step > info.step
        since = other.unhealthy_since
        if since is not None and other.run_id == info.run_id and is_later and info.step > since:
            return replace(info, doubt=found_late(short(other.unhealthy_because), since_step=since))
    return info


def _short(reason: str) -> str:
    text = plain(reason)
    head = _HEAD.match(text)
    text = text if head is None else head[1]
    return text if len(text) <= MAX_SHORT else f"{text[: MAX_SHORT - 3]}..."
