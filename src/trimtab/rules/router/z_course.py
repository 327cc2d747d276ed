"""The router z of each layer and of the model over time, on one scale.

Reports come in; `ZPoint`s go out: z with what it is a z of, freed of the factor that the report names, and its course.
Invariant: values of different scales never stand in one course; where a factor is not known, a z is compared with
nothing but its own course.
"""

from __future__ import annotations

import math
from typing import Any, Final, NamedTuple

from trimtab.rules.router.figures import finite
from trimtab.rules.router.per_layer import MODEL, PerLayer
from trimtab.rules.router.trend import Trend
from trimtab.rules.state import read_count, read_entries
from trimtab.watched import LayerFigures, RouterReport, ZScale

SMALLEST: Final = 1e-12
"""A z below it is taken for it: a course is one of ratios. float32 rounds a z of 16 at 2e-6."""

LEAST_OF_SQUARE: Final = 0.98
"""The mean of a square is never below the square of the mean; so z / lse^2 is 1 or more, but for rounding, or a factor
is hidden in z (0.3025 at lse 5.5: 0.01)."""


class ZPoint(NamedTuple):
    """One z of a report.

    Attributes:
        layer: Name of the layer, or `MODEL`.
        scale: What it is a z of; "sum" also of a sum made here.
        z: It, without the factor; None where it is not finite.
        is_absolute: Whether its factor is known, so that it may be held against a band.
        before: Step and z of the report before; None for the first.
        highest: The highest z held of earlier reports; None for the first.
        uniform: What zero logits give, (ln E)^2, or the sum of that; None where E is not known.
        course: Its course, this z included.
        figures: The layers that it is of.
    """

    layer: str
    scale: ZScale
    z: float | None
    is_absolute: bool
    before: tuple[int, float] | None
    highest: float | None
    uniform: float | None
    course: Trend
    figures: tuple[LayerFigures, ...]


class _Course(NamedTuple):
    step: int
    trend: Trend


class ZCourses:
    """The courses of all z.

    Args:
        sums: Whether the sum over layers is held too, where each has a z.
    """

    def __init__(self, *, sums: bool) -> None:
        self._sums = sums
        self._courses: PerLayer[_Course] = PerLayer()
        self._num_layers = 0

    def forget(self, *, model_only: bool = False) -> None:
        """Begins anew: what comes is on another scale; of the whole model only where each layer's z goes on."""
        if model_only:
            self._courses.forget(MODEL)
        else:
            self._courses.clear()

    def ratios(self, report: RouterReport) -> dict[str, float]:
        """By layer, or `MODEL`, what a report's z is of the one before; nothing where one is not known."""
        ratios = {}
        for layer, z in _zs(report).items():
            course = self._courses.get(layer)
            if course is not None and course.trend.newest and z is not None and math.isfinite(z):
                ratios[layer] = _free(z, report.z_factor) / course.trend.newest
        return ratios

    def absorb(self, report: RouterReport) -> list[ZPoint]:
        """Takes a report in; one point for each z in it that is known."""
        layers = {layer.name: layer for layer in report.layers}
        found = _zs(report)
        points = []
        for name, z in found.items():
            of = (layers[name],) if name in layers else report.layers
            scale: ZScale = "layer" if name in layers else report.z_scale
            points.append(self._point(name, z, scale=scale, of=of, report=report))
        if self._sums and report.layers and MODEL not in found:
            points += self._summed(report)
        return points

    def _summed(self, report: RouterReport) -> list[ZPoint]:
        layers = tuple(filter(chooses, report.layers))
        zs = [layer.z for layer in layers]
        if len(zs) != self._num_layers:
            self._courses.forget(MODEL)
            self._num_layers = len(zs)
        known = [z for z in zs if z is not None and math.isfinite(z)]
        if len(known) < len(zs) or not known:
            return []
        return [self._point(MODEL, sum(known), scale="sum", of=layers, report=report)]

    def _point(
        self, name: str, z: float | None, *, scale: ZScale, of: tuple[LayerFigures, ...], report: RouterReport
    ) -> ZPoint:
        course = self._courses.get(name) or _Course(report.first_step, Trend())
        before, highest = course.trend.newest, course.trend.highest
        freed = None
        if z is not None and math.isfinite(z):
            freed = _free(z, report.z_factor)
            course.trend.absorb(freed)
            self._courses.put(name, _Course(report.step, course.trend))
        return ZPoint(
            layer=name,
            scale=scale,
            z=_exact(freed),
            is_absolute=is_known(report.z_factor) and not any(hidden_factor(layer, report) for layer in of),
            before=None if before is None else (course.step, _exact(before) or 0.0),
            highest=highest,
            uniform=_uniform(of, scale=scale),
            course=course.trend,
            figures=of,
        )

    def state_dict(self) -> dict[str, Any]:
        """The courses, as plain values."""
        return {
            "num_layers": self._num_layers,
            "courses": self._courses.state_dict(lambda one: {"step": one.step, "trend": one.trend.state_dict()}),
        }

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        num_layers, courses = read_entries(state, ("num_layers", "courses"), where="the courses of z")
        num_layers = read_count(num_layers, name="the number of layers")
        self._courses.load_state_dict(courses, _read_course)
        self._num_layers = num_layers


def is_known(factor: float) -> bool:
    """Whether a factor can be taken out of a z."""
    return math.isfinite(factor) and factor > 0


def hidden_factor(layer: LayerFigures, report: RouterReport) -> float | None:
    """The ratio z / lse^2 where that proves a factor in z that the report does not name; else None."""
    z, lse = finite(layer.z), finite(layer.lse)
    if z is None or lse is None or not is_known(report.z_factor) or abs(lse) < 0.1:
        return None
    ratio = z / report.z_factor / (lse * lse)
    return ratio if 0 < ratio < LEAST_OF_SQUARE else None


def _zs(report: RouterReport) -> dict[str, float | None]:
    """Each z that a report has: of its layers, or of the model where no layer has one."""
    found = {layer.name: _z_of(layer) for layer in report.layers if chooses(layer) and _z_of(layer) is not None}
    return found or ({} if _is_no_square(report.z) else {MODEL: report.z})


def chooses(layer: LayerFigures) -> bool:
    """Whether there is anything to choose: a router of one expert, or to all of them, has a z that means nothing."""
    num_experts = layer.num_experts if layer.counts is None else len(layer.counts)
    return num_experts is None or num_experts > max(1, layer.top_k or 1)


def _z_of(layer: LayerFigures) -> float | None:
    """A layer's z; not finite where its logits are not, though z itself is not known."""
    if layer.z is None and layer.lse is not None and not math.isfinite(layer.lse):
        return math.nan
    return None if _is_no_square(layer.z) else layer.z


def _is_no_square(z: float | None) -> bool:
    """Whether it is not known, or below 0 as no mean of squares is; minus infinity is what is not finite, as any."""
    return z is None or -math.inf < z < 0


def _free(z: float, factor: float) -> float:
    """A finite z without its factor, positive, so that a ratio to it exists."""
    freed = z / factor if is_known(factor) else z
    return max(SMALLEST, freed) if math.isfinite(freed) else z


def _exact(z: float | None) -> float | None:
    """What a z is where it is no ratio that is asked for."""
    return 0.0 if z == SMALLEST else z


def _uniform(layers: tuple[LayerFigures, ...], *, scale: ZScale) -> float | None:
    experts = [layer.num_experts if layer.counts is None else len(layer.counts) for layer in layers]
    known = [math.log(num) ** 2 for num in experts if num is not None and num > 0]
    if not known or len(known) < len(experts):
        return None
    total = math.fsum(known)
    return total if scale == "sum" else total / len(known)


def _read_course(found: Any) -> _Course:
    step, trend = read_entries(found, ("step", "trend"), where="the course of a z")
    return _Course(read_count(step, name="the step of a z"), Trend.from_state(trend))
