"""The folder that a demo leaves behind, and the way back to what was there before.

In goes the path that the user named; the folder is made, or taken over where it is empty or a former demo's. Nothing
that the demo did not write is ever replaced or removed. `undo` takes away what this demo made.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from trimtab.errors import UsageError

PLANTED: Final = "planted.json"
REPORT: Final = "report.json"
ROWS: Final = "rows.jsonl"
_FILES: Final = (PLANTED, REPORT, ROWS)
_RUNS: Final = "trimtab"


class DemoFolder:
    """One demo's folder: `trimtab/<run_id>/`, `planted.json`, `rows.jsonl`, `report.json`.

    Attributes:
        path: The folder.
    """

    def __init__(self, path: Path) -> None:
        """Makes the folder, or takes over an empty one or a former demo's.

        Raises:
            UsageError: If the path is something else, or cannot be made.
        """
        self.path = path
        _refuse_foreign(path)
        self._made = [folder for folder in (path, *path.parents) if not folder.exists()]
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"The folder {path} cannot be made ({error}): name another one with --out.") from error
        try:
            tempfile.TemporaryFile(dir=path).close()  # only the attempt knows: os.access overlooks mounts and quotas
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}): name another folder with --out.") from error
        self._former = {name: (path / name).read_bytes() for name in _FILES if (path / name).exists()}
        self._had_runs = (path / _RUNS).exists()

    def write_planted(self, document: str) -> None:
        """Writes `planted.json` and takes a former demo's report away, which belongs to other rows."""
        _write(self.path / PLANTED, document.encode())
        (self.path / REPORT).unlink(missing_ok=True)

    def write_rows(self, rows: Iterable[object]) -> Path:
        """Writes the dataset as `rows.jsonl`, one JSON value a line, and gives its path."""
        path = self.path / ROWS
        _write(path, "".join(json.dumps(row) + "\n" for row in rows).encode())
        return path

    def write_report(self, document: str) -> None:
        """Writes `report.json`."""
        _write(self.path / REPORT, document.encode())

    def undo(self, run_folder: Path | None) -> None:
        """Puts everything back as it was before this demo.

        Args:
            run_folder: The run folder that this demo made, if it came to that.
        """
        if run_folder is not None:
            shutil.rmtree(run_folder, ignore_errors=True)
        for name in _FILES:
            if name in self._former:
                _write(self.path / name, self._former[name])
            else:
                (self.path / name).unlink(missing_ok=True)
        # Innermost first, and only while they are empty: what somebody else put there meanwhile stays.
        for folder in (*(() if self._had_runs else (self.path / _RUNS,)), *self._made):
            try:
                folder.rmdir()
            except OSError:
                continue


def _refuse_foreign(path: Path) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not path.is_dir():
        raise UsageError(f"{path} is a file, not a folder: name another place with --out.")
    names = sorted(entry.name for entry in path.iterdir())
    if not names or _is_planted(path / PLANTED):
        return
    shown = ", ".join(ascii(name)[1:-1] for name in names[:5])
    raise UsageError(
        f"{path} holds {len(names)} {'entry' if len(names) == 1 else 'entries'} of no former demo "
        f"({shown}{', ...' if len(names) > 5 else ''}), and nothing there is overwritten: "
        "name another folder with --out, absent or empty."
    )


def _is_planted(path: Path) -> bool:
    """Whether the file is a `planted.json` as the demo writes it."""
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return False
    if not isinstance(document, dict) or set(document) != {"rows", "steps", "kinds"}:
        return False
    rows, steps, kinds = document["rows"], document["steps"], document["kinds"]
    return isinstance(rows, list) and isinstance(steps, list) and isinstance(kinds, dict) and len(rows) == len(steps)


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: a reader never sees half a file."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    unfinished.write_bytes(content)
    unfinished.replace(path)
