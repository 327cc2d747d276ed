"""The scale of z: figures across a change of it are never compared raw, and a factor hidden in it is named.

2.14 and 214 may be the same router. Reports come in with the courses of z; courses that can not go on are begun anew,
and the change is a notice. Where both factors are known z is freed of them, and its course goes on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, get_args

from trimtab.rules.router.per_layer import MODEL
from trimtab.rules.router.signs import Judgement, Seen, Sign, also_in, layers_named, number
from trimtab.rules.router.z_course import ZCourses, hidden_factor, is_known
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, is_finite, read_entries
from trimtab.values import json_number, nonfinite_number
from trimtab.watched import FindingKind, RouterReport, WatchFinding, ZScale

SAME_RATIO: Final = 0.01
"""How near all ratios must be to a power of ten to be a change of scale that nobody named: no two routers change
by 100.0 from one report to the next."""

_OF: Final[dict[ZScale, str]] = {"layer": "each layer", "sum": "the sum over layers", "mean": "the mean over layers"}


class ScaleChanged(Judgement):
    """Watches the factor and the scale that reports state, and what their figures give away."""

    kind: ClassVar[FindingKind] = "scale_changed"

    def __init__(self) -> None:
        self._factor: float | None = None
        self._scale: ZScale | None = None

    def change(self, report: RouterReport, courses: ZCourses) -> str | None:
        """How the scale differs from that of the last report with a z, in words; begins courses anew that it ends.

        Args:
            report: Not yet taken in by the courses.
            courses: Those before it.
        """
        has_layers = any(layer.z is not None for layer in report.layers)
        if not has_layers and report.z is None:
            return None
        factor, scale = self._factor, self._scale
        self._factor = report.z_factor
        if not has_layers:
            self._scale = report.z_scale

        if scale is not None and not has_layers and scale != report.z_scale:
            courses.forget(model_only=True)
            return f"is that of {_OF[report.z_scale]} now, before it was that of {_OF[scale]}: its course begins anew"
        if factor is not None and _differ(factor, report.z_factor):
            if is_known(factor) and is_known(report.z_factor):
                return (
                    f"is multiplied by {number(report.z_factor)} now, before by {number(factor)}: it is compared with "
                    "the factor taken out, never raw"
                )
            courses.forget()
            return (
                f"is multiplied by {_factor(report.z_factor)} now, before by {_factor(factor)}: its course begins anew"
            )
        return _unnamed_change(courses, report)

    def look(self, seen: Seen) -> Iterable[Sign]:
        """A sign for a change, which is over with the next report; and one for each layer whose z hides a factor."""
        yield Sign(layer=MODEL, topic="change", is_over=True)
        if seen.change is not None:
            figures = {"change": seen.change, "z_factor": json_number(seen.report.z_factor)}
            yield Sign(layer=MODEL, topic="change", figures=figures | {"z_scale": seen.report.z_scale})
        for layer in seen.report.layers:
            ratio = hidden_factor(layer, seen.report)
            if ratio is not None:
                figures = {"ratio": ratio, "z": layer.z, "lse": layer.lse}
                yield Sign(layer=layer.name, topic="hidden", figures=figures)
            elif layer.z is not None and layer.lse is not None:
                yield Sign(layer=layer.name, topic="hidden", is_over=True)

    def tell(self, report: RouterReport, signs: Sequence[Sign]) -> WatchFinding:
        """A notice of a change; a warning of a hidden factor."""
        first = signs[0].figures
        if signs[0].topic == "change":
            return self.finding(report, signs, f"the router z {first['change']}", severity="notice")
        text = (
            f"router z in {layers_named(signs[:1])} is {number(first['ratio'])} times the squared mean of logsumexp "
            f"({number(first['z'])} at {number(first['lse'])}), and a mean of squares is never below that: a factor "
            f"is in it, so compare it within this scale only{also_in(signs)}"
        )
        return self.finding(report, signs, text)

    def state_dict(self) -> dict[str, Any]:
        """The scale of the last report with a z."""
        return {"z_factor": json_number(self._factor), "z_scale": self._scale}

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        factor, scale = read_entries(state, ("z_factor", "z_scale"), where=self.kind)
        if scale is not None and scale not in get_args(ZScale):
            raise damaged(f"the scale of z is {spelled(scale)}, not one of {', '.join(get_args(ZScale))}")
        if factor is not None and not is_finite(factor) and nonfinite_number(factor) is None:
            raise damaged(f"the factor of z is {spelled(factor)}, not a number")
        self._factor = factor if factor is None or is_finite(factor) else nonfinite_number(factor)
        self._scale = scale


def _unnamed_change(courses: ZCourses, report: RouterReport) -> str | None:
    """A jump of every z by the same power of ten at once.

    Of a single z only upwards: a fall may be the router's, and is not to be explained away.
    """
    ratios = list(courses.ratios(report).values())
    if not ratios or min(ratios) <= 0 or not all(map(math.isfinite, ratios)):
        return None
    exponent = round(math.log10(ratios[0]))
    power = 10.0**exponent
    if abs(exponent) < 1 or any(abs(ratio / power - 1) > SAME_RATIO for ratio in ratios):
        return None
    if exponent < 0 and len(ratios) < 2:
        return None
    courses.forget()
    return (
        f"is {number(power)} times what it was, at once and everywhere: taken for another scale, its course begins anew"
    )


def _differ(before: float, now: float) -> bool:
    return is_known(before) != is_known(now) or (is_known(now) and before != now)


def _factor(factor: float) -> str:
    return number(factor) if is_known(factor) else "a factor that is not known"
