"""Where the checkpoints of a run are that is named as `trimtab rewind` takes it: by its folder or its id.

Enters: a name. Leaves: the folder to look in, and the run. Invariant: what is no run is left to whoever asks, a folder
of checkpoints above all.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trimtab.analysis.lookup import find_logs
from trimtab.cli.checkpoint_places import find_places
from trimtab.errors import CheckpointError, LogError
from trimtab.log.folder import is_run_folder
from trimtab.log.reader import open_log
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.names import named
from trimtab.text import plain


class RunPlace(NamedTuple):
    """The checkpoints of a run.

    Attributes:
        folder: The one that holds them.
        run_id: The run.
    """

    folder: Path
    run_id: str


def place_of_run(name: str) -> RunPlace | None:
    """The folder with the checkpoints of the run that a name stands for; None where it stands for none.

    They are looked for in the output folder that the run was recorded into, the one that it named when it began, and
    the folders in those.

    Raises:
        CheckpointError: It is a run, and they are not there, or in several folders; says where to look.
    """
    path = Path(name)
    if not is_run_folder(path) and (path.exists() or named(path) is not None):
        return None
    try:
        run_folder = Path(find_logs(name).paths[0])
        header = open_log(run_folder).header
    except LogError:
        return None  # of a name that is neither whoever looks for checkpoints says what it expected
    run_id = header.run_id
    if run_id is None:
        return None
    outs = dict.fromkeys([run_folder.absolute().parent.parent, *([Path(header.out)] if header.out else [])])
    folders = [folder for out in outs for folder in _holding(out, run_id)]
    if len(folders) == 1:
        return RunPlace(folders[0], run_id)
    where = ", ".join(plain(str(place)) for place in folders or outs)
    if folders:
        raise CheckpointError(f"Checkpoints of run {plain(run_id)} are in {len(folders)} folders. Name one: {where}")
    raise CheckpointError(
        f"{plain(name)} is a run, and no checkpoint of it is in {where} or in the folders in there. Name the folder "
        "that holds its checkpoints."
    )


def _holding(out: Path, run_id: str) -> list[Path]:
    try:
        places = find_places(out).folders
    except CheckpointError:
        return []
    return [
        folder
        for folder, entries in places.items()
        if any(info.run_id == run_id for info in list_checkpoints(folder, entries=entries))
    ]
