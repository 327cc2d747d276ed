"""The local list of runs: where each was recorded, so that `trimtab rewind` finds the newest by itself.

Enters: a run's header and folder when it starts. Leaves: runs, newest first. Invariant: it is a convenience; nothing
about it ever fails a run or a reader. A shared home, a lock, a full disk, a damaged file, an entry that somebody else
wrote, a path in no encoding: less is listed, none raises.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Final

from trimtab.values import RunHeader

_log = logging.getLogger("trimtab.registry")
_BUSY_S: Final = 0.5  # a run's start may wait so long for another's; a home on a dead network mount is not our wait
_NAME: Final = "runs.sqlite"
_MAX_TIME: Final = 2**53
_RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")  # FORMAT.md: a folder's name that climbs nowhere
_COLUMNS: Final = "run_id, path, backend, task, created, out, experiment"
_TABLE: Final = (
    "create table if not exists runs (run_id text not null, path text not null primary key, backend text not null,"
    " task text, created real not null, out text, experiment text)"
)


@dataclass(frozen=True, slots=True)
class RegisteredRun:
    """One run in the list.

    Attributes:
        run_id: The run.
        path: Its run folder, absolute; it may have gone since.
        backend: As in `RunHeader`.
        task: As in `RunHeader`.
        created: Start of the run, seconds since the epoch.
        out: The folder the user named, absolute.
        experiment: As in `RunHeader`.
    """

    run_id: str
    path: str
    backend: str
    task: str | None
    created: float
    out: str | None
    experiment: str | None


def data_folder(environ: Mapping[str, str] | None = None, platform: str = sys.platform) -> Path:
    """`$TRIMTAB_HOME`, else the platform's folder for application data with `trimtab` below it."""
    # Asked for at each call: `Dataset.map(num_proc=...)` puts another object into `os.environ`.
    environ = os.environ if environ is None else environ
    if environ.get("TRIMTAB_HOME"):
        return Path(environ["TRIMTAB_HOME"])
    home = Path("~").expanduser()
    if platform == "darwin":
        return home / "Library" / "Application Support" / "trimtab"
    if platform == "win32":
        return Path(environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "trimtab"
    return Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share") / "trimtab"


def register(header: RunHeader, path: str | os.PathLike[str]) -> bool:
    """Adds a run, or replaces the entry of the same folder.

    Args:
        header: The run's header; one without a `run_id` is not registered.
        path: Its run folder.

    Returns:
        Whether it is in the list now. Never raises, whatever the header, the path, the file or the folder is like.
    """
    if header.run_id is None:
        return False
    try:
        out = None if header.out is None else os.path.abspath(header.out)
        entry = RegisteredRun(
            header.run_id, os.path.abspath(path), header.backend, header.task, header.created, out, header.experiment
        )
        if not _makes_sense(entry):
            _log.debug("run %r was not registered: its header holds what the list cannot", header.run_id)
            return False
        folder = data_folder()
        folder.mkdir(parents=True, exist_ok=True)
        file = folder / _NAME
        try:
            _insert(file, entry)
        except sqlite3.DatabaseError as error:
            if not _is_damaged(error):
                raise  # locked, read-only, full, of another shape: the file may be as good as ever
            _move_aside(file)
            _insert(file, entry)
    except Exception as error:  # noqa: BLE001 - a convenience: a dead home or an odd path must not stop a run
        _log.debug("run %r was not registered: %r", header.run_id, error)
        return False
    return True


def forget(path: str | os.PathLike[str]) -> bool:
    """Takes the entry of a run folder out of the list; the folder itself is left alone.

    Args:
        path: The run folder.

    Returns:
        Whether the list could be written. Never raises, whatever the path or the file is like.
    """
    try:
        file = data_folder() / _NAME
        if file.exists():
            with _connect(file) as connection, connection:
                connection.execute("delete from runs where path = cast(? as text)", (_bytes(os.path.abspath(path)),))
    except Exception as error:  # noqa: BLE001 - as in `register`
        _log.debug("%r was not taken out of the list of runs: %r", path, error)
        return False
    return True


def runs() -> list[RegisteredRun]:
    """All runs, newest first; none where the list cannot be read. An entry that makes no sense is left out."""
    return _select("", ())


def find(prefix: str) -> list[RegisteredRun]:
    """Runs whose id is `prefix`, else those whose id starts with it; newest first."""
    exact = _select("where run_id = ?", (prefix,))
    return exact or _select("where substr(run_id, 1, length(?)) = ?", (prefix, prefix))


def newest() -> RegisteredRun | None:
    """The run that started last; None where there is none."""
    return next(iter(_select("", ())), None)


def _select(where: str, values: tuple[str, ...]) -> list[RegisteredRun]:
    try:
        file = data_folder() / _NAME
        if not file.exists():
            return []
        with _connect(file) as connection:
            found = connection.execute(f"select {_COLUMNS} from runs {where} order by created desc, rowid desc", values)
            return [run for run in (RegisteredRun(*entry) for entry in found) if _makes_sense(run)]
    except Exception as error:  # noqa: BLE001 - as in `register`; a reader then names the log's path instead
        _log.debug("the list of runs cannot be read: %r", error)
        return []


def _insert(file: Path, run: RegisteredRun) -> None:
    values = [_bytes(value) if isinstance(value, str) else value for value in astuple(run)]
    # As bytes, cast: SQLite keeps any text, while its Python binding takes none that is no UTF-8.
    places = ", ".join("cast(? as text)" if isinstance(value, bytes) else "?" for value in values)
    with _connect(file) as connection, connection:
        connection.execute(_TABLE)
        connection.execute(f"insert or replace into runs ({_COLUMNS}) values ({places})", values)


def _makes_sense(run: RegisteredRun) -> bool:
    """Whether every field is of its type: the file is anybody's, and SQLite keeps any type in any column."""
    texts = (run.run_id, run.path, run.backend)
    more = (run.task, run.out, run.experiment)
    return (
        all(isinstance(text, str) and text for text in texts)
        and all(text is None or isinstance(text, str) for text in more)
        and not any("\0" in text for text in (*texts, *more) if text is not None)
        and _RUN_ID.match(run.run_id) is not None
        and Path(run.path).is_absolute()
        and type(run.created) in (int, float)
        and abs(run.created) <= _MAX_TIME
    )


def _is_damaged(error: sqlite3.DatabaseError) -> bool:
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _bytes(text: str) -> bytes:
    """A text as it is stored: a file's name in a folder of another encoding comes back as it was."""
    return text.encode("utf-8", "surrogateescape")


@contextmanager
def _connect(file: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(file, timeout=_BUSY_S)) as connection:
        connection.text_factory = lambda stored: stored.decode("utf-8", "surrogateescape")
        yield connection


def _move_aside(file: Path) -> None:
    """A file that is no database any more is kept under another name, and a new list begins."""
    _log.debug("%s is damaged; it was moved aside and a new list begun", file)
    file.replace(file.with_name(file.name + ".damaged"))
