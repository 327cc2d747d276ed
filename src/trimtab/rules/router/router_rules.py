"""All judgements on routers together: reports come in, findings that are news go out.

Invariant: a finding is said once, again only after it was over or when it has become worse; saving the state, loading
it into new rules and going on equals going on; and no report, whatever stands in it, raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from trimtab.rules.router.collapse import Collapse
from trimtab.rules.router.counts_mismatch import CountsMismatch
from trimtab.rules.router.dead_experts import DeadExperts
from trimtab.rules.router.load_balance import LoadBalanceRising
from trimtab.rules.router.logits_growing import LogitsGrowing
from trimtab.rules.router.onsets import Onsets
from trimtab.rules.router.scale_changed import ScaleChanged
from trimtab.rules.router.signs import Judgement, Seen, Sign
from trimtab.rules.router.z_band import ZBand
from trimtab.rules.router.z_course import ZCourses
from trimtab.rules.said import Cause, Said, Standing
from trimtab.rules.signal import load_states, states_of
from trimtab.rules.state import check_state, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding

STATE_VERSION: Final = 1
"""Version of how a state is put together; what each judgement holds is its own."""

MAX_UNSEEN: Final = 10
"""Reports in a row in which a finding is neither seen again nor over, after which it is: of a layer that is gone, of a
figure that is no longer known, or of one that has come to rest between the two bounds."""

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

    name: ClassVar[str] = "router"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._courses = ZCourses(sums=config.z_band_of == "sum")
        self._scale = ScaleChanged()
        self._said = Said()
        self._onsets = Onsets()
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
        report = replace(report, layers=tuple(map(_judgeable, _distinct(report.layers))))
        self._onsets.begin(report)
        change = self._scale.change(report, self._courses)
        seen = Seen(report, tuple(self._courses.absorb(report)), change)
        findings = [finding for judgement in self._judgements for finding in self._ask(judgement, seen)]
        self._said.end_unseen(report.step, most=MAX_UNSEEN)
        standing = {cause for causes in self._said.together(self._onsets.causes()) for cause in causes}
        for cause in self._onsets.causes():
            if cause not in standing:
                self._onsets.forget(cause)
        return tuple(findings)

    def standing(self) -> tuple[Standing, ...]:
        """Those that were said and are not over, in the order in which they were said."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """All that decides, as plain values; JSON-ready. Settings are not part of it: they may change at a resume."""
        return {
            "version": STATE_VERSION,
            "rule": self.name,
            "said": self._said.state_dict(),
            "courses": self._courses.state_dict(),
            "onsets": self._onsets.state_dict(),
            "judgements": states_of(self._judgements),
        }

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`.

        A judgement that the state does not know starts without a history, and one not known here is passed over.

        Args:
            state: What `state_dict()` gave.

        Raises:
            UsageError: It is of another version, or damaged; nothing has changed then.
        """
        check_state(state, expected={"version": STATE_VERSION, "rule": self.name})
        entries = read_entries(state, ("said", "courses", "onsets", "judgements"), where="the rule")
        said, courses, onsets, judgements = entries
        fresh = RouterRules(self._config)
        fresh._said.load_state_dict(said)
        fresh._courses.load_state_dict(courses)
        fresh._onsets.load_state_dict(onsets)
        load_states(fresh._judgements, judgements)
        self._said, self._courses, self._scale = fresh._said, fresh._courses, fresh._scale
        self._onsets, self._judgements = fresh._onsets, fresh._judgements

    def _ask(self, judgement: Judgement, seen: Seen) -> list[WatchFinding]:
        """What is news to one judgement; what is not, and stands, has the figures of this report from now on."""
        news: dict[tuple[str, int], list[Sign]] = {}
        again: dict[Cause, Sign] = {}
        for sign in judgement.look(seen):
            cause = _cause(judgement, sign)
            self._onsets.see(cause, sign)
            if sign.is_over:
                self._said.close(cause)
            elif self._said.is_news(cause, rank=sign.rank):
                news.setdefault((sign.topic, sign.rank), []).append(sign)
            else:
                again[cause] = sign

        findings = []
        for signs in news.values():
            finding = self._tell(judgement, seen, signs)
            self._said.open(finding, ranks={_cause(judgement, sign): sign.rank for sign in signs})
            findings.append(finding)
        for causes in self._said.together(again):
            worst = max(again[cause].rank for cause in causes)
            signs = [again[cause] for cause in causes if again[cause].rank == worst]
            self._said.see_again(self._tell(judgement, seen, signs), about=causes[0])
        return findings

    def _tell(self, judgement: Judgement, seen: Seen, signs: Sequence[Sign]) -> WatchFinding:
        since = min(self._onsets.since(_cause(judgement, sign)) for sign in signs)
        return replace(judgement.tell(seen.report, signs), since_step=since)


def _cause(judgement: Judgement, sign: Sign) -> Cause:
    return (judgement.kind, sign.topic, sign.layer)


def _distinct(layers: tuple[LayerFigures, ...]) -> tuple[LayerFigures, ...]:
    """Each layer once, the first of a name; a log may be anybody's."""
    named: dict[str, LayerFigures] = {}
    for layer in layers:
        name = layer.name or UNNAMED
        named.setdefault(name, layer if layer.name else replace(layer, name=name))
    return tuple(named.values())


def _judgeable(layer: LayerFigures) -> LayerFigures:
    """A layer without what its logits make of it where they are not finite: a top-k of NaN counts nothing."""
    if all(figure is None or math.isfinite(figure) for figure in (layer.z, layer.lse)):
        return layer
    return LayerFigures(name=layer.name, num_experts=layer.num_experts, top_k=layer.top_k, z=layer.z, lse=layer.lse)
