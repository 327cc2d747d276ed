"""Where the checkpoints of a run are that is named as `trimtab rewind` takes it: by its folder or its id.

Enters: a name. Leaves: the folder to look in, and the run. Invariant: what is no run is left to whoever asks, a folder
of checkpoints above all.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from trimtab import registry
from trimtab.analysis.lookup import find_logs, run_place
from trimtab.cli.checkpoint_places import find_places
from trimtab.errors import CheckpointError, LogError
from trimtab.log.folder import RUNS_NAME, is_run_folder, run_folders
from trimtab.log.reader import open_log
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.names import named, scan
from trimtab.text import plain


class RunPlace(NamedTuple):
    """The checkpoints of a run.

    Attributes:
        folder: The one that holds them.
        run_id: The run.
        newest: The one of it that was saved last.
    """

    folder: Path
    run_id: str
    newest: Path


def place_of_run(name: str) -> RunPlace | None:
    """The folder with the checkpoints of the run that a name stands for; None where it stands for none.

    They are looked for in the output folder that its log lies in, and the folders in that.

    Raises:
        CheckpointError: It is a run, and they are not there, or in several folders; says where to look.
    """
    path = Path(name)
    if not is_run_folder(path) and (path.exists() or named(path) is not None):
        return None
    try:
        run_folder = Path(find_logs(name).paths[0])
        run_id = open_log(run_folder).header.run_id
    except LogError as error:
        _refuse_moved(name, error)
        return None  # of a name that is neither whoever looks for checkpoints says what it expected
    if run_id is None:
        return None
    out = output_of(run_folder)
    place = folder_of_run(out, run_id)
    if place is not None:
        return place
    raise CheckpointError(
        f"{plain(name)} is a run, and no checkpoint of it is in {plain(str(out))} or in the folders in there. Name the "
        "folder that holds its checkpoints."
    )


def place_of_runs(folder: Path) -> RunPlace | Path | None:
    """Where the checkpoints of a folder of run folders (`<out>/trimtab`) are: beside it, as a rule.

    Returns:
        Those of the run, where it holds one; of several the output folder; None where it is no such folder, or holds
        checkpoints itself.
    """
    place = folder.absolute()
    runs = run_folders(place.parent) if place.name == RUNS_NAME else []
    if not runs or scan(folder).found:
        return None
    return place_of_run(str(runs[0])) if len(runs) == 1 else place.parent


def _refuse_moved(name: str, error: LogError) -> None:
    """Refuses, with `CheckpointError`, the id of a run that was written elsewhere than it is now."""
    runs = registry.find(name) if name else []
    if len({run.run_id for run in runs}) == 1 and not any(map(run_place, runs)):
        raise CheckpointError(
            f"{plain(name)} is a run, and the list of runs has it at {plain(runs[0].path)}, which is not there. Name "
            "the folder that holds its checkpoints, or the run's folder where it is now."
        ) from error


def output_of(run_folder: Path) -> Path:
    """Where the checkpoints of a run are looked for: where it lies now.

    The output folder that it named when it began is another one where it was copied since: of the checkpoints in there
    nobody has asked.
    """
    return run_folder.absolute().parent.parent


def folder_of_run(out: Path, run_id: str, *, how: str = "Name one") -> RunPlace | None:
    """The folder, itself or one in it, that holds checkpoints of a run; None where none does.

    Args:
        out: Where to look.
        run_id: The run.
        how: What to do where there are several.

    Raises:
        CheckpointError: Several do.
    """
    places = _places_in(out, run_id)
    if len(places) > 1:
        where = ", ".join(plain(str(place.folder)) for place in places)
        raise CheckpointError(f"Checkpoints of run {plain(run_id)} are in {len(places)} folders. {how}: {where}")
    return next(iter(places), None)


def _places_in(out: Path, run_id: str) -> list[RunPlace]:
    try:
        folders = find_places(out).folders
    except (CheckpointError, OSError):
        return []
    places = []
    for folder, entries in folders.items():
        own = [info for info in list_checkpoints(folder, entries=entries) if info.run_id == run_id]
        if own:
            places.append(RunPlace(folder, run_id, max(own, key=lambda info: info.serial or 0).path))
    return places
