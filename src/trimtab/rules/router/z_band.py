"""The band of the router z: logits that are not finite, a z that has fallen out, one that is hot and rises.

`ZPoint`s come in. z alone tells neither a uniform router from a one-hot one nor either from a healthy one whose z-loss
holds the log-sum-exp near 0: where entropies are known they decide how much a low z weighs. A high z says nothing while
it does not rise: zero logits over 48 experts give 14.99 a layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from trimtab.rules.router.condition import condition_of
from trimtab.rules.router.logits_growing import is_sharpening
from trimtab.rules.router.per_layer import MODEL
from trimtab.rules.router.signs import Judgement, Seen, Sign, also_in, layers_named, number
from trimtab.rules.router.z_course import ZPoint
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import FindingKind, RouterReport, WatchFinding, ZScale

FALL: Final = 3.0
"""Factor under the highest z behind it that makes a low z one that has fallen. The run that died fell by 320 in one
step between reports; a z that wanders about the lower bound has not fallen."""

STILL_FALLING: Final = 1.5
"""Factor under the report before at which a z keeps falling."""

HOT_RISE: Final = 1.2
"""Factor over four reports by which a hot z rises; less than growth elsewhere, for it is out of line already."""

FELL: Final = 300.0
"""Factor under the highest z behind it at which a z whose factor is not known has fallen. The healthy band, 5 to 150,
spans 30, and from a hot 1,000 into it is 200; the run that died fell by 3,600."""

BACK_ABOVE: Final = 2.0
"""Times the lower bound: a z there is back."""

BACK_BELOW: Final = 0.8
"""Times the upper bound: likewise."""

_HELD, _LOW, _FALLEN = range(3)
_OF: Final[dict[ZScale, str]] = {"layer": "of a layer", "sum": "summed over layers", "mean": "mean over layers"}


class ZBand(Judgement):
    """Holds z against its band, of each layer or of the sum over layers.

    Args:
        config: The settings.
    """

    kind: ClassVar[FindingKind] = "z_band"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config

    def look(self, seen: Seen) -> Iterable[Sign]:
        """Signs of each z outside its band."""
        for point in self._judged(seen.zs):
            if point.z is None:
                yield Sign(layer=point.layer, topic="nonfinite", figures={"z": "nonfinite"})
                continue
            yield Sign(layer=point.layer, topic="nonfinite", is_over=True)
            if point.is_absolute:
                yield from self._against_band(point, point.z, step=seen.report.step)
            else:
                yield from self._by_course(point, point.z)

    def tell(self, report: RouterReport, signs: Sequence[Sign]) -> WatchFinding:
        """One finding, with the figures of its first layer in the sentence."""
        first, topic = signs[0], signs[0].topic
        if topic == "nonfinite":
            where = "" if first.layer == MODEL else f" in {layers_named(signs)}"
            text = f"router logits{where} are not finite"
            return self.finding(report, signs, text, severity="critical", marks_unhealthy=True)

        where = "" if first.layer == MODEL else f" in {layers_named(signs[:1])}"
        course = _fall(first.figures) if topic == "fell" else _course(first.figures)
        text = f"router z{where} {course}{also_in(signs)}"
        if topic == "high":
            return self.finding(report, signs, f"{text}, and it rises")
        if first.rank == _HELD:
            text += ", while the router chooses and its load is balanced: a z-loss may hold it there"
            return self.finding(report, signs, text, severity="notice")
        text += "; whether it is uniform or one-hot its entropies tell, z does not"
        return self.finding(report, signs, text, marks_unhealthy=first.rank == _FALLEN)

    def _judged(self, zs: Sequence[ZPoint]) -> list[ZPoint]:
        """The z that the settings ask for, or the other one where there is none."""
        of_model = [point for point in zs if point.layer == MODEL]
        of_layers = [point for point in zs if point.layer != MODEL]
        if self._config.z_band_of == "sum" and of_model:
            return [*of_model, *(point for point in of_layers if point.z is None)]
        return of_layers or of_model

    def _against_band(self, point: ZPoint, z: float, *, step: int) -> Iterable[Sign]:
        config = self._config
        low, high = config.z_layer_low, config.z_layer_high
        if point.scale == "sum":
            low, high = config.z_sum_low, config.z_sum_high
        figures: dict[str, Any] = {"z": z, "z_scale": point.scale, "low": low, "high": high}
        if point.before is not None:
            figures |= {"step_before": point.before[0], "z_before": point.before[1]}

        if z < low:
            rank = self._weight(point, z, low=low)
            yield Sign(layer=point.layer, topic="low", rank=rank, figures=figures, is_harmless=rank == _HELD)
        elif z >= BACK_ABOVE * low:
            yield Sign(layer=point.layer, topic="low", is_over=True)

        rises = point.course.rise(HOT_RISE, longest=4) or point.course.rise(config.z_growth)
        if z > high and rises is not None and not is_sharpening(point, rises, step=step, config=config):
            yield Sign(layer=point.layer, topic="high", figures=figures)
        elif z <= BACK_BELOW * high:
            yield Sign(layer=point.layer, topic="high", is_over=True)

    def _by_course(self, point: ZPoint, z: float) -> Iterable[Sign]:
        """Signs of a z whose factor nobody knows: by how far it fell."""
        highest = point.highest
        if highest is None:
            return
        if highest >= FELL * z:
            rank = self._weight(point, z, low=0.0)
            figures = {"z": z, "z_scale": point.scale, "highest": highest}
            yield Sign(layer=point.layer, topic="fell", rank=rank, figures=figures, is_harmless=rank == _HELD)
        elif highest * BACK_ABOVE <= FELL * z:
            yield Sign(layer=point.layer, topic="fell", is_over=True)

    def _weight(self, point: ZPoint, z: float, *, low: float) -> int:
        """How much a low z weighs: held there over a router that works, low, or fallen."""
        conditions = [condition_of(layer, self._config) for layer in point.figures]
        if any(condition.crowded for condition in conditions):
            return _FALLEN
        if conditions and all(
            condition.crowded is False and condition.confidence in ("between", "one_hot") for condition in conditions
        ):
            return _HELD
        has_fallen = point.highest is not None and point.highest >= max(low, FALL * z)
        return _FALLEN if has_fallen else _LOW


def _fall(figures: dict[str, Any]) -> str:
    z, highest = figures["z"], figures["highest"]
    by = f", to 1/{number(highest / z)}" if z else ""
    return f"fell from {number(highest)} to {number(z)}{by}; its factor is not known, so its course is judged"


def _course(figures: dict[str, Any]) -> str:
    z, low, high, scale = (figures[name] for name in ("z", "low", "high", "z_scale"))
    side = "below" if z < low else "above"
    text = f"is {number(z)}, {side} its band of {number(low)} to {number(high)} ({_OF[scale]})"
    if "z_before" not in figures:
        return text
    keeps = "and keeps falling, from" if figures["z_before"] > STILL_FALLING * z else "after"
    if side == "above":
        keeps = "after"
    return f"{text}, {keeps} {number(figures['z_before'])} at step {figures['step_before']}"
