"""Which checkpoint a chunk ends with, and whether it was written: of this run, after the last step, with all parts.

Enters: the evidence of the log, and the folder of the checkpoints. Leaves: the one to look at, if there is one, and the
gate `checkpoint_written`. Invariant: another run's, another step's or nobody's is never taken for the one that is
looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Gate, GateStatus
from trimtab.resume.examine import lacking
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import list_checkpoints, other_step
from trimtab.resume.manifest import MANIFEST_NAME, read_manifest
from trimtab.resume.names import DRAFT_NAME, Entries, scan, step_name
from trimtab.text import listed, plain

SAVE: Final = "save at the end of a chunk, after the step at which it stops"


@dataclass(frozen=True, slots=True)
class Choice:
    """What was found where the checkpoints are.

    Attributes:
        written: The gate.
        info: The checkpoint to look at, as its folder shows it; None where there is none.
        others: All of the folder.
    """

    written: Gate
    info: CheckpointInfo | None = None
    others: tuple[CheckpointInfo, ...] = ()


def nowhere(evidence: Evidence, missing: str) -> Choice:
    """No folder with checkpoints of the run was found; `missing` says why, as a sentence without a full stop."""
    if evidence.run_id is None:
        text = "the log names no run, so that no checkpoint can be told to be its own; --checkpoints DIR names a folder"
        return Choice(_gate("unknown", text))
    text = missing or f"no checkpoint of run {plain(evidence.run_id)} was found; --checkpoints DIR says where they are"
    # Where the run trained elsewhere they may have been left there: that none is here says nothing.
    return Choice(_gate("failed" if _is_here(evidence.log.header.out) else "unknown", text))


def choose(evidence: Evidence, folder: Path) -> Choice:
    """The checkpoint of the chunk's last step, of this run before any other.

    Raises:
        CheckpointError: The folder cannot be listed.
    """
    entries = scan(folder)
    infos = list_checkpoints(folder, entries=entries)
    step, run_id = evidence.chunk.last_step, evidence.run_id
    there = [info for info in infos if info.step == step]
    # Newest save first; without a serial it does not say whose it is.
    own = next((info for info in there if info.serial is not None and run_id in (None, info.run_id)), None)
    if own is not None:
        return Choice(_of_run(own, evidence), own, infos)
    nameless = next((info for info in there if info.serial is None), None)
    if nameless is not None:
        has_others = any(info.serial is not None and info.run_id == run_id for info in infos)
        return Choice(_of_nobody(nameless, has_others=has_others), nameless, infos)
    return Choice(_gate("failed", _none(evidence, folder, infos, entries), step=step))


def _of_run(info: CheckpointInfo, evidence: Evidence) -> Gate:
    name = plain(info.path.name)
    figures = {
        "path": str(info.path),
        "step": info.step,
        "run_id": info.run_id,
        "parts": list(info.parts),
        "missing": list(info.missing),
    }
    renamed = _renamed(info.path)
    if renamed is not None:
        return _gate("failed", f"{name}: {renamed}", **figures)
    if info.abandoned:
        text = f"{name} was left aside: its run was taken back to an earlier step since, and went on from there"
        return _gate("failed", text, **figures)
    if info.missing:
        return _gate("failed", f"{name} {lacking(info.missing)}", **figures)
    if evidence.run_id is None:
        text = f"{name} is of this step; whether it is of this run is not known, as the log names none"
        return _gate("unknown", text, **figures)
    return _gate("passed", f"{name} has {listed(map(plain, info.parts))}", **figures)


def _of_nobody(info: CheckpointInfo, *, has_others: bool) -> Gate:
    """There is one of this step that does not say whose it is; `has_others`: and others of the run do."""
    name, figures = plain(info.path.name), {"path": str(info.path), "step": info.step, "run_id": None}
    if info.problem is not None:
        return _gate("failed", f"{name}: {plain(info.problem)}", **figures)
    if has_others:
        text = f"{name} has no {MANIFEST_NAME}, which a save writes last, and others of this run have one; save again"
        return _gate("failed", text, **figures)
    text = (
        f"{name} has no {MANIFEST_NAME}: of which run it is, and what its bytes should be, is not known. Saves of "
        "trimtab.checkpoint.Checkpointer, and of a Trainer under trimtab.attach, have one"
    )
    return _gate("unknown", text, **figures)


def _none(evidence: Evidence, folder: Path, infos: Sequence[CheckpointInfo], entries: Entries) -> str:
    """Why there is none of this run at this step, and what to do."""
    step, run_id = evidence.chunk.last_step, evidence.run_id
    where, wanted = plain(str(folder)), f"no checkpoint of the chunk's last step, {step}"
    other = next((info for info in infos if info.step == step), None)
    if other is not None:
        of = "a run without an id" if other.run_id is None else f"run {plain(other.run_id)}"
        return f"{where}: {plain(other.path.name)} is of {of}, and there is {wanted}, of this run; {SAVE}"
    drafts = [plain(entry.path.name) for entry in entries.ignored if DRAFT_NAME.fullmatch(entry.path.name)]
    draft = next((name for name in drafts if name.startswith(f"{step_name(step)}.")), None)
    if draft is not None:
        return f"{where}: {draft} is a draft: the save of step {step} has not ended, or was killed"
    own = [info for info in infos if info.serial is not None and run_id in (None, info.run_id)]
    for info in own:
        if info.problem is not None and _saved_after(info.path) == step:
            return f"{where}: {wanted}, but {plain(info.path.name)}: {plain(info.problem)}"
    before = next((info for info in own if info.step < step), None)
    if before is None:
        return f"{where}: {wanted}, nor one of this run before it; {SAVE}, or name their folder with --checkpoints DIR"
    steps = "1 step" if step - before.step == 1 else f"{step - before.step:,} steps"
    return f"{where}: {wanted}; the newest of this run is {plain(before.path.name)}, {steps} before it: {SAVE}"


def _renamed(path: Path) -> str | None:
    """That it is called by another step than it was saved after; None if it is not."""
    step = _saved_after(path)
    return None if step is None else other_step(path, step)


def _saved_after(path: Path) -> int | None:
    with suppress(CheckpointError):
        return read_manifest(path).step
    return None


def _is_here(out: str | None) -> bool:
    """Whether the folder that a run named for its output when it began is on this machine."""
    try:
        return out is None or Path(out).exists()
    except (OSError, ValueError):  # no name that this system takes
        return False


def _gate(status: GateStatus, text: str, **figures: object) -> Gate:
    return Gate(name="checkpoint_written", status=status, text=text, figures=figures)
