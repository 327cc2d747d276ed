"""What a watch measures and finds, as the facts of an event and back; the one place that knows their spelling.

Enters: `RouterReport`, `Vitals`, `WatchFinding`, or facts that may have been through other people's hands. Leaves:
facts as JSON holds them, or the values. Invariant: what was spelled here is read back equal, a number that is not
finite included; whatever else stands in a place of facts is left out as if nobody had known it, and nothing raises.

The layers of a report are one list a figure, so that a figure's name stands once, and counts of a layer one list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final, TypeVar, get_args

from trimtab.text import plain
from trimtab.values import json_number, nonfinite_number
from trimtab.watched import FindingKind, LayerFigures, RouterReport, Severity, Vitals, WatchFinding, ZScale

MAX_LAYERS: Final = 4_096
"""Layers that are read of a report, and weights of vitals: no model has as many, and facts may be anybody's."""

MAX_EXPERTS: Final = 65_536
"""Counts that are read of a layer."""

MAX_NAME: Final = 1_000
"""Characters that are read of a name."""

_MAX_WHOLE: Final = 2**63 - 1
_MAX_TEXTS: Final = 1_000
_MAX_TEXT: Final = 10_000
_MAX_FIGURES: Final = 1_000
_MAX_DEPTH: Final = 4

_Value = TypeVar("_Value")


def report_to_facts(report: RouterReport) -> dict[str, Any]:
    """A report as the facts of a "router" event; what nobody knows is left out.

    Args:
        report: What was measured.

    Returns:
        JSON-ready values: a few numbers, and `layers`, one list a figure, parallel to its `name`.

    Example:
        >>> layer = LayerFigures(name="moe.0", num_experts=2, z=4.5, counts=(3, 5))
        >>> report_to_facts(RouterReport(step=50, first_step=1, layers=(layer,)))["layers"]
        {'name': ['moe.0'], 'num_experts': [2], 'z': [4.5], 'counts': [[3, 5]]}
    """
    layers: dict[str, list[Any]] = {"name": [layer.name for layer in report.layers]}
    for figure in _READ:
        column = [_spelled(getattr(layer, figure)) for layer in report.layers]
        if any(value is not None for value in column):
            layers[figure] = column
    facts = {
        "step": report.step,
        "first_step": report.first_step,
        "num_populations": report.num_populations,
        "z": json_number(report.z),
        "z_scale": report.z_scale,
        "z_factor": json_number(report.z_factor),
        "expected_tokens": report.expected_tokens,
        "num_ranks": report.num_ranks,
        "notes": list(report.notes),
        "layers": layers if report.layers else None,
    }
    return {name: fact for name, fact in facts.items() if fact is not None and fact != []}


def report_from_facts(facts: Any, *, step: int) -> RouterReport:
    """The report that these facts tell of.

    Args:
        facts: What `report_to_facts` gave, or anything.
        step: Optimizer step of the event, for facts that name none.
    """
    entries = _mapping(facts)
    last = _or(_whole(entries.get("step")), step)
    return RouterReport(
        step=last,
        first_step=min(_or(_whole(entries.get("first_step")), last), last),
        layers=_layers(_mapping(entries.get("layers"))),
        num_populations=max(1, _or(_whole(entries.get("num_populations")), 1)),
        z=_real(entries.get("z")),
        z_scale=_one_of(entries.get("z_scale"), get_args(ZScale), otherwise="layer"),
        # A factor that stands there and is none must not pass for 1: figures would be compared that are not alike.
        z_factor=_or(_real(entries["z_factor"]), math.nan) if "z_factor" in entries else 1.0,
        expected_tokens=_whole(entries.get("expected_tokens")),
        num_ranks=max(1, _or(_whole(entries.get("num_ranks")), 1)),
        notes=_texts(entries.get("notes")),
    )


def vitals_to_facts(vitals: Vitals) -> dict[str, Any]:
    """Vitals as the facts of a "vitals" event; what nobody knows is left out."""
    facts = {
        "step": vitals.step,
        **{figure: getattr(vitals, figure) for figure in _BYTES},
        "update_ratio": {name: json_number(ratio) for name, ratio in vitals.update_ratio.items()} or None,
        "attention_logit": json_number(vitals.attention_logit),
    }
    return {name: fact for name, fact in facts.items() if fact is not None}


def vitals_from_facts(facts: Any, *, step: int) -> Vitals:
    """The vitals that these facts tell of.

    Args:
        facts: What `vitals_to_facts` gave, or anything.
        step: Optimizer step of the event, for facts that name none.
    """
    entries = _mapping(facts)
    ratios = list(_mapping(entries.get("update_ratio")).items())[:MAX_LAYERS]
    known = {name[:MAX_NAME]: _real(ratio) for name, ratio in ratios if isinstance(name, str)}
    return Vitals(
        step=_or(_whole(entries.get("step")), step),
        **{figure: _whole(entries.get(figure)) for figure in _BYTES},
        update_ratio={name: ratio for name, ratio in known.items() if ratio is not None},
        attention_logit=_real(entries.get("attention_logit")),
    )


def finding_from_facts(facts: Any, *, step: int) -> WatchFinding | None:
    """The finding that these facts tell of; None where they name no kind that is known here, or have no text.

    Args:
        facts: What `WatchFinding.to_dict` gave, or anything.
        step: Optimizer step of the event, for facts that name none.
    """
    entries = _mapping(facts)
    kind: FindingKind | None = _one_of(entries.get("kind"), get_args(FindingKind), otherwise=None)
    text = entries.get("text")
    if kind is None or not isinstance(text, str):
        return None
    severity: Severity = _one_of(entries.get("severity"), get_args(Severity), otherwise="warning")
    return WatchFinding(
        kind=kind,
        severity=severity,
        step=_or(_whole(entries.get("step")), max(0, step)),
        text=plain(text),
        layers=tuple(name[:MAX_NAME] for name in _texts(entries.get("layers"), most=MAX_LAYERS)),
        figures=_figures(entries.get("figures")),
        marks_unhealthy=entries.get("marks_unhealthy") is True,
        since_step=_whole(entries.get("since_step")),
    )


def _layers(columns: Mapping[Any, Any]) -> tuple[LayerFigures, ...]:
    """The layers of parallel lists; one without a name has none, and its figures are nobody's."""
    names = columns.get("name")
    if not isinstance(names, list):
        return ()

    def of(figure: str, place: int, read: Callable[[Any], Any]) -> Any:
        column = columns.get(figure)
        return read(column[place]) if isinstance(column, list) and place < len(column) else None

    return tuple(
        LayerFigures(
            name=name[:MAX_NAME],
            **{figure: of(figure, place, read) for figure, read in _READ.items()},
        )
        for place, name in enumerate(names[:MAX_LAYERS])
        if isinstance(name, str)
    )


def _figures(found: Any, *, depth: int = 1) -> dict[str, Any]:
    """Numbers and texts by name, and what is made of them; deeper than any finding of ours nothing is read."""
    entries = list(_mapping(found).items())[:_MAX_FIGURES]
    return {str(name)[:MAX_NAME]: _figure(figure, depth=depth) for name, figure in entries}


def _figure(found: Any, *, depth: int) -> Any:
    if isinstance(found, str):
        return found[:MAX_NAME]
    if isinstance(found, float):
        return json_number(found)
    if found is None or isinstance(found, int):
        return found
    if depth >= _MAX_DEPTH:
        return None
    if isinstance(found, Mapping):
        return _figures(found, depth=depth + 1)
    return [_figure(one, depth=depth + 1) for one in found[:_MAX_FIGURES]] if isinstance(found, list) else None


def _spelled(figure: Any) -> Any:
    """A figure of a layer as JSON has it."""
    if isinstance(figure, tuple):
        return list(figure)
    return json_number(figure) if isinstance(figure, float) else figure


def _mapping(found: Any) -> Mapping[Any, Any]:
    return found if isinstance(found, Mapping) else {}


def _or(found: _Value | None, otherwise: _Value) -> _Value:
    return otherwise if found is None else found


def _whole(found: Any) -> int | None:
    """A whole number of 0 or more that a log can hold."""
    return found if type(found) is int and 0 <= found <= _MAX_WHOLE else None


def _real(found: Any) -> float | None:
    """A number, as `json_number` spells it."""
    if type(found) not in (int, float):
        return nonfinite_number(found)
    try:
        return float(found)
    except OverflowError:  # an int beyond every float
        return None


def _counts(found: Any) -> tuple[int, ...] | None:
    """Counts of all experts; a list with anything else in it tells nothing."""
    if not isinstance(found, list) or len(found) > MAX_EXPERTS or any(_whole(count) is None for count in found):
        return None
    return tuple(found)


def _texts(found: Any, *, most: int = _MAX_TEXTS) -> tuple[str, ...]:
    return tuple(text[:_MAX_TEXT] for text in found[:most] if isinstance(text, str)) if isinstance(found, list) else ()


def _one_of(found: Any, known: tuple[str, ...], *, otherwise: Any) -> Any:
    return found if isinstance(found, str) and found in known else otherwise


_BY_TYPE: Final = {"int | None": _whole, "float | None": _real, "tuple[int, ...] | None": _counts}
_READ: Final[Mapping[str, Callable[[Any], Any]]] = {
    figure.name: _BY_TYPE[str(figure.type)] for figure in fields(LayerFigures) if figure.name != "name"
}
"""How each figure of a layer is read."""

_BYTES: Final = ("host_available_bytes", "host_needed_bytes", "device_peak_bytes", "device_total_bytes")
