"""What a Trainer's checkpoint holds of a run: `checkpoint-N/trimtab_state.json`, beside the files of transformers.

Enters: a checkpoint's folder, and what `Run.state_dict` gave; or the file, which may have been through other people's
hands. Leaves: the file, whole or not at all; or a gate that goes on where the file was written. Invariants: all of a
file is looked at before anything of it is taken over; it is JSON, read up to a size, and nothing in it is ever run.
What an earlier training left in a folder is no state of this one.

A file of our own, because transformers gives a callback its state back as a new object, only if told to, and then
cannot go on from a checkpoint without one.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from trimtab.disk import NEW_SUFFIX, write_whole
from trimtab.errors import UsageError
from trimtab.notices import warn, warn_once
from trimtab.run import RunCore
from trimtab.strict_json import loads
from trimtab.torch.gate import Gate

STATE_NAME: Final = "trimtab_state.json"

MAX_SIZE_BYTES: Final = 4 << 20
"""Largest file that is read or written: a window of 160,000 losses, of up to 25 bytes each; 8 or 100 are usual."""


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Puts a run's state into a checkpoint. A disk that refuses it costs the state, and one line says so.

    Args:
        folder: The checkpoint, made where missing.
        state: What `Run.state_dict` gave.
    """
    data = json.dumps(state, allow_nan=False).encode("ascii")
    path, draft = folder / STATE_NAME, folder / (STATE_NAME + NEW_SUFFIX)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for left in (path, draft):  # by an earlier training, or one that was killed as it wrote
            left.unlink(missing_ok=True)
        if len(data) > MAX_SIZE_BYTES:  # nobody would read it
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        write_whole(path, data)
    except OSError as error:
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        warn_once(
            "hf",
            f"Trimtab's state is not in {folder} ({error.strerror}): a training that is resumed from there is a new "
            "run, and its guard begins with an empty window. Said once.",
            cause="state not saved",
        )


class SavedState:
    """What there is to go on with in the checkpoint that a training is resumed from."""

    def __init__(self, folder: Path) -> None:
        """Reads the file, if there is one.

        Args:
            folder: The checkpoint.

        Raises:
            UsageError: There is one and it is no JSON object.
        """
        self.folder = folder
        self._path = folder / STATE_NAME
        self._state = _read(self._path)

    def check(self, core: RunCore) -> None:
        """Refuses what `load` would refuse, before the trainer has loaded anything.

        Args:
            core: A run with the settings of the one that is to go on.

        Raises:
            UsageError: The state is damaged, or of another version, rule or settings; names the file.
        """
        if self._state is not None:
            with self._named():
                core.check_state(self._state)

    def load(self, gate: Gate) -> None:
        """Goes on where the checkpoint was saved: the same run, its next attempt, the same guard history.

        Args:
            gate: That of the run, in which nothing was recorded yet.

        Raises:
            UsageError: As `check`.
        """
        if self._state is not None:
            with self._named():
                gate.load_state_dict(self._state)
        elif gate.core.guard is not None and gate.core.is_first_rank:
            warn(
                "hf",
                f"{self.folder} holds no {STATE_NAME}: it was saved without Trimtab, or the file could not be written "
                "or was not copied. The guard begins with an empty window.",
            )

    @contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except UsageError as error:
            raise UsageError(f"{self._path}: {error} To leave it out, delete this file.") from error


def _read(path: Path) -> Any:
    """The object in a file; None where there is no such file."""
    try:
        if not path.is_file():  # opening a pipe would wait for whoever writes to it
            if path.exists() or path.is_symlink():
                raise _damaged(path, "no file")
            return None
        with path.open("rb") as file:
            data = file.read(MAX_SIZE_BYTES + 1)
    except OSError as error:
        raise _damaged(path, f"one that cannot be read ({error.strerror})") from error
    if len(data) > MAX_SIZE_BYTES:
        raise _damaged(path, f"more than {MAX_SIZE_BYTES} bytes")
    try:
        state = loads(data)
    except ValueError as error:
        raise _damaged(path, "no JSON, or NaN or a name twice in it") from error
    if not isinstance(state, dict):
        raise _damaged(path, "no JSON object")
    return state


def _damaged(path: Path, found: str) -> UsageError:
    return UsageError(
        f"{path}: found {found}, expected the state that Trimtab saved with this checkpoint. Take another checkpoint, "
        "or delete this file: the training is then a new run, and its guard begins with an empty window."
    )
