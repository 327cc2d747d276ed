"""The last healthy checkpoint, by the manifests and by the run's own log: where selection and analysis meet.

    newest healthy one -> its run -> the run's log, if one is at hand -> where its trouble began -> the last one before

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
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.select import pick
from trimtab.resume.verify import Progress
from trimtab.text import plain


def pick_healthy(folder: Path, *, run_id: str | None = None, progress: Progress | None = None) -> CheckpointInfo:
    """Picks the newest healthy checkpoint that was saved before the run's trouble began.

    Args:
        folder: The folder that holds the checkpoints.
        run_id: The run; None: the one that saved last.
        progress: Called now and then with how many more bytes were read.

    Raises:
        CheckpointError: There is none; says why.
    """
    info = pick(folder, healthy=True, run_id=run_id, progress=progress)
    if info.run_id is None:
        return _with_notice(info, "its manifest names no run, so no log was looked at: healthy is what it says itself")
    place = log_of_run(info.run_id, beside=folder)
    if place is None:
        return _with_notice(
            info,
            f"no log of run {plain(info.run_id)} is at hand, in this folder or in the list of runs: healthy is what "
            "the manifests say",
        )
    try:
        trouble = find_in_log(place)
    except LogError as error:
        return _with_notice(info, f"the run's log was not looked at: {plain(str(error))}")
    if trouble is None:
        return _with_notice(info, f"the run's log, {plain(place)}, shows no trouble that it did not come back from")
    told = (
        f"the trouble began at step {trouble.step}, says the run's log, {plain(place)}: {'; '.join(trouble.evidence)}"
    )
    if info.step >= trouble.step:
        info = _before(folder, trouble, told=told, run_id=info.run_id, progress=progress)
    return _with_notice(info, told)


def _before(folder: Path, trouble: Trouble, *, told: str, run_id: str, progress: Progress | None) -> CheckpointInfo:
    try:
        return pick(folder, healthy=True, run_id=run_id, before_step=trouble.step, progress=progress)
    except CheckpointError as error:
        raise CheckpointError(f"{error} {told[0].upper()}{told[1:]}.") from error


def _with_notice(info: CheckpointInfo, notice: str) -> CheckpointInfo:
    return dataclasses.replace(info, notices=(*info.notices, notice))
