"""All judgements on routers together: reports come in, findings that are news go out.

Invariant: a finding is said once, again only after it was over or when it has become worse; saving the state, loading
it into new rules and going on equals going on; and no report, whatever stands in it, raises.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from trimtab.rules.router.collapse import Collapse
from trimtab.rules.router.counts_mismatch import CountsMismatch
from trimtab.rules.router.dead_experts import DeadExperts
from trimtab.rules.router.load_balance import LoadBalanceRising
from trimtab.rules.router.logits_growing import LogitsGrowing
from trimtab.rules.router.said import Said
from trimtab.rules.router.scale_changed import ScaleChanged
from trimtab.rules.router.signs import Judgement, Seen
from trimtab.rules.router.z_band import ZBand
from trimtab.rules.router.z_course import ZCourses
from trimtab.rules.state import STATE_VERSION, check_state, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding

NAME: Final = "router"
"""What a state says that it is of."""

UNNAMED: Final = "(unnamed)"
"""Stands for the name of a layer that has none."""


class RouterRules:
    """Judges the reports of a run's routers, in the order of their steps.

    Args:
        config: The settings.

    Example:
        >>> rules = RouterRules(WatchConfig())
        >>> for step, z in ((2500, 295.2), (2750, 26.2), (3000, 0.082), (3250, 0.028)):
        ...     report = RouterReport(step=step, first_step=step, z=z, z_scale="sum")
        ...     for finding in rules.judge(report):
        ...         print(finding.step, finding.kind, finding.marks_unhealthy)
        3000 z_band True
    """

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._courses = ZCourses(sums=config.z_band_of == "sum")
        self._scale = ScaleChanged()
        self._said = Said()
        self._judgements: tuple[Judgement, ...] = (
            Collapse(config),
            DeadExperts(config),
            ZBand(config),
            LogitsGrowing(config),
            LoadBalanceRising(config),
            self._scale,
            CountsMismatch(),
        )

    def judge(self, report: RouterReport) -> tuple[WatchFinding, ...]:
        """Judges one report and takes it in.

        Args:
            report: Of later steps than those before it; figures that are None are left out of the judgement.

        Returns:
            What is news, in the order of the judgements; layers that share a fault in one finding.
        """
        report = replace(report, layers=_distinct(report.layers))
        change = self._scale.change(report, self._courses)
        seen = Seen(report, tuple(self._courses.absorb(report)), change)
        findings = []
        for judgement in self._judgements:
            for signs in self._said.news(judgement.kind, judgement.look(seen)):
                finding = judgement.tell(report, signs)
                self._said.open(finding, signs)
                findings.append(finding)
        return tuple(findings)

    def standing(self) -> tuple[WatchFinding, ...]:
        """Those that were said and are not over, in the order in which they were said."""
        return self._said.findings

    def state_dict(self) -> dict[str, Any]:
        """All that decides, as plain values; JSON-ready. Settings are not part of it: they may change at a resume."""
        return {
            "version": STATE_VERSION,
            "rule": NAME,
            "said": self._said.state_dict(),
            "courses": self._courses.state_dict(),
            "judgements": {judgement.kind: judgement.state_dict() for judgement in self._judgements},
        }

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`.

        Args:
            state: What `state_dict()` gave.

        Raises:
            UsageError: It is of another version, or damaged; nothing has changed then.
        """
        check_state(state, expected={"version": STATE_VERSION, "rule": NAME})
        said, courses, judgements = read_entries(state, ("said", "courses", "judgements"), where="the rule")
        fresh = RouterRules(self._config)
        fresh._said.load_state_dict(said)
        fresh._courses.load_state_dict(courses)
        states = read_entries(judgements, (judgement.kind for judgement in fresh._judgements), where="the rule")
        for judgement, part in zip(fresh._judgements, states, strict=True):
            judgement.load_state_dict(part)
        self._said, self._courses, self._scale = fresh._said, fresh._courses, fresh._scale
        self._judgements = fresh._judgements


def _distinct(layers: tuple[LayerFigures, ...]) -> tuple[LayerFigures, ...]:
    """Each layer once, the first of a name; a log may be anybody's."""
    named: dict[str, LayerFigures] = {}
    for layer in layers:
        name = layer.name or UNNAMED
        named.setdefault(name, layer if layer.name else replace(layer, name=name))
    return tuple(named.values())
