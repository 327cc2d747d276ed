"""The checkpoint that a chunk ends with, looked at once for all gates that are about it.

    folder -> all of it -> that of the chunk's last step, of this run before any other -> every byte -> its round trip

Enters: the evidence of the log, and the folder of the checkpoints. Leaves: a `LookedAt`. Invariants: another run's, or
another step's, is never taken for the one that is looked for; all gates judge one and the same save, whatever is saved
meanwhile; nothing in a checkpoint is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from trimtab.analysis.trouble import Found, found_in
from trimtab.errors import CheckpointError
from trimtab.gates.evidence import Evidence
from trimtab.gates.pick_healthy import against
from trimtab.resume.checksum import Progress
from trimtab.resume.examine import Examined, examine
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import GONE, list_checkpoints
from trimtab.resume.manifest import read_manifest
from trimtab.resume.names import Ignored, scan
from trimtab.resume.round_trip import RoundTripFacts, round_trip_in
from trimtab.resume.select import why_not
from trimtab.text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Trips:
    """What the log has on the round trip of a checkpoint.

    Attributes:
        own: The last event about this very save; None where there is none.
        other: The last event about another save of this name; None where there is none.
        is_current: Whether that was made in the attempt that trained the chunk's last step, or later.
        is_strange: Whether an event of the kind stands there that no round trip writes.
    """

    own: RoundTripFacts | None = None
    other: RoundTripFacts | None = None
    is_current: bool = False
    is_strange: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The checkpoint that is judged.

    Attributes:
        info: What it says of itself, with the doubts that others cast on it; what is wrong with its files `found` has.
        found: What is in it, every byte of it.
        trips: Its round trip.
        why_not: Why it is none to go on from, by itself, by those beside it or by the log; None where it is one.
    """

    info: CheckpointInfo
    found: Examined
    trips: Trips
    why_not: str | None

    @property
    def name(self) -> str:
        """What it is called, in plain ASCII."""
        return plain(self.info.path.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class LookedAt:
    """What stands where the checkpoints are.

    Attributes:
        folder: The folder that holds them; None where none was found.
        looked_in: The folder in which that was looked for, and in those in it; None where nobody looked.
        infos: All checkpoints in it, newest first, of whatever runs.
        ignored: What else stands in it.
        chosen: The one that is judged; None where there is none.
        last_healthy: The newest one of this run, from before the chunk's last step, that is known to be healthy and
            complete, as far as that is known without its bytes; None where there is none.
        misnamed: One of this run that was saved after the chunk's last step and is called by another, where none is
            chosen.
    """

    folder: Path | None
    looked_in: Path | None = None
    infos: tuple[CheckpointInfo, ...] = ()
    ignored: tuple[Ignored, ...] = ()
    chosen: Chosen | None = None
    last_healthy: CheckpointInfo | None = None
    misnamed: CheckpointInfo | None = None


def look_for_checkpoint(
    evidence: Evidence, folder: Path | None, *, looked_in: Path | None = None, progress: Progress | None = None
) -> LookedAt:
    """Looks for the checkpoint of a chunk's last step, and at every byte of it.

    Args:
        evidence: What the log says.
        folder: The folder that holds the checkpoints; None where none was found.
        looked_in: The folder in which that was looked for; None: nobody looked.
        progress: Called now and then with how many more bytes were read.

    Raises:
        CheckpointError: The folder cannot be listed.
    """
    if folder is None:
        return LookedAt(folder=None, looked_in=looked_in)
    entries = scan(folder)
    infos = list_checkpoints(folder, entries=entries)
    info = _choose(infos, evidence)
    log_has = found_in(evidence.runs, evidence.health)
    run_id = evidence.run_id if evidence.run_id is not None or info is None else info.run_id
    before = [one for one in infos if one.step < evidence.chunk.last_step and one.run_id == run_id]
    return LookedAt(
        folder=folder,
        looked_in=looked_in,
        infos=infos,
        ignored=entries.ignored,
        chosen=None if info is None else _look_at(info, log_has, evidence, progress),
        last_healthy=next((one for one in before if _is_sound(one, log_has)), None),
        misnamed=_misnamed(infos, evidence) if info is None else None,
    )


def is_of_run(info: CheckpointInfo, evidence: Evidence) -> bool:
    """Whether a checkpoint is the run's, as far as that can be told; without a serial it does not say whose it is."""
    return info.serial is not None and evidence.run_id in (None, info.run_id)


def _choose(infos: Sequence[CheckpointInfo], evidence: Evidence) -> CheckpointInfo | None:
    there = [info for info in infos if info.step == evidence.chunk.last_step]
    # The newest save of a step comes first.
    own = next((info for info in there if is_of_run(info, evidence)), None)
    return own or next((info for info in there if info.serial is None), None)


def _misnamed(infos: Sequence[CheckpointInfo], evidence: Evidence) -> CheckpointInfo | None:
    for info in infos:
        if info.problem is not None and is_of_run(info, evidence):
            with suppress(CheckpointError):
                if read_manifest(info.path).step == evidence.chunk.last_step:
                    return info
    return None


def _is_sound(info: CheckpointInfo, log_has: Found) -> bool:
    return not info.missing and not info.abandoned and _why_not(info, log_has) is None


def _why_not(info: CheckpointInfo, log_has: Found) -> str | None:
    return why_not(info, doubts=lambda one: against(log_has, one.step))


def _look_at(info: CheckpointInfo, log_has: Found, evidence: Evidence, progress: Progress | None) -> Chosen:
    try:
        found = examine(info.path, needs=(), progress=progress)
    except CheckpointError:
        found = Examined(info=info, manifest=None, problems=(GONE,))
    if info.serial is not None:
        # As it is now; of the others of its folder, and so of what they tell of this one, nothing was read again.
        info = replace(
            found.info,
            step=info.step,
            doubt=info.doubt if found.info.healthy else None,
            abandoned=info.abandoned,
        )
    return Chosen(info=info, found=found, trips=_trips(found, evidence), why_not=_why_not(info, log_has))


def _trips(found: Examined, evidence: Evidence) -> Trips:
    step, crc32, name = evidence.chunk.last_step, found.manifest_crc32, plain(found.info.path.name)
    own = other = None
    is_current = is_strange = False
    for event, _, attempt in evidence.told.round_trips:
        said = round_trip_in(event.facts)
        if said is None:
            is_strange |= event.step in (step, step + 1)  # behind a step the next one is under way
        elif crc32 is not None and (said.manifest_crc32, said.step) == (crc32, step):
            own = said
        elif said.name == name and said.step in (None, step):
            other, is_current = said, attempt is not None and attempt >= evidence.chunk.attempts[-1]
    return Trips(own=own, other=other, is_current=is_current, is_strange=is_strange)
