"""Whether the chunk's checkpoint was loaded again while its training was still there, and what the loaded model says.

    events `round_trip` of the log -> the one with the checksum of the manifest on disk -> two gates

Enters: a checkpoint that was examined, and the evidence of the log. Leaves: the gates `round_trip` and
`generation_probe`. Invariant: an event speaks for the very save that is on disk now and for no other, whatever step and
name it tells; one of somebody else's making is none.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Final, NamedTuple

from trimtab.errors import CheckpointError
from trimtab.gates.evidence import Evidence
from trimtab.gates.values import Gate
from trimtab.resume.examine import Examined
from trimtab.resume.manifest import manifest_checksum
from trimtab.resume.names import OURS
from trimtab.resume.round_trip import ProbeFacts, RoundTripFacts
from trimtab.text import listed, plain

MAX_DIFFERENCES: Final = 3
"""Differences told in a sentence; --json has those that the log has."""

HOW_TO_RECORD: Final = (
    "call trimtab.checkpoint.round_trip(checkpoint, build=..., model=..., optimizer=..., run=run) behind the last save "
    "of a chunk, in the training itself"
)

_GO_BACK: Final = "do not go on from this one; an earlier one: trimtab ckpt pick --healthy"

_SHAPES: Final = {
    "uniform": "every token is as likely as any other: weights that were not restored, or a head that nothing reaches",
    "one-hot": "one token takes all: the logits ran away, or a scale was restored twice",
    "nonfinite": "logits are not finite: weights are NaN or infinite, or the precision overflows",
}
"""What the shapes of a broken model mean; "peaked" and "flat" are those of a sound one."""

_SOUND: Final = ("peaked", "flat")


class _Told(NamedTuple):
    """What the log has on the round trip of a checkpoint.

    Attributes:
        trip: The last event about this very save; None where there is none.
        other: The last event about another save of this name; None where there is none.
        is_current: Whether that was made in the attempt that trained the chunk's last step, or later.
        is_strange: Whether an event of the kind stands there that no round trip writes.
    """

    trip: RoundTripFacts | None
    other: RoundTripFacts | None
    is_current: bool
    is_strange: bool


def round_trip(found: Examined, evidence: Evidence) -> Gate:
    """Whether a model built afresh and loaded from the checkpoint was the live one to the last bit."""
    told, name = _look(found, evidence), plain(found.info.path.name)
    if told.trip is None:
        return _not_made(found, told)
    figures = told.trip.to_facts()
    if not told.trip.same:
        more = told.trip.num_differences - MAX_DIFFERENCES
        differences = [
            *map(plain, told.trip.differences[:MAX_DIFFERENCES]),
            *([f"and {more:,} more"] if more > 0 else []),
        ]
        what = ", loaded again, is not what was saved" if told.trip.parts else " could not be loaded again"
        text = f"{name}{what}: {'; '.join(differences) or 'no reason told'}; {_GO_BACK}"
        return Gate(name="round_trip", status="failed", text=text, figures=figures)
    if "model" not in told.trip.parts:
        text = f"the round trip of {name} says that it compared no model, and so says nothing of it; {HOW_TO_RECORD}"
        return Gate(name="round_trip", status="unknown", text=text, figures=figures)
    text = f"loaded into a fresh model and the same to the last bit: {listed(map(plain, told.trip.parts), most=12)}"
    return Gate(name="round_trip", status="passed", text=text, figures=figures)


def generation_probe(found: Examined, evidence: Evidence) -> Gate:
    """Whether the model as loaded gives finite logits that are neither uniform nor one-hot."""
    trip, name = _look(found, evidence).trip, plain(found.info.path.name)
    if trip is None:
        text = f"no round trip of this save of {name} is in the log: see round_trip"
        return Gate(name="generation_probe", status="unknown", text=text)
    if trip.probe is None:
        why = "was not asked" if trip.probe_problem is None else f"could not answer: {plain(trip.probe_problem)}"
        text = f"the model loaded from {name} {why}; give round_trip(..., probe_ids=...) token ids of held-out text"
        return Gate(name="generation_probe", status="unknown", text=text)
    probe, figures = trip.probe, trip.probe.to_facts()
    if probe.num_nonfinite or probe.shape in _SHAPES:
        shape = "nonfinite" if probe.num_nonfinite else probe.shape
        text = f"{name}, loaded again: {_SHAPES[shape]} ({_in_words(probe)}); {_GO_BACK}"
        return Gate(name="generation_probe", status="failed", text=text, figures=figures)
    if probe.shape not in _SOUND or not (math.isfinite(probe.entropy) and math.isfinite(probe.cv)):
        text = f"the probe in the log is none that trimtab.checkpoint.round_trip writes ({_in_words(probe)})"
        return Gate(name="generation_probe", status="unknown", text=text, figures=figures)
    return Gate(name="generation_probe", status="passed", text=_in_words(probe), figures=figures)


def _look(found: Examined, evidence: Evidence) -> _Told:
    path, step = found.info.path, evidence.chunk.last_step
    crc32 = None
    with suppress(CheckpointError):
        crc32 = manifest_checksum(path)
    trip = other = None
    is_current = is_strange = False
    for event, _, attempt in evidence.round_trips:
        said = RoundTripFacts.from_facts(event.facts)
        if said is None:
            is_strange |= event.step in (step, step + 1)  # behind a step the next one is under way
        elif crc32 is not None and (said.manifest_crc32, said.step) == (crc32, step):
            trip = said
        elif said.name == plain(path.name) and said.step in (None, step):
            other, is_current = said, attempt is not None and attempt >= evidence.chunk.attempts[-1]
    return _Told(trip, other, is_current, is_strange)


def _not_made(found: Examined, told: _Told) -> Gate:
    """Nobody loaded what is on disk now."""
    name = plain(found.info.path.name)
    if told.other is None and found.info.saver != OURS:
        text = (
            f"{name} is of {found.info.saver}, and trimtab.checkpoint.round_trip loads what Checkpointer saves: go on "
            "from it once for a trial, trainer.train(resume_from_checkpoint=...), or save with Checkpointer as well"
        )
        return Gate(name="round_trip", status="unknown", text=text)
    if told.other is None:
        strange = (
            "what the log has of one is nothing that trimtab.checkpoint.round_trip writes; " if told.is_strange else ""
        )
        text = f"no round trip of {name} is in the log: {strange}{HOW_TO_RECORD}"
        return Gate(name="round_trip", status="unknown", text=text)
    figures = told.other.to_facts()
    if told.other.manifest_crc32 is None:
        text = f"{name} could not be loaded again: {'; '.join(map(plain, told.other.differences)) or 'no reason told'}"
        return Gate(name="round_trip", status="failed", text=f"{text}; {_GO_BACK}", figures=figures)
    if told.is_current:
        text = (
            f"what was loaded as {name} is not what is on disk now: it was saved again since, or changed. Call "
            "round_trip behind the last save, and save no more"
        )
        return Gate(name="round_trip", status="failed", text=text, figures=figures)
    text = f"an earlier attempt's save of {name} was loaded, and not the one that is on disk now: {HOW_TO_RECORD}"
    return Gate(name="round_trip", status="unknown", text=text, figures=figures)


def _in_words(probe: ProbeFacts) -> str:
    most = f" of at most {math.log(probe.vocabulary_size):.3g}" if probe.vocabulary_size else ""
    broken = f", {probe.num_nonfinite:,} logits not finite" if probe.num_nonfinite else ""
    return f"{plain(probe.shape)}, entropy {probe.entropy:.3g}{most} nats, cv {probe.cv:.3g}{broken}"
