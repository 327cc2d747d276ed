"""Which run's checkpoints are looked at in a folder that several runs saved into.

Enters: what each checkpoint of a folder says of itself. Leaves: those of one run, newest first, and what a user should
know of the others. Invariant: the run that saved last is the one with the highest serial, a count that each save raises
by one; neither the number of a step nor a clock says that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.doubt import with_doubts
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.lineage import with_abandoned
from trimtab.resume.listing import in_order_of_age
from trimtab.text import listed, plain

MAX_NAMED: Final = 5
"""Other runs that a notice tells one by one."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The checkpoints that may be resumed from.

    Attributes:
        candidates: Newest first, without those that the run was taken back behind. Those that do not say whose they
            are, as they are damaged, stand among them: a user is told of each that is newer than the one that is taken.
        run_id: The run; None where nobody has named it.
        left_out: Those without a manifest where others have one: nobody knows of which run they are. None is taken.
        notices: What a user should know, a sentence each; in plain ASCII.
    """

    candidates: tuple[CheckpointInfo, ...]
    run_id: str | None = None
    left_out: tuple[CheckpointInfo, ...] = ()
    notices: tuple[str, ...] = ()


def choose_run(infos: Iterable[CheckpointInfo], *, folder: Path, run_id: str | None) -> Choice:
    """The checkpoints of one run.

    Args:
        infos: All of a folder.
        folder: The folder, for an error.
        run_id: The run; None: the one that saved last.

    Raises:
        CheckpointError: There is none of that run.
    """
    infos = in_order_of_age(with_doubts(with_abandoned(infos)))
    known = [info for info in infos if info.serial is not None]
    damaged = [info for info in infos if info.serial is None and info.problem is not None]
    unknown = [info for info in infos if info.serial is None and info.problem is None]
    if run_id is not None:
        wanted = [info for info in known if info.run_id == run_id]
        if not wanted:
            raise CheckpointError(_no_such_run(folder, run_id, known))
        return _choice(run_id, wanted, damaged, unknown)
    if not known:
        return Choice(infos)
    last = max(known, key=lambda info: (info.serial or 0, info.step, info.run_id or ""))
    wanted = [info for info in known if info.run_id == last.run_id]
    return _choice(last.run_id, wanted, damaged, unknown, _on_others(last, known), _on_unknown(unknown))


def _choice(
    run_id: str | None,
    wanted: Sequence[CheckpointInfo],
    damaged: Sequence[CheckpointInfo],
    unknown: Sequence[CheckpointInfo],
    *notices: Sequence[str],
) -> Choice:
    abandoned = [info for info in wanted if info.abandoned]
    candidates = in_order_of_age([*(info for info in wanted if not info.abandoned), *damaged])
    return Choice(candidates, run_id, tuple(unknown), tuple(chain(_on_abandoned(abandoned), *notices)))


def told(run_id: str | None) -> str:
    """A run as a sentence has it."""
    return "a run without an id" if run_id is None else f"run {plain(run_id)}"


def _no_such_run(folder: Path, run_id: str, known: Sequence[CheckpointInfo]) -> str:
    there = f"It holds those of {_runs(known)}." if known else "None there says which run it is of."
    return f"{plain(str(folder))}: no checkpoint of {told(run_id)}. {there} Name one of those, or another folder."


def _runs(infos: Sequence[CheckpointInfo]) -> str:
    """The runs of checkpoints that come newest first, each with its newest one."""
    newest = {info.run_id: info for info in reversed(infos)}
    names = [f"{told(run_id)} (newest {plain(info.path.name)})" for run_id, info in sorted(newest.items(), key=_by_id)]
    return listed(names, most=MAX_NAMED)


def _by_id(run: tuple[str | None, CheckpointInfo]) -> str:
    return run[0] or ""


def _on_others(last: CheckpointInfo, known: Sequence[CheckpointInfo]) -> list[str]:
    others = [info for info in known if info.run_id != last.run_id]
    if not others:
        return []
    at_once = [info for info in others if info.serial == last.serial]
    why = "saved last" if not at_once else f"saved last, at once with {_runs(at_once)}, and is further on"
    return [
        f"the folder holds checkpoints of {_runs(others)} as well; those of {told(last.run_id)} are looked at, which "
        f"{why}. run_id= (--run-id of trimtab ckpt pick) chooses another"
    ]


def _on_abandoned(abandoned: Sequence[CheckpointInfo]) -> list[str]:
    if not abandoned:
        return []
    names = [plain(info.path.name) for info in abandoned]
    were = "was" if len(names) == 1 else "were"
    return [
        f"{listed(names, most=MAX_NAMED)} {were} left aside: the run was taken back to an earlier step since, "
        "and went on from there. Name one by its path to go on from it"
    ]


def _on_unknown(unknown: Sequence[CheckpointInfo]) -> list[str]:
    if not unknown:
        return []
    count = "1 checkpoint" if len(unknown) == 1 else f"{len(unknown)} checkpoints"
    return [
        f"{count} without a manifest (newest {plain(unknown[0].path.name)}) may be of any run and were left out; name "
        "one by its path to go on from it"
    ]
