"""`OUT/history.jsonl`: one row a line, written on and never over.

In go rows, out come lines of strict JSON in ASCII (numbers that are not finite are text). Invariants: what stands in
the file stays as it is, byte for byte; a last line that a killed process tore is closed by a line end; a disk that
fails costs rows, which is said, and neither a step nor a save. One process writes at a time: `recipes.twin_moe.folder`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

from recipes.twin_moe.console import Tell, reason

NAME: Final = "history.jsonl"


class History:
    """Writes rows at the end of one file.

    Args:
        path: The file; made by the first row.
        tell: What to do with a line for the person who waits.
    """

    def __init__(self, path: Path, *, tell: Tell) -> None:
        self.path = path
        self._tell = tell
        self._fd: int | None = None
        self._is_torn = False
        self._has_failed = False

    def open(self) -> None:
        """Opens the file to write on, in a folder that is there; a failure is said. Never raises."""
        try:
            self._fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
            self._is_torn = _ends_torn(self._fd)
        except Exception as error:  # noqa: BLE001 - telemetry never costs a save
            self._say_failure(error)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Writes rows; a failure is said once, and the next call tries again. Never raises."""
        if self._fd is None or not rows:
            return
        try:
            lines = "".join(f"{json.dumps(_spelled(row), allow_nan=False)}\n" for row in rows)
            # A line that was torn is closed first: what stands there stays, and the next row has a line of its own.
            data = (b"\n" if self._is_torn else b"") + lines.encode("ascii")
            while data:
                written = os.write(self._fd, data)
                self._is_torn = not data[:written].endswith(b"\n")
                data = data[written:]
        except Exception as error:  # noqa: BLE001 - telemetry never costs a save
            self._say_failure(error)

    def __enter__(self) -> Self:
        """Opens it."""
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Lets it go."""
        self.close()

    def close(self) -> None:
        """Lets the file go; a second call does nothing."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _say_failure(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._tell(
                f"history: {self.path} cannot be written ({reason(error)}): rows are missing from it. "
                "Training and saves go on; this is not said again"
            )


class Call(NamedTuple):
    """What the history says of a call that trained.

    Attributes:
        resumed_from: The checkpoint that it went on from; None: none.
        weights_from: The checkpoint whose weights it began from; None: none.
        begins_at_step: Its first step.
        last_step: The last step that it wrote; None: it wrote none.
    """

    resumed_from: str | None
    weights_from: str | None
    begins_at_step: int
    last_step: int | None


def newest_call(path: Path, *, segment: int) -> Call | None:
    """The newest call of a segment; None where the history does not tell. Never raises for what is in the file."""
    call = None
    with suppress(OSError):
        if path.is_file():  # and no device, of which there is no end
            with path.open("rb") as file:
                for row in filter(None, map(_row, file)):
                    if row.get("segment") == segment:
                        call = _after(call, row)
    return call


def _after(call: Call | None, row: Mapping[str, Any]) -> Call | None:
    """What is known of the newest call once a row is read, too."""
    if row.get("kind") == "segment":
        resumed_from, weights_from, begins = (
            row.get(name) for name in ("resumed_from", "weights_from", "begins_at_step")
        )
        return Call(
            resumed_from=resumed_from if isinstance(resumed_from, str) else None,
            weights_from=weights_from if isinstance(weights_from, str) else None,
            begins_at_step=begins if isinstance(begins, int) else 1,
            last_step=None,
        )
    if call is not None and row.get("kind") == "step" and isinstance(row.get("step"), int):
        return call._replace(last_step=row["step"])
    return call


def _row(line: bytes) -> Mapping[str, Any] | None:
    """A row; None where a killed process tore the line, or it is nothing of ours."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, Mapping) else None


def _spelled(value: Any) -> Any:
    """A row as strict JSON has it: numbers that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(name): _spelled(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _ends_torn(fd: int) -> bool:
    """Whether the last line has no end."""
    size = os.fstat(fd).st_size
    if not size:
        return False
    os.lseek(fd, size - 1, os.SEEK_SET)
    return os.read(fd, 1) != b"\n"
