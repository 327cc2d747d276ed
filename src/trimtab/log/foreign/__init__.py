"""Logs that other tools wrote, one module a format; each comes back as a `trimtab.log.source.Source`.

Enters: a path. Leaves: the format that recognises it. Invariant: a new format is one module here and its name in
`FORMATS`; what is asked of every format (its file names, whether it knows a file) is answered by its module, and costs
no reading and no database until it is.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol, cast

if TYPE_CHECKING:
    from trimtab.log.source import Source

FORMATS: Final = ("rewind_jsonl",)
"""Modules of this package, in the order in which they are asked; each has the members of `Format`."""

HEAD_BYTES: Final = 4096
"""Bytes at the beginning of a file by which a format may know it."""


class Format(Protocol):
    """What the module of a format has."""

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


def file_names() -> tuple[str, ...]:
    """Names under which logs of all formats are looked for in a folder."""
    return tuple(name for module in _formats() for name in module.FILE_NAMES)


def format_of(path: Path, head: bytes) -> Format | None:
    """The format that knows this file by its content, whatever its name; None if none does.

    Raises:
        OSError: The file cannot be read.
    """
    return next((module for module in _formats() if module.recognises(path, head)), None)


def read_head(path: Path) -> bytes:
    """The first `HEAD_BYTES` of a file. Raises `OSError` where it cannot be read."""
    with path.open("rb") as file:
        return file.read(HEAD_BYTES)


def _formats() -> list[Format]:
    return [cast(Format, importlib.import_module(f"{__name__}.{name}")) for name in FORMATS]
