"""Whether the checkpoint that a chunk ends with was written: of this run, after the last step, with all parts.

Enters: the evidence of the log, and what was found where the checkpoints are. Leaves: the gate `checkpoint_written`.
Invariant: it fails where a save should be and is none, and says what stands there instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from trimtab.analysis.remarks import count
from trimtab.gates.evidence import Evidence
from trimtab.gates.looked_at import Chosen, LookedAt, is_of_run
from trimtab.gates.values import Judged
from trimtab.resume.examine import lacking
from trimtab.resume.listing import other_step
from trimtab.resume.manifest import MANIFEST_NAME
from trimtab.resume.names import DRAFT_NAME, step_name
from trimtab.text import listed, plain

SAVE: Final = "save at the end of a chunk, after the step at which it stops"

MAX_PATH: Final = 1_000
"""Characters of a path out of a log."""


def checkpoint_written(evidence: Evidence, looked_at: LookedAt) -> Judged:
    """Whether a checkpoint of this run was written after the chunk's last step, with all that a resume needs."""
    if looked_at.folder is None:
        return _nowhere(evidence, looked_at)
    if looked_at.chosen is None:
        return Judged("failed", _none(evidence, looked_at, looked_at.folder), {"step": evidence.chunk.last_step})
    if looked_at.chosen.info.serial is None:
        has_others = any(info.serial is not None and info.run_id == evidence.run_id for info in looked_at.infos)
        return _of_nobody(looked_at.chosen, has_others=has_others)
    return _of_run(looked_at.chosen, evidence)


def _nowhere(evidence: Evidence, looked_at: LookedAt) -> Judged:
    """No folder with checkpoints of the run was found."""
    if evidence.run_id is None:
        text = "the log names no run, so that no checkpoint can be told to be its own; --checkpoints DIR names a folder"
        return Judged("unknown", text)
    if looked_at.looked_in is None:
        text = f"no checkpoint of run {plain(evidence.run_id)} was looked for; --checkpoints DIR says where they are"
        return Judged("unknown", text)
    none = f"no checkpoint of this run is in {plain(str(looked_at.looked_in))}, or in the folders in there"
    written_to = evidence.log.header.out
    if written_to is not None and not _is_same(looked_at.looked_in, written_to):
        # That none is here says nothing of the run: its log may have been copied without them.
        text = (
            f"{none}, and its log was written in {plain(written_to[:MAX_PATH])}, where they may still be: name the "
            "folder that holds them with --checkpoints DIR"
        )
        return Judged("unknown", text)
    return Judged("failed", f"{none}: {SAVE}, or name the folder that holds them with --checkpoints DIR")


def _is_same(folder: Path, named: str) -> bool:
    """Whether a folder is the one that a log names, by whatever links; it may name what it likes."""
    try:
        return os.path.realpath(folder) == os.path.realpath(named)
    except (OSError, ValueError):  # no name that this system takes
        return False


def _of_run(chosen: Chosen, evidence: Evidence) -> Judged:
    info, name = chosen.info, chosen.name
    figures = {
        "path": str(info.path),
        "step": info.step,
        "run_id": info.run_id,
        "parts": list(info.parts),
        "missing": list(info.missing),
    }
    manifest = chosen.found.manifest
    renamed = None if manifest is None else other_step(info.path, manifest.step)
    if renamed is not None:
        return Judged("failed", f"{name}: {renamed}", figures)
    if info.abandoned:
        text = f"{name} was left aside: its run was taken back to an earlier step since, and went on from there"
        return Judged("failed", text, figures)
    if info.missing:
        return Judged("failed", f"{name} {lacking(info.missing)}", figures)
    if evidence.run_id is None:
        text = f"{name} is of this step; whether it is of this run is not known, as the log names none"
        return Judged("unknown", text, figures)
    return Judged("passed", f"{name} has {listed(map(plain, info.parts))}", figures)


def _of_nobody(chosen: Chosen, *, has_others: bool) -> Judged:
    """There is one of this step that does not say whose it is; `has_others`: and others of the run do."""
    info, name = chosen.info, chosen.name
    figures = {"path": str(info.path), "step": info.step, "run_id": None}
    if info.problem is not None:
        return Judged("failed", f"{name}: {plain(info.problem)}", figures)
    if has_others:
        text = f"{name} has no {MANIFEST_NAME}, which a save writes last, and others of this run have one; save again"
        return Judged("failed", text, figures)
    text = (
        f"{name} has no {MANIFEST_NAME}: of which run it is, and what its bytes should be, is not known. Saves of "
        "trimtab.checkpoint.Checkpointer, and of a Trainer under trimtab.attach, have one"
    )
    return Judged("unknown", text, figures)


def _none(evidence: Evidence, looked_at: LookedAt, folder: Path) -> str:
    """Why there is none of this run at this step, and what to do."""
    step, infos = evidence.chunk.last_step, looked_at.infos
    where, wanted = plain(str(folder)), f"no checkpoint of the chunk's last step, {step}"
    other = next((info for info in infos if info.step == step), None)
    if other is not None:
        of = "a run without an id" if other.run_id is None else f"run {plain(other.run_id)}"
        return f"{where}: {plain(other.path.name)} is of {of}, and there is {wanted}, of this run; {SAVE}"
    draft = _draft((entry.path for entry in looked_at.ignored), step)
    if draft is not None:
        return f"{where}: {draft} is a draft: the save of step {step} has not ended, or was killed"
    misnamed = looked_at.misnamed
    if misnamed is not None and misnamed.problem is not None:
        return f"{where}: {wanted}, but {plain(misnamed.path.name)}: {plain(misnamed.problem)}"
    before = next((info for info in infos if info.step < step and is_of_run(info, evidence)), None)
    if before is None:
        return f"{where}: {wanted}, nor one of this run before it; {SAVE}, or name their folder with --checkpoints DIR"
    steps = count(step - before.step, "step")
    return f"{where}: {wanted}; the newest of this run is {plain(before.path.name)}, {steps} before it: {SAVE}"


def _draft(places: Iterable[Path], step: int) -> str | None:
    names = (place.name for place in places if DRAFT_NAME.fullmatch(place.name))
    return next((name for name in names if name.startswith(f"{step_name(step)}.")), None)
