"""Which checkpoints a run removes after a save; a pure rule.

Enters: what stands in the folder, and what was just written and read back. Leaves: paths. Invariants: a path is never
that of the checkpoint just written, of the last healthy one, of another run, or of anything that says too little of
itself; as one that is damaged or incomplete counts for none, the only one that loads stays.
"""

from __future__ import annotations

from collections.abc import Iterable
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
        just_written: The checkpoint that was just written and verified.

    Returns:
        Their paths, oldest first: whoever is killed on the way has lost the least.
    """
    ours = in_order_of_age(info for info in infos if info.saver == "trimtab" and info.serial and info.run_id == run_id)
    whole = [info for info in ours if info.problem is None and not info.missing]
    # Without a new one that is whole there is no reason to do without an old one.
    if keep <= 0 or all(info.path.name != just_written.name for info in whole):
        return ()
    oldest_kept = whole[min(keep, len(whole)) - 1]
    last_healthy = next((info for info in whole if info.healthy), None)
    return tuple(
        info.path
        for info in reversed(ours[ours.index(oldest_kept) + 1 :])
        if info is not last_healthy and info.path.name != just_written.name
    )
