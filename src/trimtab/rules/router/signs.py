"""What a judgement sees in a report, before it is known whether it was said already.

A judgement looks at a report and gives `Sign`s: this layer is out of line, or this layer is back inside. What lies
between, where a judgement gives none, stays as it was: so nothing flickers at a bound.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, NamedTuple

from trimtab.rules.router.per_layer import MODEL
from trimtab.rules.router.z_course import ZPoint
from trimtab.rules.state import read_entries
from trimtab.text import listed, plain
from trimtab.values import json_number
from trimtab.watched import FindingKind, RouterReport, Severity, WatchFinding

MAX_LAYERS_TOLD: Final = 16
"""Layers whose figures stand in a finding; the log has them all."""

_MAX_NAMES: Final = 4
_MAX_NAME: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Sign:
    """A layer that is out of line, or back.

    Attributes:
        layer: Its name, or `MODEL`.
        topic: What of the judgement's kind: a layer stands under each topic by itself.
        is_over: Whether it is back inside; the rest means nothing then.
        rank: How bad; said again while it stands only under a higher one. Layers of one rank are told together.
        figures: The numbers behind it.
        is_worse_now: Whether its rank is higher from this report on, because it lasts.
        is_harmless: Whether a model is none the worse for it as it is.
        first_step: First step of what shows it, where that is earlier than this report.
    """

    layer: str
    topic: str
    is_over: bool = False
    rank: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    is_worse_now: bool = False
    is_harmless: bool = False
    first_step: int | None = None


class Seen(NamedTuple):
    """A report as judgements look at it.

    Attributes:
        report: Its figures, each layer once.
        zs: Every z in it with its course, this report included.
        change: How the scale of z differs from that of the report before, as the end of a sentence; None: it does not.
    """

    report: RouterReport
    zs: tuple[ZPoint, ...] = ()
    change: str | None = None


class Judgement(ABC):
    """One rule on reports; what it remembers of earlier ones is its state."""

    kind: ClassVar[FindingKind]

    @property
    def name(self) -> str:
        """Its name in a state."""
        return self.kind

    @abstractmethod
    def look(self, seen: Seen) -> Iterable[Sign]:
        """Signs of all layers that are out of line or back inside; takes the report in."""

    @abstractmethod
    def tell(self, report: RouterReport, signs: Sequence[Sign]) -> WatchFinding:
        """The finding of signs that have one topic and one rank, in the order of the model."""

    def state_dict(self) -> dict[str, Any]:
        """What is remembered, as plain values."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        read_entries(state, (), where=self.kind)

    def finding(
        self,
        report: RouterReport,
        signs: Sequence[Sign],
        text: str,
        *,
        severity: Severity = "warning",
        marks_unhealthy: bool = False,
    ) -> WatchFinding:
        """A finding of these signs, their figures bounded."""
        layers = tuple(sign.layer for sign in signs if sign.layer != MODEL)
        figures: dict[str, Any] = {"topic": signs[0].topic}
        for sign in signs:
            if sign.layer == MODEL:
                figures |= _spelled(sign.figures)
        if layers:
            told = [sign for sign in signs if sign.layer != MODEL][:MAX_LAYERS_TOLD]
            figures["layers"] = {sign.layer: _spelled(sign.figures) for sign in told}
            if len(layers) > len(told):
                figures["layers_left_out"] = len(layers) - len(told)
        return WatchFinding(
            kind=self.kind,
            severity=severity,
            step=report.step,
            text=text,
            layers=layers,
            figures=figures,
            marks_unhealthy=marks_unhealthy,
        )


def layers_named(signs: Sequence[Sign]) -> str:
    """The layers of some signs as a sentence has them: `layer a`, `layers a, b and 3 more`."""
    names = [plain(sign.layer[:_MAX_NAME]) for sign in signs]
    return f"{'layer' if len(names) == 1 else 'layers'} {listed(names, most=_MAX_NAMES)}"


def also_in(signs: Sequence[Sign]) -> str:
    """The layers but the first, whose figures a sentence has: `, and likewise in layer b`; nothing if it is alone."""
    return f", and likewise in {layers_named(signs[1:])}" if len(signs) > 1 else ""


def number(value: float | None) -> str:
    """A figure in a sentence: four digits."""
    return "unknown" if value is None else f"{value:.4g}"


def _spelled(figures: dict[str, Any]) -> dict[str, Any]:
    return {name: json_number(value) if isinstance(value, float) else value for name, value in figures.items()}
