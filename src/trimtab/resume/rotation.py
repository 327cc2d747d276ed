"""Which checkpoints a run removes after a save; a pure rule.

Enters: what stands in the folder, and what was just written and read back. Leaves: paths. Invariants: a path is never
that of the checkpoint just written, of the last healthy one, of another run, or of anything that says too little of
itself; as one that is damaged, incomplete or left behind counts for none, the only one that loads stays. What a
manifest alone says is no reason to delete: whoever deletes reads what is `relied_on` before, and asks again with what
turned out damaged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import in_order_of_age


def to_delete(
    infos: Iterable[CheckpointInfo], *, keep: int, run_id: str | None, just_written: Path
) -> tuple[Path, ...]:
    """Checkpoints of a run that are older than the newest ones that are kept.

    Args:
        infos: All of a folder, as `list_checkpoints` gives them, in any order.
        keep: How many of this run to keep; 0 or less deletes nothing.
        run_id: The run that saves.
        just_written: The checkpoint that was just written.

    Returns:
        Their paths, oldest first: whoever is killed on the way has lost the least.
    """
    ours = _of_run(infos, run_id)
    # Those that the run was taken back behind are in nobody's way, and go once it has passed them.
    whole = [info for info in _sound(ours) if not info.abandoned]
    # Without a new one that is whole there is no reason to do without an old one.
    if keep <= 0 or all(info.path.name != just_written.name for info in whole):
        return ()
    oldest_kept = whole[min(keep, len(whole)) - 1]
    last_healthy = _last_healthy(_sound(ours))
    return tuple(
        info.path
        for info in reversed(ours[ours.index(oldest_kept) + 1 :])
        if info is not last_healthy and info.path.name != just_written.name
    )


def relied_on(infos: Iterable[CheckpointInfo], *, run_id: str | None, just_written: Path) -> tuple[CheckpointInfo, ...]:
    """Those for whose sake others may go: the one just written, and the last healthy one.

    Args:
        infos: As in `to_delete`.
        run_id: As in `to_delete`.
        just_written: As in `to_delete`.
    """
    sound = _sound(_of_run(infos, run_id))
    last_healthy = _last_healthy(sound)
    return tuple(info for info in sound if info.path.name == just_written.name or info is last_healthy)


def _of_run(infos: Iterable[CheckpointInfo], run_id: str | None) -> tuple[CheckpointInfo, ...]:
    return in_order_of_age(info for info in infos if info.saver == "trimtab" and info.serial and info.run_id == run_id)


def _sound(ours: Sequence[CheckpointInfo]) -> list[CheckpointInfo]:
    return [info for info in ours if info.problem is None and not info.missing]


def _last_healthy(sound: Sequence[CheckpointInfo]) -> CheckpointInfo | None:
    healthy = [info for info in sound if info.healthy]
    undoubted = [info for info in healthy if info.doubt is None]
    ways = ([info for info in infos if not info.abandoned] for infos in (undoubted, healthy))
    return next((info for infos in (*ways, undoubted, healthy) for info in infos), None)
