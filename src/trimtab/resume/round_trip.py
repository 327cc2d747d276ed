"""What the log says of a checkpoint that was loaded again while its training was still there: an event and its facts.

Enters: the facts of an event, which may be a stranger's. Leaves: a `RoundTripFacts` of them, which the results of
`trimtab.checkpoint.round_trip` are too, and the event's kind and facts of one. Invariant: both halves know the layout
from here; what is no such event is taken for none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from trimtab.resume.fields import BadFieldError, count, entries, number, refuse, shown, texts
from trimtab.values import json_number

ROUND_TRIP_EVENT: Final = "round_trip"
"""A checkpoint was loaded into what was built afresh, compared with the live training, and probed."""

MAX_DIFFERENCES: Final = 10
"""How many differences one event names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFacts:
    """What the loaded model would say next; see `trimtab.checkpoint.generation_probe`.

    Attributes:
        shape: "peaked", "flat", "uniform", "one-hot" or "nonfinite".
        entropy: Nats, mean over positions; NaN where a logit is not finite.
        cv: Coefficient of variation of the distribution over the vocabulary; likewise.
        num_nonfinite: Logits that are NaN or infinite.
        vocabulary_size: Words of the vocabulary.
    """

    shape: str
    entropy: float
    cv: float
    num_nonfinite: int
    vocabulary_size: int

    def to_facts(self) -> dict[str, Any]:
        """JSON-ready; numbers that are not finite are spelled as text."""
        return {
            "shape": self.shape,
            "entropy": json_number(self.entropy),
            "cv": json_number(self.cv),
            "num_nonfinite": self.num_nonfinite,
            "vocabulary_size": self.vocabulary_size,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTripFacts:
    """What an event `round_trip` holds.

    Attributes:
        step: Step of the checkpoint; None where it could not be read.
        name: Name of its folder.
        manifest_crc32: `trimtab.resume.manifest.manifest_checksum` of what was loaded; None where it could not be read.
        same: Whether all that was compared is the same to the last bit.
        differences: What is not, a sentence each, at most `MAX_DIFFERENCES`; or why it could not be loaded.
        num_differences: How many there are.
        parts: What was compared, by name (`trimtab.resume.parts`).
        probe: What the loaded model says; None where it was not asked, or could not answer.
        probe_problem: Why it could not answer; None where it did, or was not asked.
    """

    step: int | None
    name: str
    manifest_crc32: int | None
    same: bool
    differences: tuple[str, ...] = ()
    num_differences: int = 0
    parts: tuple[str, ...] = ()
    probe: ProbeFacts | None = None
    probe_problem: str | None = None

    def to_facts(self) -> dict[str, Any]:
        """What the event holds, JSON-ready."""
        return {
            "step": self.step,
            "name": self.name,
            "manifest_crc32": self.manifest_crc32,
            "same": self.same,
            "differences": list(self.differences),
            "num_differences": self.num_differences,
            "parts": list(self.parts),
            "probe": None if self.probe is None else self.probe.to_facts(),
            "probe_problem": self.probe_problem,
        }


def round_trip_in(facts: object) -> RoundTripFacts | None:
    """What an event of a log says; None where it is none of this kind. Texts are as they were found.

    Args:
        facts: Of the event; of a stranger's log, so anything.
    """
    try:
        return _round_trip(entries(dict(facts) if isinstance(facts, Mapping) else facts, "facts"))
    except BadFieldError:
        return None


def _round_trip(facts: Mapping[str, Any]) -> RoundTripFacts:
    step, crc32, probe, problem = (facts.get(name) for name in ("step", "manifest_crc32", "probe", "probe_problem"))
    differences = texts(facts.get("differences", []), "differences")
    return RoundTripFacts(
        step=None if step is None else count(step, "step"),
        name=_text(facts.get("name"), "name"),
        manifest_crc32=None if crc32 is None else count(crc32, "manifest_crc32", most=0xFFFFFFFF),
        same=_truth(facts.get("same"), "same"),
        differences=differences[:MAX_DIFFERENCES],
        num_differences=count(facts.get("num_differences", len(differences)), "num_differences"),
        parts=texts(facts.get("parts", []), "parts"),
        probe=None if probe is None else _probe(entries(probe, "probe")),
        probe_problem=None if problem is None else _text(problem, "probe_problem"),
    )


def _probe(facts: Mapping[str, Any]) -> ProbeFacts:
    return ProbeFacts(
        shape=_text(facts.get("shape"), "shape"),
        entropy=number(facts.get("entropy"), "entropy"),
        cv=number(facts.get("cv"), "cv"),
        num_nonfinite=count(facts.get("num_nonfinite"), "num_nonfinite"),
        vocabulary_size=count(facts.get("vocabulary_size"), "vocabulary_size"),
    )


def _text(found: object, name: str) -> str:
    if not isinstance(found, str):
        refuse(f"{name} {shown(found)}", "text")
    return found


def _truth(found: object, name: str) -> bool:
    if not isinstance(found, bool):
        refuse(f"{name} {shown(found)}", "true or false")
    return found
