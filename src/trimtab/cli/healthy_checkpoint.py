"""The last healthy checkpoint, by the manifests and by the run's own log: where selection and analysis meet.

    the run that saved last -> its log, if one is at hand -> where its trouble began -> the last healthy one before

Enters: a folder of checkpoints. Leaves: a `CheckpointInfo` whose notices say what the log had to do with it. Invariant:
a log takes the choice further back, never further on; one that is missing or cannot be read changes nothing, and that
is said.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from trimtab.analysis.lookup import log_of_run
from trimtab.analysis.trouble import Trouble, find_in_log
from trimtab.errors import CheckpointError, LogError
from trimtab.resume.checksum import Progress
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.names import Entries
from trimtab.resume.runs import choose_run
from trimtab.resume.select import pick
from trimtab.text import plain


def pick_healthy(
    folder: Path,
    *,
    run_id: str | None = None,
    entries: Entries | None = None,
    progress: Progress | None = None,
) -> CheckpointInfo:
    """Picks the newest healthy checkpoint that was saved before the run's trouble began.

    Args:
        folder: The folder that holds the checkpoints.
        run_id: The run; None: the one that saved last.
        entries: What a scan of the folder has just found; None: it is scanned.
        progress: Called now and then with how many more bytes were read.

    Raises:
        CheckpointError: There is none; says why.
    """
    chosen = choose_run(list_checkpoints(folder, entries=entries), folder=folder, run_id=run_id).run_id
    trouble, told = _trouble_of(chosen, folder)
    before_step = None if trouble is None else trouble.step
    try:
        info = pick(folder, healthy=True, run_id=run_id, before_step=before_step, entries=entries, progress=progress)
    except CheckpointError as error:
        if trouble is None:
            raise
        raise CheckpointError(f"{error} {told[0].upper()}{told[1:]}.") from error
    return dataclasses.replace(info, notices=(*info.notices, told))


def _trouble_of(run_id: str | None, folder: Path) -> tuple[Trouble | None, str]:
    """Where the trouble of a run began, as its log says, and what to say of that."""
    if run_id is None:
        return None, "no manifest names the run, so no log was looked at: healthy is what the checkpoint says itself"
    place = log_of_run(run_id, beside=folder)
    if place is None:
        return None, (
            f"no log of run {plain(run_id)} is at hand, in this folder or in the list of runs: healthy is what the "
            "manifests say"
        )
    try:
        trouble = find_in_log(place)
    except LogError as error:
        return None, f"the run's log was not looked at: {plain(str(error))}"
    if trouble is None:
        return None, f"the run's log, {plain(place)}, shows no trouble that it did not come back from"
    return trouble, (
        f"the trouble began at step {trouble.step}, says the run's log, {plain(place)}: {'; '.join(trouble.evidence)}"
    )
