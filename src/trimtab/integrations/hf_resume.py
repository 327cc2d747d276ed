"""Before a Trainer loads a checkpoint: whether it is whole, healthy, of the right run, and the same on every rank.

Enters: what `resume_from_checkpoint` came to on each rank. Leaves: what there is to go on with, or the same error on
every rank, which says what to resume from instead. Invariants: nothing of the checkpoint is loaded or changed here;
whoever names a checkpoint gets it unless it is damaged or incomplete; where transformers would begin a part anew (the
optimizer, if its file is missing) and not say so, it is refused.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.integrations.hf_checkpoint import STATE_NAME, SavedState
from trimtab.notices import say, warn
from trimtab.resume.describe import last_serial
from trimtab.resume.doubt import short
from trimtab.resume.examine import Examined, examine
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.manifest import MANIFEST_NAME, Manifest, ResumedFrom, read_manifest
from trimtab.resume.runs import choose_run, told
from trimtab.resume.select import instead_of
from trimtab.run import RunCore
from trimtab.text import listed, plain
from trimtab.torch.checkpoint_ranks import RanksTogether
from trimtab.torch.health import Nonfinite, nonfinite_from_state

BASELINE: Final = "nonfinite_at_start"
"""Fact of a manifest: entries of weights and moments that were not finite when the run began."""

_NEEDED: Final = ("optimizer", "scheduler", "step")
"""Parts without which transformers begins anew without saying so, or ends in an error that does not name them. Without
a model it says so itself; without the random numbers it goes on, and is not the same training."""

_MAX_PROBLEMS: Final = 3

ModelToGive = Callable[[Path], str | None]
"""The model that a trainer needs to go on from a checkpoint, as code; None where it has that."""


@dataclass(frozen=True, slots=True)
class ResumeSource:
    """What a training goes on with: the same on every rank, but for the state, which each reads from its own disk.

    Attributes:
        state: The run's state in its checkpoint; None where the training begins anew.
        load: Which step is loaded, and what stands in the trainer's folder by then; None likewise.
        baseline: What was not finite when the run began; None where its checkpoint does not say, or it begins anew.
    """

    state: SavedState | None = None
    load: ResumedFrom | None = None
    baseline: Mapping[str, Nonfinite] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    """What one process sees of the checkpoint that it is to resume from.

    Attributes:
        name: What it is called; None where the training begins anew.
        load: As in `ResumeSource`.
        baseline: Likewise.
        told: What to say of it, a line each.
        warned: What to warn of.
    """

    name: str | None = None
    load: ResumedFrom | None = None
    baseline: Mapping[str, Nonfinite] | None = None
    told: tuple[str, ...] = ()
    warned: tuple[str, ...] = ()


def look_before_resuming(
    find: Callable[[], Path | None],
    *,
    out: Path,
    is_named: bool,
    reads: bool,
    check_fit: Callable[[Path], None],
    model_to_give: ModelToGive,
    ranks: RanksTogether,
    core: RunCore,
) -> ResumeSource:
    """Looks at the checkpoint that a training is to go on from; among several ranks one collective.

    Args:
        find: Finds its folder; None: the training begins anew, on this rank.
        out: The folder that the trainer saves into.
        is_named: Whether the user named it: the newest one was asked for otherwise.
        reads: Whether this process reads all of it: one of those that share a disk has to, and the first of all does.
        check_fit: Refuses one from which the trainer would not load all there is.
        model_to_give: The model that the trainer needs to go on from one, as code; None where it has that.
        ranks: The processes that are to agree.
        core: A run with the settings of the one that is to go on.

    Returns:
        What is there to go on with.

    Raises:
        CheckpointError: It is damaged, incomplete or (if it was not named) not healthy, another run's or one that its
            run was taken back behind; or it cannot be read, or would be loaded in part; or the ranks would resume from
            different ones. The same on every rank.
        UsageError: The run's state in it is damaged, or of other settings; likewise.
    """
    state: SavedState | None = None

    def look() -> _Look:
        nonlocal state
        found = find()
        if found is None:
            return _Look()
        # A folder that is not there the trainer tells of itself.
        seen = (
            _look(found, out=out, is_named=is_named, model_to_give=model_to_give)
            if reads and found.is_dir()
            else _Look(name=found.name)
        )
        check_fit(found)
        state = SavedState(found)
        state.check(core)
        return seen

    # Whatever fails on one rank, the others wait for its word.
    looks = ranks.of_all(look)
    _refuse_different([seen.name for seen in looks])
    first = looks[0]
    if ranks.is_first:
        for line in first.told:
            say("hf", line)
        for line in first.warned:
            warn("hf", line)
    return ResumeSource(state, first.load, first.baseline)


def _refuse_different(names: list[str | None]) -> None:
    """Refuses on every rank what the ranks would not all resume from."""
    differing = next((rank for rank, name in enumerate(names) if name != names[0]), None)
    if differing is not None:
        raise CheckpointError(
            f"The ranks would not resume from the same checkpoint: rank 0 from {_spelled(names[0])}, rank {differing} "
            f"from {_spelled(names[differing])}. Nothing was loaded. Give every rank the same resume_from_checkpoint, "
            "and the checkpoint to every machine."
        )


def _spelled(name: str | None) -> str:
    return "none" if name is None else plain(name)


def _look(folder: Path, *, out: Path, is_named: bool, model_to_give: ModelToGive) -> _Look:
    rng = _rng_files(folder)
    # The guard's history may be deleted, as its own errors advise; of the random numbers see below.
    optional = (STATE_NAME, *rng)
    found = examine(folder, needs=_NEEDED, optional=optional, most=_MAX_PROBLEMS + 1)
    manifest = found.manifest
    instead = functools.partial(_instead, folder, found, model_to_give=model_to_give)
    _refuse_incomplete(folder, found, instead=instead)
    _refuse_damaged(folder, found, instead=instead)
    if manifest is not None and not is_named:
        _refuse_left_aside(folder, manifest)
    warned = []
    if "rng" in found.info.missing or not all(os.path.lexists(folder / file) for file in rng):
        what = f"{plain(str(folder))} lacks random numbers: what goes on is not bit-identical (dropout, a shuffle)"
        warned.append(_overridden(what, folder, is_named=is_named, instead=instead))
    if manifest is not None and not manifest.healthy:
        what = f"{plain(str(folder))} is not healthy: {short(manifest.unhealthy_because)}"
        warned.append(_overridden(what, folder, is_named=is_named, instead=instead))
    return _Look(
        name=folder.name,
        load=ResumedFrom(step=found.step or 0, serial=last_serial(out)),
        baseline=None if manifest is None else _baseline(folder, manifest),
        told=() if manifest is not None else (_no_manifest(folder),),
        warned=tuple(warned),
    )


def _rng_files(folder: Path) -> tuple[str, ...]:
    with suppress(CheckpointError):  # of what is wrong with a manifest `examine` tells
        return read_manifest(folder).parts.get("rng", ())
    return ()


def _baseline(folder: Path, manifest: Manifest) -> dict[str, Nonfinite]:
    return nonfinite_from_state(manifest.facts.get(BASELINE, {}), where=plain(str(folder / MANIFEST_NAME)))


def _no_manifest(folder: Path) -> str:
    return (
        f"{plain(str(folder))} has no {MANIFEST_NAME}: it was saved without Trimtab, or its save was cut off at its "
        "end. Its files have the right lengths and layout; a changed byte may not show, and whether it is healthy is "
        "not known."
    )


def _refuse_damaged(folder: Path, found: Examined, *, instead: Callable[[], str]) -> None:
    if found.problems:
        more = "; and more" if len(found.problems) > _MAX_PROBLEMS else ""
        problems = "; ".join(found.problems[:_MAX_PROBLEMS])
        raise CheckpointError(_refusal(f"{plain(str(folder))} is damaged: {problems}{more}", instead))


def _refuse_incomplete(folder: Path, found: Examined, *, instead: Callable[[], str]) -> None:
    if found.missing:
        what = (
            f"{plain(str(folder))} has no {listed(found.missing)}, as save_only_model=True leaves it: transformers "
            "would begin with new ones and say nothing. To begin a new training from its weights, load them with "
            "from_pretrained"
        )
        raise CheckpointError(_refusal(what, instead))


def _refuse_left_aside(folder: Path, manifest: Manifest) -> None:
    """Refuses the highest number, which transformers takes, where what was saved last went on from elsewhere."""
    candidates = choose_run(list_checkpoints(folder.parent), folder=folder.parent, run_id=None).candidates
    if any(info.path.name == folder.name for info in candidates):
        return
    newest = next(info for info in candidates if info.serial is not None)
    name = plain(newest.path.name)
    if newest.run_id == manifest.run_id:
        why = f"its run was taken back to an earlier step since; its newest checkpoint from there on is {name}"
    else:
        why = (
            f"is of {told(manifest.run_id)}; the newest run in its folder is {plain(str(newest.run_id))}, whose newest "
            f"checkpoint is {name}"
        )
    raise CheckpointError(
        f"{plain(str(folder))} has the highest number and {why}. Nothing was loaded. Name the one that is meant: "
        f"{_call(newest.path)}, or {_call(folder)}."
    )


def _overridden(what: str, folder: Path, *, is_named: bool, instead: Callable[[], str]) -> str:
    """What to warn of where the user named the checkpoint; refused where the newest was asked for."""
    if is_named:
        return f"{what}. It was named, so the training goes on from it."
    raise CheckpointError(f"{_refusal(what, instead)} To go on from it all the same, name it: {_call(folder)}.")


def _refusal(what: str, instead: Callable[[], str]) -> str:
    return f"{what.rstrip('.')}. Nothing was loaded. {instead()}"


def _instead(folder: Path, found: Examined, *, model_to_give: ModelToGive) -> str:
    """Which checkpoint to take instead, and the whole of what that takes: no refusal leads into the next one."""
    info = instead_of(folder, found.info.run_id)
    if info is None:
        return "No other checkpoint beside it is whole: begin anew, or copy it again from where it came from."
    kind = "healthy" if info.healthy else "whole"
    model = model_to_give(info.path)
    first = f"give the Trainer {model}, then " if model is not None else ""
    return f"The last {kind} one is {plain(info.path.name)}: {first}{_call(info.path)}."


def _call(folder: Path) -> str:
    return f"trainer.train(resume_from_checkpoint={plain(str(folder))!r})"
