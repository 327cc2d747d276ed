"""Where the checkpoints of a run are that is named as `trimtab rewind` takes it: by its folder or its id.

Enters: a name. Leaves: the folder to look in, and the run. Invariant: what is no run is left to whoever asks, a folder
of checkpoints above all.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
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
from trimtab.values import RunHeader


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
    except LogError as error:
        _refuse_moved(name, error)
        return None  # of a name that is neither whoever looks for checkpoints says what it expected
    run_id = header.run_id
    if run_id is None:
        return None
    outs = outputs_of(run_folder, header)
    place = folder_of_run(outs, run_id)
    if place is not None:
        return place
    where = ", ".join(plain(str(out)) for out in outs)
    raise CheckpointError(
        f"{plain(name)} is a run, and no checkpoint of it is in {where} or in the folders in there. Name the folder "
        "that holds its checkpoints."
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


def outputs_of(run_folder: Path, header: RunHeader) -> tuple[Path, ...]:
    """Where the checkpoints of a run are looked for: where it lies now, and the output folder that it named."""
    here = run_folder.absolute().parent.parent
    named = Path(header.out) if header.out else here
    # By a link it may be the same one, whose checkpoints would be there twice.
    return (here,) if _is_same(here, named) else (here, named)


def folder_of_run(outs: Iterable[Path], run_id: str, *, how: str = "Name one") -> RunPlace | None:
    """The folder, of some and of those in them, that holds checkpoints of a run; None where none does.

    Args:
        outs: Where to look.
        run_id: The run.
        how: What to do where there are several.

    Raises:
        CheckpointError: Several do.
    """
    places = [place for out in outs for place in _places_in(out, run_id)]
    if len(places) > 1:
        where = ", ".join(plain(str(place.folder)) for place in places)
        raise CheckpointError(f"Checkpoints of run {plain(run_id)} are in {len(places)} folders. {how}: {where}")
    return next(iter(places), None)


def _places_in(out: Path, run_id: str) -> list[RunPlace]:
    try:
        folders = find_places(out).folders
    except (CheckpointError, OSError, ValueError):  # a header may name what no system takes for a path
        return []
    places = []
    for folder, entries in folders.items():
        own = [info for info in list_checkpoints(folder, entries=entries) if info.run_id == run_id]
        if own:
            places.append(RunPlace(folder, run_id, max(own, key=lambda info: info.serial or 0).path))
    return places


def _is_same(one: Path, other: Path) -> bool:
    try:
        return os.path.realpath(one) == os.path.realpath(other)
    except (OSError, ValueError):  # a header names whatever it likes
        return False
