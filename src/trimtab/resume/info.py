"""What selection says of a checkpoint: plain values, for a program and for a report.

Enters: nothing. Leaves: `CheckpointInfo`, `VerifyReport`. Invariant: what stands here was found out before; a value
reads no file.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from trimtab.resume.manifest import ResumedFrom
from trimtab.resume.names import Ignored
from trimtab.values import json_number

Promise = Literal["checksums", "structure"]
"""What holding means: every byte is what was saved; or, without a manifest, lengths and layout are right."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A checkpoint that was looked at and not taken.

    Attributes:
        path: Where it is.
        reason: Why, as a phrase; in plain ASCII.
    """

    path: Path
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointInfo:
    """One checkpoint, as `pick` found it, or as a list shows it.

    Attributes:
        path: The folder, or the file.
        step: Optimizer step after which it was saved.
        healthy: Whether it was healthy when it was saved; None where no manifest says.
        unhealthy_because: Why it was not, a sentence each.
        unhealthy_since: Last step at which all of that was known to be well; None where nobody knows, and where it is
            healthy.
        doubt: Why it is none to go on from though it was healthy when it was saved, of a list or a choice; None where
            nothing speaks against it.
        run_id: The run that saved it; None where nobody named one, or no manifest says.
        serial: The place of its save among all in its folder; None where no manifest says.
        resumed_from: The load that its saver went on from; None where there was none, or no manifest says.
        abandoned: Whether its run was taken back behind it since, and went on from there: such a one is never picked,
            and still loads by its path.
        saver: Who wrote the files: "trimtab", "transformers", or "file" for somebody's own loop.
        parts: What it holds, by name; empty where that was not looked up.
        missing: What a resume lacks, by name.
        promise: "checksums" where a manifest holds them, else "structure".
        loss: The loss that the saver logged.
        lr: Learning rate of each parameter group.
        size_bytes: Bytes of its files; None where that was not looked up.
        problem: What is wrong with it, as far as it was looked at; None if nothing is.
        refused: Newer ones that were looked at and not taken.
        ignored: What else stands in the folder, the first 1,000 entries.
        num_ignored: How many entries that is in all.
        notices: What a user should know of the choice, a sentence each; in plain ASCII.
    """

    path: Path
    step: int
    healthy: bool | None
    unhealthy_because: tuple[str, ...] = ()
    unhealthy_since: int | None = None
    doubt: str | None = None
    run_id: str | None = None
    serial: int | None = None
    resumed_from: ResumedFrom | None = None
    abandoned: bool = False
    saver: str = "trimtab"
    parts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    promise: Promise = "checksums"
    loss: float | None = None
    lr: tuple[float, ...] = ()
    size_bytes: int | None = None
    problem: str | None = None
    refused: tuple[Refused, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    num_ignored: int = 0
    notices: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `ckpt pick --json`; non-finite numbers are strings."""
        return {
            "version": 1,
            "path": str(self.path),
            "step": self.step,
            "healthy": self.healthy,
            "unhealthy_because": list(self.unhealthy_because),
            "unhealthy_since": self.unhealthy_since,
            "doubt": self.doubt,
            "run_id": self.run_id,
            "serial": self.serial,
            "resumed_from": None if self.resumed_from is None else asdict(self.resumed_from),
            "abandoned": self.abandoned,
            "saver": self.saver,
            "parts": list(self.parts),
            "missing": list(self.missing),
            "promise": self.promise,
            "loss": json_number(self.loss),
            "lr": [json_number(rate) for rate in self.lr],
            "size_bytes": self.size_bytes,
            "problem": self.problem,
            "refused": [{"path": str(entry.path), "reason": entry.reason} for entry in self.refused],
            "ignored": [{"path": str(entry.path), "reason": entry.reason} for entry in self.ignored],
            "num_ignored": self.num_ignored,
            "notices": list(self.notices),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What `verify` found in one checkpoint.

    Attributes:
        path: The folder, or the file.
        step: The step that its manifest says, else its name; None where neither does.
        ok: Whether every promise holds; what a resume lacks is in `missing`, and is no damage.
        problems: What is wrong, a sentence each; in plain ASCII.
        needs_pickle: Whether all of `problems` are that nothing but pickle would load a file: no damage was found.
        notes: What is no damage and yet worth a line.
        promise: "checksums" where a manifest holds them, else "structure".
        healthy: Whether it was healthy when it was saved; None where no manifest says.
        parts: What it holds, by name.
        missing: What a resume lacks, by name.
        num_files: Files that were looked at.
        size_bytes: Bytes that they should have, by the manifest; without one, that they have.
    """

    path: Path
    step: int | None
    ok: bool
    problems: tuple[str, ...] = ()
    needs_pickle: bool = False
    notes: tuple[str, ...] = ()
    promise: Promise = "checksums"
    healthy: bool | None = None
    parts: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    num_files: int = 0
    size_bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """One entry of the JSON document of `ckpt verify --json`."""
        return {
            "version": 1,
            "path": str(self.path),
            "step": self.step,
            "ok": self.ok,
            "problems": list(self.problems),
            "needs_pickle": self.needs_pickle,
            "notes": list(self.notes),
            "promise": self.promise,
            "healthy": self.healthy,
            "parts": list(self.parts),
            "missing": list(self.missing),
            "num_files": self.num_files,
            "size_bytes": self.size_bytes,
        }
