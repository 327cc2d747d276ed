"""`OUT/history.jsonl`: one row a line of every segment, step and evaluation; written on, and never over.

In go rows, out come lines of strict JSON in ASCII (numbers that are not finite are text). Invariants: what stands in
the file stays as it is, byte for byte; a last line that a killed process tore is closed by a line end; one process
writes at a time; a disk that fails costs rows, which is said, and neither a step nor a save.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import OptimConfig
from recipes.twin_moe.console import Tell, reason
from trimtab.text import plain
from trimtab.torch.run import StepOutcome
from trimtab.values import GRADIENTLESS, json_number

if sys.platform != "win32":
    import fcntl

NAME: Final = "history.jsonl"

SCALES: Final[Mapping[str, str]] = {
    "loss": "ce + lbl_weighted + z_weighted + xpop_weighted, mean over the micro-batches that were kept",
    "ce": "nats a token, mean over the micro-batches that were kept",
    "lbl": "mean over layers, Switch: 1 at balance; mean over all micro-batches of the step",
    "z": "mean over layers of the mean of logsumexp(router logits)^2; mean over all micro-batches of the step",
    "z_mean": "z under the name by which trimtab rewind knows its scale",
    "xpop": "mean over layers, cosine between the populations' weights",
    "grad_norm": "2-norm of all gradients before clipping",
    "tokens_per_s": "over the steps since the last write, or of an evaluation since the last one",
}
"""What the columns are measured on: a part of the record, for figures on another scale are not comparable."""


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
        """Opens the file to write on, which keeps other processes from it until `close`.

        Raises:
            ConfigError: Another process trains into this folder.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
        except OSError as error:
            self._say_failure(error)
            return
        try:
            _lock(fd, self.path)
            self._is_torn = _ends_torn(fd)
        except ConfigError:
            os.close(fd)
            raise
        except OSError as error:
            self._say_failure(error)
        self._fd = fd

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
                f"history: {plain(str(self.path))} cannot be written ({reason(error)}): rows are missing from it. "
                "Training and saves go on; this is not said again"
            )


class Measured(NamedTuple):
    """One step before its figures are on the host.

    Attributes:
        step: The optimizer step (1-based).
        outcome: What became of it.
        sums: (4,) float64 on the device: over the micro-batches the sum of the losses that backward was called on, and
            of lbl, z, xpop without their weights.
    """

    step: int
    outcome: StepOutcome
    sums: torch.Tensor


def step_rows(
    measured: list[Measured],
    *,
    accumulation: int,
    optim: OptimConfig,
    segment: int | None,
    run_id: str | None,
    tokens_per_s: float | None,
    device_memory_bytes: int | None,
) -> list[dict[str, Any]]:
    """The rows of some steps; brings their figures to the host at once, which waits for the device.

    Args:
        measured: The steps.
        accumulation: Micro-batches of each.
        optim: The terms' weights.
        segment: Their segment.
        run_id: Their run.
        tokens_per_s: Over all of them.
        device_memory_bytes: The most that was taken on the device up to now; None on the CPU.
    """
    if not measured:
        return []
    sums = torch.stack([entry.sums for entry in measured]).cpu().tolist()
    rows = []
    for (step, outcome, _), (total, *terms) in zip(measured, sums, strict=True):
        num_kept = accumulation - outcome.num_skipped_micros
        # What backward was called on is divided by `accumulation`, and 0 where the guard left it out; so is the loss.
        scale = None if outcome.reason in GRADIENTLESS else accumulation / num_kept
        lbl, z, xpop = (term / accumulation for term in terms)
        rows.append(
            {
                "kind": "step",
                "segment": segment,
                "run_id": run_id,
                "step": step,
                "loss": None if scale is None else total * scale,
                "ce": None if scale is None else outcome.loss * scale,
                "lbl": lbl,
                "z": z,
                "z_mean": z,  # a name that says the scale: `trimtab rewind` takes a z without it for a sum over layers
                "xpop": xpop,
                "lbl_weighted": optim.lbl_weight * lbl,
                "z_weighted": optim.z_weight * z,
                "xpop_weighted": optim.xpop_weight * xpop,
                "lr": outcome.lr,
                "grad_norm": outcome.grad_norm,
                "tokens_per_s": tokens_per_s,
                "device_memory_bytes": device_memory_bytes,
                "reason": outcome.reason,
                "num_skipped_micros": outcome.num_skipped_micros,
            }
        )
    return rows


def _spelled(value: Any) -> Any:
    """A row as strict JSON has it: numbers that are not finite as text."""
    if isinstance(value, Mapping):
        return {str(name): _spelled(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(entry) for entry in value]
    return json_number(value) if isinstance(value, float) else value


def _lock(fd: int, path: Path) -> None:
    """Keeps other processes out; what is no file, or on a file system without locks, is written to all the same."""
    if sys.platform == "win32" or not stat.S_ISREG(os.fstat(fd).st_mode):
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ConfigError(
            f"{plain(str(path))} is being written by another process, which trains into this folder: wait for it, end "
            "it, or give another --out."
        ) from error
    except OSError:
        return


def _ends_torn(fd: int) -> bool:
    """Whether the last line has no end."""
    size = os.fstat(fd).st_size
    if not size:
        return False
    os.lseek(fd, size - 1, os.SEEK_SET)
    return os.read(fd, 1) != b"\n"
