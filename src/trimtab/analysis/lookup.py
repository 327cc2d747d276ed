"""Finds the logs that a user means by nothing, a path, a run id or the beginning of one.

Enters: a name. Leaves: the paths of one or more logs, and what should be said about the choice. Invariant: a name
that exists as a path is a path; a run that the registry knows is looked for where it was written, then below the
output folder it named, in case the folder was moved.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from trimtab import registry
from trimtab.errors import LogError, UsageError
from trimtab.log import foreign
from trimtab.log.folder import RUNS_NAME, is_run_folder, run_folders, run_path
from trimtab.registry import RegisteredRun
from trimtab.values import RUN_ID

MAX_NAMED = 5
"""Candidates named in one line."""

MAX_QUOTED = 200
"""Characters of a name quoted in an error."""


@runtime_checkable
class RecordedRun(Protocol):
    """A run of this process, as `attach` and `Run` give it."""

    @property
    def folder(self) -> Path | None:
        """Its run folder; None while nothing is recorded."""


@dataclass(frozen=True, slots=True)
class FoundLogs:
    """Logs that a name stands for.

    Attributes:
        paths: Run folders or files, the newest first; at least one.
        notices: What to say about the choice.
    """

    paths: tuple[str, ...]
    notices: tuple[str, ...] = ()

    def newest(self) -> tuple[str, list[str]]:
        """The log to read where one is asked for, and what to say: which others there are, too."""
        path, *others = self.paths
        return path, [*self.notices, *(f"{other} is another run: name the file to read it" for other in others)]


def find_logs(name: str | os.PathLike[str] | RecordedRun | None = None) -> FoundLogs:
    """Finds the logs behind a name.

    Args:
        name: A run folder, a folder that holds runs, a log file, a run id or its unique beginning; a run of this
            process; None: the newest run that the registry knows.

    Raises:
        LogError: Nothing is there, or a beginning is ambiguous; says what was looked for, where, and what to do.
        UsageError: It is no name at all.
    """
    if name is None:
        return _newest()
    if not isinstance(name, str | os.PathLike):
        return FoundLogs((_folder_of(name),))
    path = Path(name)
    # A name can be too long, or hold a NUL, for the system to look for it: then it is no path.
    if _exists(path):
        return _in_folder(path) if path.is_dir() else FoundLogs((str(path),))
    return _by_id(os.fspath(name))


def log_of_run(run_id: str, *, beside: Path) -> str | None:
    """The log of a run whose checkpoints lie in a folder: in that folder, beside it, or where the registry knows.

    Args:
        run_id: The whole id; one that can be no folder's name is nobody's.
        beside: The folder of the checkpoints.

    Returns:
        A run folder; None where none is on disk.
    """
    if not RUN_ID.match(run_id):
        return None
    folder = Path(os.path.abspath(beside))
    near = [run_path(out, run_id) for out in (folder, folder.parent)]
    known = [run_place(run) for run in registry.find(run_id) if run.run_id == run_id]
    places = [*(str(place) for place in near if is_run_folder(place)), *(place for place in known if place is not None)]
    return next(iter(places), None)


def run_place(run: RegisteredRun) -> str | None:
    """Where a registered run's folder is now: where it was written, or below its output folder; None if gone."""
    places = [Path(run.path)]
    if run.out is not None:
        below = Path(RUNS_NAME, run.run_id)
        if run.experiment is not None:
            places.append(Path(run.out, run.experiment) / below)
        places.append(Path(run.out) / below)
    return next((str(place) for place in places if _exists(place)), None)


def _folder_of(run: object) -> str:
    if not isinstance(run, RecordedRun):
        found = type(run).__name__
        raise UsageError(f"A log is named by a path, a run id or a run, found {found}: give the run's folder.")
    if run.folder is None:
        raise LogError(
            "This run has no folder: nothing was recorded. Its first micro-batch or step makes one, unless recording "
            "is off (record=False, or TRIMTAB=off)."
        )
    return str(run.folder)


def _newest() -> FoundLogs:
    runs = registry.runs()
    if not runs:
        raise LogError(
            "No run is registered on this machine. Name a run folder or a log file, or try it out with: trimtab demo"
        )
    for index, run in enumerate(runs):
        place = run_place(run)
        if place is not None:
            newer = "the newest registered run is" if index == 1 else f"the newest {index} of the registered runs are"
            gone = f"{newer} gone from disk; this is the newest that is left"
            return FoundLogs((place,), (gone,) if index else ())
    some = "The one registered run is not" if len(runs) == 1 else f"None of the {len(runs)} registered runs is"
    raise LogError(f"{some} on disk any more; the newest was at {runs[0].path}. Name a run folder or a log file.")


def _by_id(name: str) -> FoundLogs:
    matches = registry.find(name) if name else []
    if not matches:
        raise LogError(
            f"{_quoted(name)} is neither a path nor the beginning of a registered run's id. "
            "List the runs with: trimtab runs. Or give the path of a run folder or log file."
        )
    ids = list(dict.fromkeys(run.run_id for run in matches))
    if len(ids) > 1:
        named = ", ".join(ids[:MAX_NAMED]) + (", ..." if len(ids) > MAX_NAMED else "")
        raise LogError(f"{_quoted(name)} is the beginning of {len(ids)} run ids: {named}. Give more of the id.")
    place = next((place for place in map(run_place, matches) if place is not None), None)
    if place is None:
        raise LogError(
            f"Run {ids[0]} is gone from {matches[0].path}, and not below its output folder. "
            "Give the path it was moved to."
        )
    return FoundLogs((place,))


def _in_folder(folder: Path) -> FoundLogs:
    # Which run of several, and what to say about it, is the reader's to know.
    if is_run_folder(folder) or run_folders(folder):
        return FoundLogs((str(folder),))
    files = foreign.usual_files(folder)
    others = ", ".join(file.name for file in foreign.other_files(folder))
    notices = (f"the folder holds {others} too, which was not read",) if others else ()
    return FoundLogs(tuple(map(str, files)) if len(files) > 1 else (str(folder),), notices)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _quoted(name: str) -> str:
    """The name as it may stand in an error, however long somebody made it."""
    return repr(name) if len(name) <= MAX_QUOTED else repr(name[:MAX_QUOTED]) + "..."
