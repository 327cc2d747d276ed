"""Growing logits: a router z that rises over its window, whatever its value.

`ZPoint`s come in. What every young router does is no finding: from zero logits, where z is (ln E)^2, it sharpens, and z
may triple by that (see `WatchConfig.router_warmup_steps`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from trimtab.rules.router.per_layer import MODEL
from trimtab.rules.router.signs import Judgement, Seen, Sign, also_in, layers_named, number
from trimtab.rules.router.trend import WINDOW, Rise
from trimtab.rules.router.z_course import ZPoint
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import FindingKind, RouterReport, WatchFinding

LEAST: Final = 5.0
"""A z below it grows into the healthy band (5 to 150 in the 14-layer run), and harms nothing yet. Nor does one below
(ln E)^2, what zero logits give."""

RECOVERING: Final = 0.5
"""Times the above: a rise that begins there is the way back of a z that had fallen."""

SHARPENED: Final = 3.0
"""Times (ln E)^2: what an ordinary router that has learnt to choose stays under."""


class LogitsGrowing(Judgement):
    """Judges the course of z: of each layer where it is known, else of the model.

    On simulated healthy runs of 14 layers with 5 % of noise and a random walk of a tenth of that it says nothing; at
    twice that all rules together speak in at most 4 of 20 (`tests/unit/rules/router/test_router_false_alarms.py`).

    Args:
        config: The settings.
    """

    kind: ClassVar[FindingKind] = "logits_growing"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config

    def look(self, seen: Seen) -> Iterable[Sign]:
        """Signs of each z that rises."""
        of_layers = [point for point in seen.zs if point.layer != MODEL]
        for point in of_layers or seen.zs:
            if point.z is None:
                continue
            rise = point.course.rise(self._config.z_growth)
            if rise is not None and self._is_growth(point, rise, step=seen.report.step):
                figures = {
                    "z": point.z,
                    "z_scale": point.scale,
                    "first": rise.first,
                    "last": rise.last,
                    "num_reports": rise.num_reports,
                    "z_of_zero_logits": point.uniform,
                }
                yield Sign(layer=point.layer, topic="growing", figures=figures)
            elif rise is None and point.course.is_flat():
                yield Sign(layer=point.layer, topic="growing", is_over=True)

    def tell(self, report: RouterReport, signs: Sequence[Sign]) -> WatchFinding:
        """One finding, with the figures of the layer that grew most in the sentence."""
        most = max(signs, key=lambda sign: sign.figures["last"] / sign.figures["first"])
        where = "" if most.layer == MODEL else f" in {layers_named([most])}"
        figures = most.figures
        groups = f"{WINDOW} groups of " if figures["num_reports"] > WINDOW else ""
        num_reports = figures["num_reports"] // (WINDOW if groups else 1)
        text = (
            f"router logits grow{where}: z rose from {number(figures['first'])} to {number(figures['last'])} over the "
            f"last {groups}{num_reports} reports"
        )
        if figures["z_of_zero_logits"] is not None:
            text += f"; zero logits give {number(figures['z_of_zero_logits'])}"
        others = also_in([most, *(sign for sign in signs if sign is not most)])
        return self.finding(report, signs, text + others)

    def _is_growth(self, point: ZPoint, rise: Rise, *, step: int) -> bool:
        assert point.z is not None
        least = max(LEAST, point.uniform or 0.0)
        if point.is_absolute and (point.z < least or rise.first < RECOVERING * least):
            return False
        return not is_sharpening(point, rise, step=step, config=self._config)


def is_sharpening(point: ZPoint, rise: Rise, *, step: int, config: WatchConfig) -> bool:
    """Whether a rise is what a router does that learns to choose: early, or slow, and not beyond what that takes."""
    if point.z is None or point.uniform is None or not point.is_absolute or point.z > SHARPENED * point.uniform:
        return False
    return step <= config.router_warmup_steps or rise.num_reports > WINDOW
