"""From a log to the same log in another format.

    find_logs -> open_log -> target_of -> write_rewind, or copy_to_runs -> Conversion

Enters: a path or run id, and where to write. Leaves: a `Conversion`, a plain value. Invariant: what is written appears
whole or not at all, and nothing that stands there is touched.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from trimtab import __version__
from trimtab.analysis.comparison import NamedLog
from trimtab.analysis.lookup import RecordedRun, find_logs
from trimtab.conversion.to_rewind import RewindWritten, write_rewind
from trimtab.conversion.to_runs import RunsWritten, copy_to_runs
from trimtab.conversion.values import Conversion, Target
from trimtab.disk import write_file
from trimtab.errors import UsageError
from trimtab.log.reader import Log, open_log

Progress = Callable[[str, int, int], None]

_FILE_SUFFIXES = (".jsonl", ".json", ".ndjson")
"""What nobody calls an output folder."""


def convert(
    source: str | os.PathLike[str] | RecordedRun, dest: str | os.PathLike[str], *, progress: Progress | None = None
) -> Conversion:
    """Turns a log of Trimtab into a `rewind.jsonl`, and any other log that `rewind` reads into a run folder.

    Args:
        source: A run folder, a log file, a run id or its unique beginning; a run of this process, as far as it is on
            disk.
        dest: Of a run the file to write, which is not there yet. Of a `rewind.jsonl`, and of a log that holds steps
            alone, an output folder, there or not: each run gets a folder `<dest>/trimtab/<run_id>` of its own.
        progress: Called now and then with what is being done in words, how much of it is done, and the whole of it.

    Returns:
        What was written, and what the other format could not hold; `to_dict()` is the JSON document of
        `trimtab convert --json`.

    Raises:
        LogError: There is no log, it cannot be read, or it holds nothing that the other format could hold.
        UsageError: Several logs are meant, `dest` fits not what the log becomes, or there is such a file already.
        OSError: A file or folder cannot be written.

    Example:
        written = trimtab.convert("runs/a", "a.jsonl")
        print(written.num_rows, *written.notices)
    """
    log, notices = open_one(source)
    return convert_log(log, dest, notices=notices, progress=progress)


def open_one(source: str | os.PathLike[str] | RecordedRun) -> NamedLog:
    """Opens the one log that is meant.

    Args:
        source: As for `convert`.

    Raises:
        LogError: There is none, or it cannot be read.
        UsageError: There are several.
    """
    found = find_logs(source)
    if len(found.paths) > 1:
        raise UsageError(f"{source} holds {len(found.paths)} logs: {', '.join(found.paths)}. Name one of them.")
    return NamedLog(open_log(found.paths[0]), list(found.notices))


def target_of(log: Log, dest: str | os.PathLike[str]) -> Target:
    """What a log becomes: one that Trimtab wrote a file, any other run folders.

    Args:
        log: The log.
        dest: Where it is to be written.

    Raises:
        UsageError: The name is that of a file, and the log becomes none.
    """
    if log.format in ("run", "journal"):
        return "rewind.jsonl"
    if os.fspath(dest).endswith(_FILE_SUFFIXES):
        raise UsageError(_why_no_file(log))
    return "run"


def convert_log(
    log: Log, dest: str | os.PathLike[str], *, notices: Sequence[str] = (), progress: Progress | None = None
) -> Conversion:
    """`convert` for a log that is open already.

    Args:
        log: The log.
        dest: As for `convert`, and likewise `progress`.
        notices: What is to be said first, about the choice of the log.
        progress: See there.

    Returns:
        What was written, and what the other format could not hold.

    Raises:
        LogError: The log cannot be read, or holds nothing that the other format could hold.
        UsageError: `dest` does not fit, or is there already.
        OSError: A file or folder cannot be written.
    """
    if target_of(log, dest) == "run":
        runs = _write_runs(log, Path(dest), progress=progress)
        return Conversion(source=log.path, format="run", **_told(runs, log=log, notices=notices))
    if os.path.lexists(dest):
        raise UsageError(f"{os.fspath(dest)} exists already; nothing was overwritten. Name another file.")
    with write_file(Path(dest)) as file:
        lines = write_rewind(log, file, progress=progress)
    told = _told(lines, log=log, notices=notices)
    return Conversion(source=log.path, format="rewind.jsonl", paths=(os.fspath(dest),), **told)


def _write_runs(log: Log, out: Path, *, progress: Progress | None) -> RunsWritten:
    """The run folders; an output folder that was made for them goes again where none is written."""
    made = not out.exists()
    out.mkdir(exist_ok=True)
    try:
        return copy_to_runs(log, out, version=__version__, progress=progress)
    except BaseException:
        if made:
            with suppress(OSError):
                out.rmdir()
        raise


def _told(written: RewindWritten | RunsWritten, *, log: Log, notices: Sequence[str]) -> dict[str, Any]:
    """What was written, as fields of a `Conversion`."""
    return {**written._asdict(), "notices": (*notices, *log.notices(), *written.notices)}


def _why_no_file(log: Log) -> str:
    if log.has_rows:
        return f"{log.path} is a rewind.jsonl already. Name a folder, for a run folder in it."
    return (
        f"{log.path} holds steps and no rows, and a rewind.jsonl is made of rows: nothing was written. Name a folder, "
        "for a run folder in it."
    )
