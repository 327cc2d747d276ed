"""What each checkpoint of a folder says of itself, and which run each is of; no payload is read.

Enters: a folder. Leaves: a `CheckpointInfo` for each checkpoint by its name. Invariant: a checkpoint that vanishes
meanwhile, or that says nonsense, is one with a problem, and no error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.info import CheckpointInfo, SaverName
from trimtab.resume.manifest import Manifest, read_manifest
from trimtab.resume.names import CheckpointName, Form, scan
from trimtab.resume.parts import in_order, missing_parts
from trimtab.resume.verify import find_size_problems, has_manifest, no_manifest, other_step

GONE: Final = "removed while it was looked at"


def list_checkpoints(folder: str | os.PathLike[str]) -> tuple[CheckpointInfo, ...]:
    """All checkpoints of a folder, newest first, of whatever runs; sizes are compared, and no payload is read.

    Args:
        folder: The folder that holds them.

    Returns:
        One value each; `problem` says what is wrong with one, as far as that shows without reading its payload.

    Raises:
        CheckpointError: There is no such folder, or it cannot be listed.
    """
    infos = []
    for name in scan(folder).found:
        info, manifest = look_at(name)
        if manifest is not None and info.problem is None:
            info = replace(info, problem=next(iter(find_size_problems(name.path, manifest)), None))
        infos.append(info)
    return in_order_of_age(infos)


def look_at(name: CheckpointName) -> tuple[CheckpointInfo, Manifest | None]:
    """What a checkpoint says of itself, and its manifest; None where it has none that can be read."""
    info = CheckpointInfo(path=name.path, step=name.step, healthy=None, saver=_SAVERS[name.form], promise="structure")
    if name.form == "file":
        return info, None
    try:
        if has_manifest(name.path):
            manifest = read_manifest(name.path)
            info = info_of(name.path, manifest)
            if manifest.step != name.step:
                info = replace(info, step=name.step, problem=other_step(name, manifest.step))
            return info, manifest
    except CheckpointError as error:
        return replace(info, promise="checksums", problem=_gone(name.path) or unusable(error)), None
    return replace(info, problem=_gone(name.path) or (no_manifest(name.path) if name.form == "folder" else None)), None


def info_of(path: Path, manifest: Manifest) -> CheckpointInfo:
    """A checkpoint as its manifest describes it."""
    return CheckpointInfo(
        path=path,
        step=manifest.step,
        healthy=manifest.healthy,
        unhealthy_because=manifest.unhealthy_because,
        run_id=manifest.run_id,
        serial=manifest.serial,
        saver=manifest.saver,
        parts=in_order(name for name, files in manifest.parts.items() if files),
        missing=missing_parts(manifest.parts),
        loss=manifest.loss,
        lr=manifest.lr,
        size_bytes=sum(entry.size_bytes for entry in manifest.files),
    )


def in_order_of_age(infos: Iterable[CheckpointInfo]) -> tuple[CheckpointInfo, ...]:
    """Checkpoints, the highest step first.

    Of several of one step the one that was saved last comes first; a copy says that it was saved when its original
    was, and the original is the one without further zeros in its number.
    """
    return tuple(sorted(infos, key=lambda info: (-info.step, -(info.serial or 0), len(info.path.name), info.path.name)))


def unusable(error: CheckpointError) -> str:
    """What is wrong with a checkpoint whose manifest cannot be read."""
    return f"cannot be used: {error}"


def is_gone(path: Path) -> bool:
    """Whether a checkpoint that was listed is not there any more."""
    return not os.path.lexists(path)


def _gone(path: Path) -> str | None:
    return GONE if is_gone(path) else None


_SAVERS: Final[dict[Form, SaverName]] = {"folder": "trimtab", "hf": "transformers", "file": "file"}
