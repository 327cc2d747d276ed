"""What the log keeps beside the steps, judged as it stands there."""

import json

import pytest

from trimtab.rules.health import HealthRules, judge_event
from trimtab.values import Event
from trimtab.watched import LayerFigures, RouterReport, Vitals
from trimtab.watched_json import report_to_facts, vitals_to_facts


def event(kind, step, facts):
    return Event(kind, step, 0.0, json.loads(json.dumps(facts)))


def test_an_evaluation_is_judged_by_name_and_with_what_is_known_of_the_weights():
    found = judge_event(HealthRules(), event("evaluation", 3, {"eval_wiki_loss": "nan", "weights_finite": False}))
    assert [(one.kind, one.severity, one.figures["name"]) for one in found.findings] == [
        ("eval_nonfinite", "critical", "eval_wiki_loss")
    ]
    assert found.report is None


def test_vitals_are_judged_as_they_were_measured():
    facts = vitals_to_facts(Vitals(step=3, host_available_bytes=1 << 20))
    assert [one.kind for one in judge_event(HealthRules(), event("vitals", 3, facts)).findings] == ["host_memory"]


def test_a_report_is_judged_and_given_back():
    # given: a layer of which all tokens went to one of four experts
    layer = LayerFigures(
        name="gate", num_experts=4, top_k=1, num_tokens=640, z=2500.0, lse=50.0, load_balance=4.0,
        counts=(640, 0, 0, 0), token_entropy=0.0, spread=50.0,
    )  # fmt: skip
    report = RouterReport(step=50, first_step=1, layers=(layer,))
    # when
    found = judge_event(HealthRules(), event("router", 50, report_to_facts(report)))
    # then
    assert found.report == report
    assert "collapse" in {one.kind for one in found.findings}


@pytest.mark.parametrize("kind", ["finding", "watch", "resume", "note"])
def test_of_other_kinds_of_events_nothing_is_said(kind):
    assert judge_event(HealthRules(), event(kind, 3, {"loss": "nan", "host_available_bytes": 1})) == ((), None)
