"""Whether the chunk's checkpoint was loaded again while its training was still there, and what the loaded model says.

    events `round_trip` of the log -> the one with the checksum of the manifest on disk -> two gates

Enters: the checkpoint, with what the log has on its round trip. Leaves: the gates `round_trip` and `generation_probe`.
Invariant: an event speaks for the very save that was looked at and for no other, whatever step and name it tells; one
of somebody else's making is none.
"""

from __future__ import annotations

import math
from typing import Final

from trimtab.gates.looked_at import Chosen
from trimtab.gates.values import Judged
from trimtab.resume.names import OURS
from trimtab.resume.round_trip import ProbeFacts
from trimtab.text import listed, plain

MAX_DIFFERENCES: Final = 3
"""Differences told in a sentence; --json has those that the log has."""

HOW_TO_RECORD: Final = (
    "call trimtab.checkpoint.round_trip(checkpoint, build=..., model=..., optimizer=..., run=run) behind the last save "
    "of a chunk, in the training itself"
)

_GO_BACK: Final = "do not go on from this one"

_SHAPES: Final = {
    "uniform": "every token is as likely as any other: weights that were not restored, or a head that nothing reaches",
    "one-hot": "one token takes all: the logits ran away, or a scale was restored twice",
    "nonfinite": "logits are not finite: weights are NaN or infinite, or the precision overflows",
}
"""What the shapes of a broken model mean; "peaked" and "flat" are those of a sound one."""

_SOUND: Final = ("peaked", "flat")


def round_trip(chosen: Chosen) -> Judged:
    """Whether a model built afresh and loaded from the checkpoint was the live one to the last bit."""
    trip, name = chosen.trips.own, chosen.name
    if trip is None:
        return _not_made(chosen)
    figures = trip.to_facts()
    if not trip.same:
        more = trip.num_differences - MAX_DIFFERENCES
        differences = [
            *map(plain, trip.differences[:MAX_DIFFERENCES]),
            *([f"and {more:,} more"] if more > 0 else []),
        ]
        what = ", loaded again, is not what was saved" if trip.parts else " could not be loaded again"
        text = f"{name}{what}: {'; '.join(differences) or 'no reason told'}; {_GO_BACK}"
        return Judged("failed", text, figures)
    if "model" not in trip.parts:
        text = f"the round trip of {name} says that it compared no model, and so says nothing of it; {HOW_TO_RECORD}"
        return Judged("unknown", text, figures)
    text = f"loaded into a fresh model and the same to the last bit: {listed(map(plain, trip.parts), most=12)}"
    return Judged("passed", text, figures)


def generation_probe(chosen: Chosen) -> Judged:
    """Whether the model as loaded gives finite logits that are neither uniform nor one-hot."""
    trip, name = chosen.trips.own, chosen.name
    if trip is None:
        return Judged("unknown", f"no round trip of this save of {name} is in the log: see round_trip")
    if trip.probe is None:
        why = "was not asked" if trip.probe_problem is None else f"could not answer: {plain(trip.probe_problem)}"
        text = f"the model loaded from {name} {why}; give round_trip(..., probe_ids=...) token ids of held-out text"
        return Judged("unknown", text)
    probe, figures = trip.probe, trip.probe.to_facts()
    if probe.num_nonfinite or probe.shape in _SHAPES:
        shape = "nonfinite" if probe.num_nonfinite else probe.shape
        text = f"{name}, loaded again: {_SHAPES[shape]} ({_in_words(probe)}); {_GO_BACK}"
        return Judged("failed", text, figures)
    if probe.shape not in _SOUND or not (math.isfinite(probe.entropy) and math.isfinite(probe.cv)):
        text = f"the probe in the log is none that trimtab.checkpoint.round_trip writes ({_in_words(probe)})"
        return Judged("unknown", text, figures)
    return Judged("passed", _in_words(probe), figures)


def _not_made(chosen: Chosen) -> Judged:
    """Nobody loaded what is on disk now."""
    name, other, saver = chosen.name, chosen.trips.other, chosen.found.info.saver
    if other is None and saver != OURS:
        text = (
            f"{name} is of {plain(saver)}, and trimtab.checkpoint.round_trip loads what Checkpointer saves alone: of "
            "this one it stays unknown"
        )
        return Judged("unknown", text)
    if other is None:
        strange = (
            "what the log has of one is nothing that trimtab.checkpoint.round_trip writes; "
            if chosen.trips.is_strange
            else ""
        )
        return Judged("unknown", f"no round trip of {name} is in the log: {strange}{HOW_TO_RECORD}")
    figures = other.to_facts()
    if other.manifest_crc32 is None:
        text = f"{name} could not be loaded again: {'; '.join(map(plain, other.differences)) or 'no reason told'}"
        return Judged("failed", f"{text}; {_GO_BACK}", figures)
    if chosen.trips.is_current:
        text = (
            f"what was loaded as {name} is not what is on disk now: it was saved again since, or changed. Call "
            "round_trip behind the last save, and save no more"
        )
        return Judged("failed", text, figures)
    text = f"an earlier attempt's save of {name} was loaded, and not the one that is on disk now: {HOW_TO_RECORD}"
    return Judged("unknown", text, figures)


def _in_words(probe: ProbeFacts) -> str:
    most = f" of at most {math.log(probe.vocabulary_size):.3g}" if probe.vocabulary_size else ""
    broken = f", {probe.num_nonfinite:,} logits not finite" if probe.num_nonfinite else ""
    return f"{plain(probe.shape)}, entropy {probe.entropy:.3g}{most} nats, cv {probe.cv:.3g}{broken}"
