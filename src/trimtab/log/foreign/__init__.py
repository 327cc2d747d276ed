"""Logs that other tools wrote, one package a format; each comes back as a `trimtab.log.source.Source`.

Enters: a path. Leaves: the format that recognises it. Invariant: a new format is one package here and its name in
`FORMATS`; no package knows another but `steps`, what logs at step level share. What is asked of every format (its file
names, whether it knows a file) is answered by `__init__` of its package; what reads a log is loaded when one is opened.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from trimtab.log.source import Source

FORMATS: Final = ("rewind_jsonl", "tensorboard", "trainer_state", "metrics_jsonl", "metrics_csv", "text_logs")
"""Packages in this one, in the order in which they are asked, of a file and of a folder; each has the members of
`Format`. JSONL goes before CSV: an object that holds a loss is a plainer sign than a line that may be a header."""

HEAD_BYTES: Final = 4096
"""Bytes at the beginning of a file by which a format may know it."""


class Format(Protocol):
    """What the package of a format has."""

    FILE_NAMES: tuple[str, ...]
    """Names under which its logs are looked for in a folder, those to be read first in front."""

    def recognises(self, path: Path, head: bytes) -> bool:
        """Whether the file is a log of this format.

        Args:
            path: The file, for a format that a head does not settle.
            head: The first `HEAD_BYTES` of it, or all of a shorter one.

        Raises:
            OSError: The file cannot be read.
        """

    def open_source(self, path: Path) -> Source:
        """Opens a file that was recognised.

        Raises:
            LogError: It cannot be read, or is of another version.
        """

    def source_in(self, folder: Path) -> Source | None:
        """What the format makes of a folder in which no log has a usual name; None if nothing.

        Raises:
            LogError: A log is in it and cannot be read.
        """


def file_names() -> tuple[str, ...]:
    """Names under which logs of all formats are looked for in a folder."""
    return tuple(name for known in _formats() for name in known.FILE_NAMES)


def usual_files(folder: Path) -> list[Path]:
    """Files of a folder under the usual names of the first format of which there are any, in the order of these.

    Several are several runs, as their format names them; a file of another format is the same run told again.
    """
    for known in _formats():
        files = [folder / name for name in known.FILE_NAMES if (folder / name).is_file()]
        if files:
            return files
    return []


def other_files(folder: Path) -> list[Path]:
    """Files of a folder that `usual_files` passes over: under usual names of further formats."""
    read = usual_files(folder)
    named = [folder / name for name in file_names() if (folder / name).is_file()]
    return [file for file in named if file not in read and not any(map(file.samefile, read))]


def format_of(path: Path, head: bytes) -> Format | None:
    """The format that knows this file by its content, whatever its name; None if none does.

    Raises:
        OSError: The file cannot be read.
    """
    return next((known for known in _formats() if known.recognises(path, head)), None)


def source_in(folder: Path) -> Source | None:
    """What the first format that finds a log in a folder makes of it, whatever its name; None if none does.

    Raises:
        LogError: A log is in it and cannot be read.
    """
    found = (known.source_in(folder) for known in _formats())
    return next((source for source in found if source is not None), None)


def read_head(path: Path) -> bytes:
    """The first `HEAD_BYTES` of a file. Raises `OSError` where it cannot be read."""
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _formats() -> list[Format]:
    return [cast(Format, importlib.import_module(f"{__name__}.{name}")) for name in FORMATS]
