"""Before a Trainer loads a checkpoint: whether it is whole, healthy, of the right run, and the same on every rank.

Enters: what `resume_from_checkpoint` came to on each rank. Leaves: what there is to go on with, or the same error on
every rank, which says what to resume from instead. Invariants: nothing of the checkpoint is loaded or changed here;
whoever names a checkpoint gets it unless it is damaged or incomplete; where transformers would begin a part anew (the
optimizer, if its file is missing) and not say so, it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from trimtab.errors import CheckpointError
from trimtab.integrations.hf_checkpoint import STATE_NAME, SavedState
from trimtab.notices import say, warn
from trimtab.resume.manifest import MANIFEST_NAME, Manifest, read_manifest
from trimtab.resume.parts import listed
from trimtab.resume.select import list_checkpoints, pick
from trimtab.resume.verify import find_problems, verify
from trimtab.run import RunCore
from trimtab.text import plain
from trimtab.torch.ranks import Ranks

_NEEDED: Final = ("optimizer", "scheduler", "step")
"""Parts without which transformers begins anew without saying so, or ends in an error that does not name them. Without
a model it says so itself; without the random numbers it goes on, and is not the same training."""

_MAX_PROBLEMS: Final = 3


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """What a training goes on with.

    Attributes:
        manifest: What its checkpoint says of itself; None where it says nothing, or the training begins anew.
        state: The run's state in its checkpoint; None where the training begins anew.
    """

    manifest: Manifest | None = None
    state: SavedState | None = None


@dataclass(frozen=True, slots=True)
class _Look:
    """What one process sees of the checkpoint that it is to resume from.

    Attributes:
        manifest: What it says of itself; None where it says nothing.
        told: What to say of it, a line each.
        warned: What to warn of.
    """

    manifest: Manifest | None = None
    told: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()


def look_before_resuming(
    found: Path | None, *, is_named: bool, reads: bool, ranks: Ranks, core: RunCore
) -> ResumeSource:
    """Looks at the checkpoint that a training is to go on from; among several ranks one collective.

    Args:
        found: Its folder; None: the training begins anew, on this rank.
        is_named: Whether the user named it: the newest one was asked for otherwise.
        reads: Whether this process reads all of it: one of those that share a disk has to.
        ranks: The processes that are to agree.
        core: A run with the settings of the one that is to go on.

    Returns:
        What is there to go on with.

    Raises:
        CheckpointError: It is damaged, incomplete or (if it was not named) not healthy or another run's; or the ranks
            would resume from different ones. The same on every rank.
        UsageError: The run's state in it is damaged, or of other settings.
    """
    error, look = "", _Look()
    try:
        if found is not None and found.is_dir():  # else the trainer says so itself
            look = _look(found, is_named=is_named, reads=reads)
    except CheckpointError as refused:
        error = str(refused)
    _agree(None if found is None else found.name, error, ranks=ranks)
    if ranks.rank == 0:
        for line in look.told:
            say("hf", line)
        for line in look.warned:
            warn("hf", line)
    state = SavedState(found) if found is not None else None
    if state is not None:
        state.check(core)
    return ResumeSource(look.manifest, state)


def _agree(name: str | None, error: str, *, ranks: Ranks) -> None:
    """Raises on every rank what any of them has found, the first one's."""
    told: list[Any] = [(name, error)]
    if not ranks.alone:
        told = [None] * ranks.world_size
        dist.all_gather_object(told, (name, error), group=ranks.group)
    errors = [error for _, error in told if error]
    if errors:
        raise CheckpointError(errors[0])
    names = [name for name, _ in told]
    if len(set(names)) > 1:
        differing = next(rank for rank, other in enumerate(names) if other != names[0])
        raise CheckpointError(
            f"The ranks would not resume from the same checkpoint: rank 0 from {_spelled(names[0])}, rank {differing} "
            f"from {_spelled(names[differing])}. Nothing was loaded. Give every rank the same resume_from_checkpoint, "
            "and the checkpoint to every machine."
        )


def _spelled(name: str | None) -> str:
    return "none" if name is None else plain(name)


def _look(folder: Path, *, is_named: bool, reads: bool) -> _Look:
    if not (folder / MANIFEST_NAME).exists():
        return _without_manifest(folder) if reads else _Look()
    try:
        manifest = read_manifest(folder)
    except CheckpointError as error:
        raise CheckpointError(_refusal(f"{error}", folder)) from error
    told = () if is_named else _compare_with_newest(folder, manifest)
    _refuse_incomplete(folder, (name for name, files in manifest.parts.items() if not files))
    if reads:
        _refuse_damaged(folder, list(find_problems(folder, _as_there(folder, manifest))))
    return _Look(manifest, told=told, warned=_check_health(folder, manifest, is_named=is_named))


def _without_manifest(folder: Path) -> _Look:
    report = verify(folder)
    _refuse_damaged(folder, report.problems)
    _refuse_incomplete(folder, report.missing)
    line = (
        f"{plain(str(folder))} has no {MANIFEST_NAME}: it was saved without Trimtab, or its save was cut off at its "
        "end. Its files have the right lengths and layout; a changed byte may not show, and whether it is healthy is "
        "not known."
    )
    return _Look(told=(line,))


def _as_there(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest, without the guard's history where somebody has deleted it, as that file's own errors advise."""
    if (folder / STATE_NAME).exists():
        return manifest
    return replace(manifest, files=tuple(entry for entry in manifest.files if entry.path != STATE_NAME))


def _refuse_damaged(folder: Path, problems: Iterable[str]) -> None:
    found = list(problems)
    if not found:
        return
    more = f"; and {len(found) - _MAX_PROBLEMS} more" if len(found) > _MAX_PROBLEMS else ""
    told = "; ".join(found[:_MAX_PROBLEMS])
    raise CheckpointError(_refusal(f"{plain(str(folder))} is damaged: {told}{more}", folder))


def _refuse_incomplete(folder: Path, missing: Iterable[str]) -> None:
    lacks = [name for name in missing if name in _NEEDED]
    if not lacks:
        return
    found = (
        f"{plain(str(folder))} has no {listed(lacks)}, as save_only_model=True leaves it: transformers would begin "
        "with new ones and say nothing. To begin a new training from its weights, load them with from_pretrained"
    )
    raise CheckpointError(_refusal(found, folder))


def _check_health(folder: Path, manifest: Manifest, *, is_named: bool) -> tuple[str, ...]:
    """What to warn of in a checkpoint that is not healthy; refused where the newest was asked for."""
    if manifest.healthy:
        return ()
    because = plain("; ".join(manifest.unhealthy_because))
    found = f"{plain(str(folder))} is not healthy: {because}"
    if is_named:
        return (f"{found}. It was named, so the training goes on from it.",)
    raise CheckpointError(_refusal(found, folder, or_this=True))


def _compare_with_newest(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """Holds the highest number, which transformers takes, against what was saved last.

    Returns:
        What to say where that is another one of the same run.

    Raises:
        CheckpointError: It is another run's.
    """
    known = [info for info in list_checkpoints(folder.parent) if info.serial is not None and info.run_id is not None]
    newest = max(known, key=lambda info: info.serial or 0, default=None)
    if newest is None or manifest.run_id is None or newest.path.name == folder.name:
        return ()
    if newest.run_id == manifest.run_id:
        line = (
            f"{plain(str(folder))} has the highest number, and {plain(newest.path.name)} was saved after it: the run "
            f"was taken back. If that is the one that is meant, name it: {_call(newest.path)}."
        )
        return (line,)
    raise CheckpointError(
        f"{plain(str(folder))} has the highest number and is of run {manifest.run_id}; the newest run in its folder is "
        f"{newest.run_id}, whose newest checkpoint is {plain(newest.path.name)}. Nothing was loaded. Name the one that "
        f"is meant: {_call(newest.path)}, or {_call(folder)}."
    )


def _refusal(found: str, folder: Path, *, or_this: bool = False) -> str:
    """Says what was found, and which checkpoint to take instead."""
    this = f" To go on from it all the same, name it: {_call(folder)}." if or_this else ""
    return f"{found.rstrip('.')}. Nothing was loaded. {_instead(folder)}{this}"


def _instead(folder: Path) -> str:
    for healthy in (True, False):
        try:
            info = pick(folder.parent, healthy=healthy)
        except CheckpointError:
            continue
        if info.path.name != folder.name:
            kind = "healthy" if healthy else "whole"
            return f"The last {kind} one is {plain(info.path.name)}: {_call(info.path)}."
    return "No other checkpoint beside it is whole: begin anew, or copy it again from where it came from."


def _call(folder: Path) -> str:
    return f"trainer.train(resume_from_checkpoint={plain(str(folder))!r})"
