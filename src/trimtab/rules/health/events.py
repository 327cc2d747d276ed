"""`judge_event`: what the log keeps beside the steps, handed to the rules; the one way in, live and from a log.

Enters: events "evaluation", "router" and "vitals", with the facts that a log holds. Leaves: findings. Invariant: what
was measured is judged as its event tells it, so that the log alone gives the same findings as the training did.
"""

from __future__ import annotations

from typing import NamedTuple

from trimtab.rules.health.evaluated import evaluated_losses
from trimtab.rules.health.health_rules import HealthRules
from trimtab.values import Event
from trimtab.watched import EVALUATION_EVENT, ROUTER_EVENT, VITALS_EVENT, RouterReport, WatchFinding
from trimtab.watched_json import report_from_facts, vitals_from_facts


class JudgedEvent(NamedTuple):
    """What the rules said of an event.

    Attributes:
        findings: Those that are news.
        report: The report that an event "router" holds; None for others.
    """

    findings: tuple[WatchFinding, ...]
    report: RouterReport | None = None


def judge_event(rules: HealthRules, event: Event) -> JudgedEvent:
    """Judges and absorbs one event; of other kinds nothing is said, and nothing raises whatever its facts are."""
    if event.kind == ROUTER_EVENT:
        report = report_from_facts(event.facts, step=event.step)
        return JudgedEvent(rules.router(report), report)
    if event.kind == VITALS_EVENT:
        return JudgedEvent(rules.vitals(vitals_from_facts(event.facts, step=event.step)))
    if event.kind == EVALUATION_EVENT:
        return JudgedEvent(_evaluation(rules, event))
    return JudgedEvent(())


def _evaluation(rules: HealthRules, event: Event) -> tuple[WatchFinding, ...]:
    finite = event.facts.get("weights_finite")
    weights_finite = finite if isinstance(finite, bool) else None
    return tuple(
        finding
        for name, loss in evaluated_losses(event.facts)
        for finding in rules.evaluation(event.step, loss, name=name, weights_finite=weights_finite)
    )
