"""The run folder `<out>/trimtab/<run_id>/`: `run.json` and the parts of each rank (`trimtab.log.parts`).

Enters: an output folder and a header. Leaves: a folder for one attempt of one run. Invariant: a run that exists is
never overwritten; `run.json` appears whole or not at all.
"""

from __future__ import annotations

import os
import secrets
import stat
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from trimtab.disk import write_whole
from trimtab.errors import LogError, UsageError
from trimtab.log.frames import MAX_ATTEMPT
from trimtab.log.header import MAX_HEADER_SIZE, dump_header, load_header
from trimtab.log.parts import Part, list_parts, read_info
from trimtab.log.scan import first_header, highest_attempt
from trimtab.log.segment_info import BadSegmentError
from trimtab.values import RUN_ID, RunHeader

HEADER_NAME: Final = "run.json"
RUNS_NAME: Final = "trimtab"


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Where one attempt of a run is written.

    Attributes:
        path: The run folder.
        header: What the attempt's first frame says; `run_id` is set.
        attempt: 1 for the first start, one more for each continuation.
    """

    path: Path
    header: RunHeader
    attempt: int = 1


def new_run_id(now: float) -> str:
    """A run id like `20261129-210313-a1b2c3`: UTC time and six random hex digits.

    Args:
        now: Seconds since the epoch.
    """
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime(now))}-{secrets.token_hex(3)}"


def run_path(out: str | os.PathLike[str], run_id: str) -> Path:
    """Where the run lives under `out`, whether it exists or not.

    Raises:
        UsageError: The id cannot be a folder's name.
    """
    check_run_id(run_id)
    return Path(os.path.abspath(out)) / RUNS_NAME / run_id


def check_run_id(run_id: str) -> None:
    """Refuses an id that cannot be a folder's name, with `UsageError`."""
    if not isinstance(run_id, str) or not RUN_ID.match(run_id):
        raise UsageError(
            f"run_id {run_id!r:.80} cannot name a folder: expected 1 to 64 letters, digits, '.', '_' or '-', the first "
            "a letter or digit."
        )


def create_run(out: str | os.PathLike[str], header: RunHeader) -> RunFolder:
    """Makes the folder of a new run and its `run.json`.

    Args:
        out: The output folder, made where missing.
        header: What is known of the run; a `run_id` of None gets a new one.

    Returns:
        The folder, attempt 1.

    Raises:
        UsageError: That run exists already, or the id cannot be a folder's name.
        OSError: The folder cannot be written.
    """
    run_id = header.run_id if header.run_id is not None else new_run_id(header.created or time.time())
    path = run_path(out, run_id)
    header = replace(header, run_id=run_id)
    document = dump_header(header)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        path.mkdir()
    except FileExistsError as error:
        raise UsageError(
            f"run {run_id} exists already in {path.parent}; nothing was overwritten. Choose another run_id, or "
            "continue that run"
        ) from error
    write_whole(path / HEADER_NAME, document)
    return RunFolder(path, header)


def continue_run(out: str | os.PathLike[str], run_id: str, header: RunHeader) -> RunFolder:
    """The next attempt of a run that exists; its files are appended to.

    Args:
        out: The output folder the run was started with.
        run_id: The run.
        header: What is known of this attempt.

    Returns:
        The folder, with one attempt more than the highest in its journals and segments.

    Raises:
        LogError: There is no such run, or it was written by a newer version.
        UsageError: The id cannot be a folder's name, what is in the folder belongs to another run, or there were
            65,535 attempts.
        OSError: The folder cannot be listed.
    """
    path = run_path(out, run_id)
    if not is_run_folder(path):
        raise LogError(
            f"no run {run_id} in {path.parent}; expected the folder {path} with a {HEADER_NAME}, journals or segments"
        )
    # A newer version and another run are refused before anything is appended: no reader would take it.
    file, found = _found_id(path)
    if found is not None and found != run_id:
        raise UsageError(
            f"{file} names the run {found!r}, and the folder is {run_id!r}: it was copied or renamed. Give the folder "
            f"its name back and continue run_id={found!r}, or choose a run_id that is not there yet"
        )
    attempt = 1 + max(map(_highest_attempt, list_parts(path)), default=0)
    if attempt > MAX_ATTEMPT:
        raise UsageError(f"run {run_id} in {path.parent} has been continued {MAX_ATTEMPT} times; start a new run")
    return RunFolder(path, replace(header, run_id=run_id), attempt)


def join_run(
    out: str | os.PathLike[str], header: RunHeader, *, attempt: int, folder: str | os.PathLike[str]
) -> RunFolder:
    """The attempt that rank 0 began, for another rank: its folder, or one made under `out` where that is not seen.

    Args:
        out: The output folder that this rank was given.
        header: What is known of this attempt; its `run_id` is what rank 0 said.
        attempt: The attempt that rank 0 said.
        folder: The run folder of rank 0, absolute.

    Raises:
        UsageError: The id cannot be a folder's name.
        OSError: The folder cannot be made.
    """
    path = run_path(out, header.run_id or "")
    if has_header(Path(folder)):
        path = Path(folder)
        header = replace(header, out=str(path.parent.parent))
    path.mkdir(parents=True, exist_ok=True)
    return RunFolder(path, header, attempt)


def has_header(path: Path) -> bool:
    """Whether there is a `run.json`, which rank 0 alone writes; False for a folder that cannot be looked into."""
    try:
        return (path / HEADER_NAME).is_file()
    except (OSError, ValueError):
        return False


def is_run_folder(path: Path) -> bool:
    """Whether the folder holds a `run.json`, a journal or a segment; False for one that cannot be looked into."""
    try:
        return path.is_dir() and ((path / HEADER_NAME).is_file() or bool(list_parts(path)))
    except (OSError, ValueError):  # no permission, a name that is too long, or no name for the system at all
        return False


def run_folders(out: str | os.PathLike[str]) -> list[Path]:
    """Run folders under `<out>/trimtab`, newest last: by the start their header names, then by the folder's time."""
    runs = Path(os.path.abspath(out)) / RUNS_NAME
    try:
        entries = sorted(runs.iterdir())
    except (OSError, ValueError):
        return []
    return sorted(filter(is_run_folder, entries), key=_started)


def read_header(path: Path) -> tuple[RunHeader | None, list[str]]:
    """What a folder's `run.json` says, and what was wrong with it; None if it is missing or no header.

    Raises:
        LogError: It was written by a newer version.
    """
    file = path / HEADER_NAME
    try:
        if stat.S_ISFIFO(file.stat().st_mode):
            return None, [f"{file}: a pipe, and no file"]  # nobody may ever write into it
        with file.open("rb") as stream:
            data = stream.read(MAX_HEADER_SIZE + 1)
    except OSError as error:
        return None, [f"{file}: {error.strerror}"]
    return load_header(data, where=str(file))


def _found_id(path: Path) -> tuple[Path, str | None]:
    """Which run a reader would take the folder for, and which file says so; None where nothing does."""
    header, _ = read_header(path)
    if header is not None and header.run_id is not None:
        return path / HEADER_NAME, header.run_id
    for part in list_parts(path):
        file = part.journal or part.segment
        assert file is not None
        run_id = _run_id_of(part)
        if run_id is not None:
            return file, run_id
    return path, None


def _run_id_of(part: Part) -> str | None:
    if part.segment is not None:
        try:
            return read_info(part.segment).run_id
        except BadSegmentError:
            pass
    header = first_header(part.journal) if part.journal is not None else None
    return None if header is None else header.run_id


def _highest_attempt(part: Part) -> int:
    """0 where the part does not say: then nobody can read its records either."""
    highest = highest_attempt(part.journal) if part.journal is not None else 0
    if part.segment is None:
        return highest
    try:
        return max(highest, *read_info(part.segment).attempts, 0)
    except BadSegmentError:
        return highest


def _started(path: Path) -> tuple[float, float, str]:
    """When a run began, and when its folder was written: a log that was converted twice began once."""
    try:
        header, _ = read_header(path)
    except LogError:
        header = None
    try:
        written = path.stat().st_mtime
    except OSError:
        written = 0.0
    return (header.created if header is not None else 0.0) or written, written, path.name
