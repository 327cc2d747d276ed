"""A file of somebody else's checkpoint, opened, or why it is not.

Enters: a path. Leaves: an open file. Invariant: a pipe or a device is never opened, for whoever opens one may wait for
ever.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from trimtab import strict_json
from trimtab.text import plain


class Unsound(Exception):  # noqa: N818 - its text is the end of a sentence that begins with the file's name
    """A file that is not what it should be; the text says why, plain ASCII."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """An ordinary file that is not empty, to be read.

    Raises:
        Unsound: There is none, it is empty, or it cannot be read, then or later in the block.
    """
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise Unsound(f"is {'a folder' if stat.S_ISDIR(status.st_mode) else 'no ordinary file'}")
        if not status.st_size:
            raise Unsound("is empty (0 bytes)")
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise Unsound("is missing") from None
    except OSError as error:
        raise Unsound(f"cannot be read ({error.strerror or plain(str(error))})") from None


def read_json_object(
    path: Path, *, max_bytes: int, loads: Callable[[bytes], Any] = strict_json.loads
) -> dict[str, Any]:
    """A JSON file whose outermost value is an object.

    Args:
        path: The file.
        max_bytes: Largest size that is read.
        loads: Reads the JSON; `json.loads` for a file whose writer spells NaN as Python does.

    Raises:
        Unsound: It is none.
    """
    with opened(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > max_bytes:
            raise Unsound(f"has {size:,} bytes; more than {max_bytes:,} are not read")
        return json_object(file.read(), loads=loads)


def json_object(
    data: bytes, *, loads: Callable[[bytes], Any] = strict_json.loads, what: str = "is no JSON object"
) -> dict[str, Any]:
    """An object from JSON.

    Args:
        data: UTF-8.
        loads: As for `read_json_object`.
        what: The end of a sentence that says it is none.

    Raises:
        Unsound: It is none.
    """
    try:
        value = loads(data)
    except (ValueError, RecursionError):
        raise Unsound(f"{what}: it is torn, or something else was written over it") from None
    if not isinstance(value, dict):
        raise Unsound(what)
    return value
