"""Where checkpoints are, and from which one a training goes on: `OUT/segment_<n>/step_<k>`.

A segment is one run from its beginning; `--fresh` begins the next one, and nothing of an older one is touched. In go
the folder and what was asked for, out comes a `Start`. Invariant: a name counts whole (`segment_2`, never `segment_02`
or `segment_2_old`), numbers are compared as numbers, and no time of a file decides anything.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.history import Call
from trimtab.checkpoint import Checkpointer, CheckpointError, CheckpointInfo, verify

_NAME: Final = re.compile(r"segment_([1-9][0-9]{0,8})")

_MOST_REASONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """One segment.

    Attributes:
        number: From 1.
        folder: Where its checkpoints are; it may not be there yet.
    """

    number: int
    folder: Path

    def has_checkpoints(self) -> bool:
        """Whether it holds what looks like a checkpoint."""
        return Checkpointer(self.folder).has_checkpoints()


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """How a training starts.

    Attributes:
        segment: Where it saves.
        resume: The checkpoint to go on from, weights, moments and all; None: there is none.
        step: Steps that are behind it; 0 where there is none.
        weights: The checkpoint whose weights alone are taken; None: there is none.
        remarks: What is to be said of the choice, a sentence each.
    """

    segment: Segment
    resume: CheckpointInfo | Path | None = None
    step: int = 0
    weights: CheckpointInfo | Path | None = None
    remarks: tuple[str, ...] = ()


def path_of(checkpoint: CheckpointInfo | Path) -> Path:
    """Where a checkpoint is, whether it was named or picked."""
    return checkpoint.path if isinstance(checkpoint, CheckpointInfo) else checkpoint


def segments(out: Path) -> list[Segment]:
    """The segments in a folder, ascending; none where it is not there."""
    found = [
        Segment(number=int(named[1]), folder=path)
        for path in (out.iterdir() if out.is_dir() else ())
        if (named := _NAME.fullmatch(path.name)) is not None and path.is_dir()
    ]
    return sorted(found, key=lambda segment: segment.number)


def choose_start(
    out: Path, *, resume_from: Path | None = None, base_checkpoint: Path | None = None, fresh: bool = False
) -> Start:
    """How to start in a folder.

    Args:
        out: The folder.
        resume_from: A checkpoint to go on from, or a folder of checkpoints, in this folder or in another one.
        base_checkpoint: A checkpoint whose weights to begin from, or a folder of checkpoints.
        fresh: Whether to begin the next segment.

    Returns:
        The start. Without any of the three: from the newest verified checkpoint of the newest segment, or from the
        beginning where there is none.

    Raises:
        ConfigError: They do not go together, or what was named is not there.
        CheckpointError: The checkpoint to go on from is unhealthy and was not named by its path, or none is whole.
    """
    if resume_from is not None and (fresh or base_checkpoint is not None):
        other = "--fresh" if fresh else "--base-ckpt"
        raise ConfigError(
            f"--resume-from goes on with a run, and {other} begins one: give one of them. --base-ckpt takes a "
            "checkpoint's weights, and begins the schedule anew."
        )
    there = segments(out)
    newest = there[-1] if there else _numbered(out, 1)
    following = _numbered(out, newest.number + 1) if there else newest
    if resume_from is not None:
        return _named_start(resume_from, there, free=following if newest.has_checkpoints() else newest)
    if fresh:
        return Start(segment=following, weights=_named(base_checkpoint, option="--base-ckpt"))
    if not newest.has_checkpoints():
        return Start(segment=newest, weights=_named(base_checkpoint, option="--base-ckpt"))
    if base_checkpoint is not None:
        raise ConfigError(
            f"--base-ckpt begins a run, and {newest.folder} has checkpoints of one already: add --fresh to "
            "begin the next segment, or leave --base-ckpt out to go on with it."
        )
    picked = _picked(newest.folder)
    return Start(segment=newest, resume=picked, step=picked.step)


def left_behind(start: Start, call: Call | None) -> str | None:
    """What a call without any of the three does not go on with: a call that was ended before its first save.

    Args:
        start: What `choose_start` gave.
        call: The newest call of its segment, by the history.

    Returns:
        A sentence that names both ways on; None where nothing is left behind.
    """
    left = _left(start, call)
    if left is None:
        return None
    option, source = left
    again = f"{option} {source} does that again"
    if start.resume is None:
        return f"the last call here began from {source} and was ended before it saved: this one begins anew; {again}"
    return (
        f"the last call here went back to {source} and was ended before it saved: this one goes on from "
        f"{path_of(start.resume).name}; {again}"
    )


def after_interrupt(start: Start, call: Call | None, *, last: int, same: str) -> str:
    """What to call once a call was interrupted.

    Args:
        start: What `choose_start` gives a call without any of the three.
        call: The newest call of its segment, by the history.
        last: The step to which it trains.
        same: The call that was interrupted, in words, without those of the three that it had.
    """
    left = _left(start, call)
    before = " before its first save" if start.resume is None or left is not None else ""
    if start.resume is None:
        does = f"begins segment {start.segment.number} anew"
    elif start.step >= last:
        does = f"has nothing left to train: {path_of(start.resume)} is saved"
    else:
        does = f"goes on from {path_of(start.resume)}"
    again = "" if left is None else f"; {' '.join(left)} does that again"
    return f"interrupted{before}: {same} {does}{again}"


def _left(start: Start, call: Call | None) -> tuple[str, str] | None:
    """The option and the checkpoint of a call that was ended before its first save; None where there is none."""
    if call is None or start.weights is not None:
        return None
    option, source = ("--resume-from", call.resumed_from) if call.resumed_from else ("--base-ckpt", call.weights_from)
    if source is None or not Path(source).exists():
        return None
    if start.resume is not None and (
        not isinstance(start.resume, CheckpointInfo) or _is_of(start.resume, call, segment=start.segment)
    ):
        return None
    return option, source


def _is_of(info: CheckpointInfo, call: Call, *, segment: Segment) -> bool:
    """Whether a checkpoint is what a call went on from, or has saved, or one before that."""
    begins, last = call.begins_at_step, call.last_step
    if info.step < begins or Path(call.resumed_from or "").resolve().parent != segment.folder.resolve():
        return True
    # Steps are written before they are saved; where an older call went back to the same step, the steps decide.
    is_saver = info.resumed_from is not None and info.resumed_from.step == begins - 1
    return is_saver and last is not None and last >= info.step


def _numbered(out: Path, number: int) -> Segment:
    return Segment(number=number, folder=out / f"segment_{number}")


def _named_start(resume_from: Path, there: list[Segment], *, free: Segment) -> Start:
    """Goes on from what was named: in its own segment, or as a branch in a free one."""
    chosen = _named(resume_from, option="--resume-from")
    assert chosen is not None
    step = chosen.step if isinstance(chosen, CheckpointInfo) else _whole_step(chosen)
    place = path_of(chosen).resolve().parent
    own = next((segment for segment in there if segment.folder.resolve() == place), None)
    if own is None:
        remark = f"{path_of(chosen)} is of another folder: what follows is saved in {free.folder}"
        return Start(segment=free, resume=chosen, step=step, remarks=(remark,))
    if own != there[-1]:
        remark = (
            f"goes on in segment {own.number}; segment {there[-1].number} is newer, and a call without --resume-from "
            "goes on there"
        )
        return Start(segment=own, resume=chosen, step=step, remarks=(remark,))
    return Start(segment=own, resume=chosen, step=step)


def _whole_step(path: Path) -> int:
    """The step of a checkpoint that was named; one that is damaged, or lacks what a resume needs, is refused."""
    report = verify(path)
    if report.missing and not report.problems:
        raise CheckpointError(
            f"{path}: lacks {', '.join(report.missing)}, so that no training can go on from it. --base-ckpt {path} "
            "begins from its weights alone, with the schedule anew."
        )
    if not report.ok or report.step is None:
        raise CheckpointError(f"{path}: {'; '.join(report.problems) or 'its step is not known'}. Name another one.")
    return report.step


def _named(path: Path | None, *, option: str) -> CheckpointInfo | Path | None:
    """A checkpoint that was named; of a folder of checkpoints the newest that is whole, and healthy."""
    if path is None:
        return None
    if not path.exists():
        raise ConfigError(f"{option} {path}: there is nothing; name a checkpoint, as OUT/segment_1/step_100.")
    within = segments(path)
    folder = within[-1].folder if within else path
    return _picked(folder) if Checkpointer(folder).has_checkpoints() else path


def _picked(folder: Path) -> CheckpointInfo:
    """The newest checkpoint of a folder that is complete and whole; one that is unhealthy is refused."""
    checkpointer = Checkpointer(folder)
    info = checkpointer.pick()
    if info.healthy is not False:
        return info
    why = "; ".join(info.unhealthy_because[:_MOST_REASONS]) or "its manifest does not say why"
    try:
        last = checkpointer.pick(healthy=True)
        instead = f"The last healthy one is {last.path}: go on from it with --resume-from {last.path}"
    except CheckpointError:
        instead = "There is no healthy one before it: begin the next segment with --fresh"
    raise CheckpointError(
        f"{info.path}, the newest checkpoint, is not healthy. {instead}, or from the newest all the same with "
        f"--resume-from {info.path}. Why: {why}."
    )
