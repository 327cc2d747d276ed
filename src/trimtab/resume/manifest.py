"""The manifest of a checkpoint: what it holds, how large each file is, and the checksum of each.

Enters: what a saver knows; or the bytes of a `trimtab_manifest.json`, which may have been through other people's hands.
Leaves: a `Manifest`, or a `CheckpointError` that says what is wrong with the file. Invariants: the manifest is written
last, and is under a checksum of its own; a path in it never leads out of the checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

MANIFEST_NAME: Final = "trimtab_manifest.json"

Saver = Literal["trimtab", "transformers"]
"""Who wrote the files of a checkpoint: `Checkpointer`, or the Trainer that `trimtab.attach` watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint.

    Attributes:
        path: Relative to the checkpoint's folder, with "/" between its parts.
        size_bytes: Its size.
        crc32: `zlib.crc32` of its content.
    """

    path: str
    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        saver: Who wrote the files.
        step: Optimizer step after which it was saved.
        run_id: The run that saved it; None where nobody named it.
        serial: The place of this save among all in its folder, from 1: a clock that does not jump. The run with the
            highest one is the folder's newest, whatever the clocks of the machines said.
        parts: What this run has, by name (`trimtab.resume.parts`), and the files that hold it.
        files: Every file of the checkpoint but the manifest itself.
        world_size: Ranks that saved it.
        healthy: Whether no weight or moment is non-finite that was finite when the run began, and nothing that watches
            the run called it broken.
        unhealthy_because: Why it is not, a sentence each; none where it is.
        loss: The loss that the saver logged; None where there is none.
        lr: Learning rate of each parameter group; none where no optimizer was saved.
        saved_at: Seconds since the epoch, for people: nothing is decided by it.
        versions: Name of a package and its version, of those that saved it.
        facts: Further JSON-ready facts of the saver's own.
    """

    saver: Saver
    step: int
    run_id: str | None
    serial: int
    parts: Mapping[str, tuple[str, ...]]
    files: tuple[FileEntry, ...]
    world_size: int = 1
    healthy: bool = True
    unhealthy_because: tuple[str, ...] = ()
    loss: float | None = None
    lr: tuple[float, ...] = ()
    saved_at: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
