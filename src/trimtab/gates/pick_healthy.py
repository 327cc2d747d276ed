"""The last healthy checkpoint, by the manifests and by the run's own log: where selection and analysis meet.

    the run that saved last -> its log, if one is at hand -> where its trouble began, and from where to where a finding
    of its watch marks what was saved -> the last healthy one before and beside that

Enters: a folder of checkpoints. Leaves: a `CheckpointInfo` whose notices say what the log had to do with it. Invariant:
a log takes the choice further back, never further on; one that is missing or cannot be read changes nothing, and that
is said.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Final

from trimtab.analysis.lookup import log_of_run
from trimtab.analysis.trouble import Found, find_in_log
from trimtab.analysis.unhealthy import Unhealthy
from trimtab.errors import CheckpointError, LogError
from trimtab.resume.checksum import Progress
from trimtab.resume.doubt import found_late
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.names import Entries
from trimtab.resume.runs import choose_run
from trimtab.resume.select import pick
from trimtab.text import plain

NOTHING: Final = Found(trouble=None)
"""What is known where no log is."""

QUIET: Final = "shows no trouble that it did not come back from"
QUIET_BESIDE: Final = "has no more against it than the checkpoints say themselves"
"""Of a log without trouble, where some of the checkpoints were refused."""

MAX_TOLD: Final = 5
"""Findings told one by one."""


def pick_healthy(
    folder: Path,
    *,
    run_id: str | None = None,
    entries: Entries | None = None,
    progress: Progress | None = None,
) -> CheckpointInfo:
    """Picks the newest healthy checkpoint that was saved before the run's trouble began, and while no finding held.

    Args:
        folder: The folder that holds the checkpoints.
        run_id: The run; None: the one that saved last.
        entries: What a scan of the folder has just found; None: it is scanned.
        progress: Called now and then with how many more bytes were read.

    Raises:
        CheckpointError: There is none; says why.
    """
    chosen = choose_run(list_checkpoints(folder, entries=entries), folder=folder, run_id=run_id).run_id
    found, told = _found_in_log(chosen, folder)
    before_step = None if found.trouble is None else found.trouble.step

    try:
        info = pick(
            folder,
            healthy=True,
            run_id=run_id,
            before_step=before_step,
            doubts=lambda info: against(found, info.step),
            entries=entries,
            progress=progress,
        )
    except CheckpointError as error:
        if found == NOTHING:
            raise
        raise CheckpointError(" ".join([str(error), *(f"{line[0].upper()}{line[1:]}." for line in told)])) from error
    if info.refused and found == NOTHING:
        told = tuple(line.replace(QUIET, QUIET_BESIDE) for line in told)
    return dataclasses.replace(info, notices=(*info.notices, *told))


def against(found: Found, step: int) -> str | None:
    """What a log has against a checkpoint that was saved as healthy, as a phrase; None where nothing.

    Args:
        found: What the log of its run has against checkpoints.
        step: The step after which it was saved.
    """
    if found.left is not None and step > found.left.after_step:
        why = against(found.left.found, step)
        return None if why is None else f"{why}, on the way that the run was taken back from"
    if found.trouble is not None and step >= found.trouble.step:
        return f"the trouble began at step {found.trouble.step}, says the log: {'; '.join(found.trouble.evidence)}"
    one = next((one for one in found.unhealthy if one.holds(step)), None)
    return None if one is None else found_late(one.name, since_step=one.since_step)


def _found_in_log(run_id: str | None, folder: Path) -> tuple[Found, tuple[str, ...]]:
    """What the log of a run has against its checkpoints, and what to say of that."""
    if run_id is None:
        why = "no manifest names the run, so no log was looked at: healthy is what the checkpoint says itself"
        return NOTHING, (why,)
    place = log_of_run(run_id, beside=folder)
    if place is None:
        why = (
            f"no log of run {plain(run_id)} is at hand, in this folder or in the list of runs: healthy is what the "
            "manifests say"
        )
        return NOTHING, (why,)
    try:
        found = find_in_log(place)
    except LogError as error:
        return NOTHING, (f"the run's log was not looked at: {plain(str(error))}",)
    if found == NOTHING:
        return found, (f"the run's log, {plain(place)}, {QUIET}",)
    told = [_in_words(one, place) for one in found.unhealthy[:MAX_TOLD]]
    if len(found.unhealthy) > MAX_TOLD:
        told.append(f"{len(found.unhealthy) - MAX_TOLD:,} more findings speak against checkpoints: trimtab rewind")
    trouble = found.trouble
    if trouble is not None:
        evidence = "; ".join(trouble.evidence)
        told.insert(0, f"the trouble began at step {trouble.step}, says the run's log, {plain(place)}: {evidence}")
    return found, tuple(told)


def _in_words(one: Unhealthy, place: str) -> str:
    until = "to the end of the log" if one.over_at is None else f"before step {one.over_at}"
    return (
        f"the run's log, {plain(place)}, has a finding against the checkpoints after step {one.since_step} {until}: "
        f"{one.name}"
    )
