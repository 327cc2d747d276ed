"""Which checkpoints of a run were left behind when it was taken back on purpose.

    500, 1000, then 500 was loaded by its name, then 600    1000 is abandoned: what goes on is 500, 600

Enters: what each checkpoint of a folder says of itself. Leaves: the same, with those marked that are abandoned.
Invariant: only a load that a later save of the same run tells of leaves anything behind; saves in whatever order
without one are compared as numbers.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from trimtab.resume.info import CheckpointInfo


def with_abandoned(infos: Iterable[CheckpointInfo]) -> tuple[CheckpointInfo, ...]:
    """Checkpoints, with those marked as abandoned that were saved on a way that their run was taken back from.

    Args:
        infos: All of a folder, in any order.

    Returns:
        The same ones in the same order.
    """
    infos = tuple(infos)
    of_runs: dict[str | None, list[CheckpointInfo]] = defaultdict(list)
    for info in infos:
        if info.serial is not None:
            of_runs[info.run_id].append(info)
    gone = frozenset[Path]().union(*map(_left_behind, of_runs.values()))
    return tuple(replace(info, abandoned=True) if info.path in gone else info for info in infos)


def _left_behind(infos: Sequence[CheckpointInfo]) -> set[Path]:
    """Those of one run, found from its last save back: through each load to the checkpoint that was loaded."""
    found: set[Path] = set()
    there = list(infos)
    while there:
        last = max(there, key=_serial)
        load = last.resumed_from
        if load is None:
            break
        before = [info for info in there if _serial(info) <= load.serial and info is not last]
        found.update(info.path for info in before if info.step > load.step)
        loaded = max((info for info in before if info.step == load.step), key=_serial, default=None)
        # What was saved between the one that was loaded and its load is of another way, and says nothing of this one.
        there = [
            info for info in before if info.step <= load.step and (loaded is None or _serial(info) <= _serial(loaded))
        ]
    return found


def _serial(info: CheckpointInfo) -> int:
    return info.serial or 0
