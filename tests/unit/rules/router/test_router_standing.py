"""What stands, for how long, and what it says then: a reason must be true when a checkpoint is saved."""

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from trimtab.rules.router import RouterRules
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding

SaidOf = Callable[..., list[WatchFinding]]
ReportsOf = Callable[..., list[RouterReport]]

# Of the last layer of a small Mixtral at steps 20 to 60, top 2 of 8, its load balancing loss off.
AT_20 = (5_900, 290, 0, 0, 0, 6_403, 213, 0)
AT_60 = (5_629, 55, 16, 253, 61, 6_080, 80, 630)
AT_110 = (4_803, 427, 898, 2_178, 39, 3_534, 814, 129)
BETWEEN = (5_400, 600, 350, 250, 150, 5_400, 400, 250)
TOTAL = (6_402, 0, 0, 0, 0, 6_402, 0, 0)
BALANCED = (1_600,) * 8

FROM_HERE_ON = "; 3 reports have shown it: checkpoints are not healthy from here on"


def layer(counts: tuple[int, ...] | None, name: str = "moe", top_k: int = 2) -> LayerFigures:
    return LayerFigures(name=name, num_experts=8, top_k=top_k, counts=counts, token_entropy=1.5, spread=3.0)


def judged(*reports: RouterReport) -> tuple[RouterRules, list[WatchFinding]]:
    rules = RouterRules(WatchConfig())
    return rules, [finding for report in reports for finding in rules.judge(report)]


def marks(rules: RouterRules) -> list[str]:
    return [one.finding.kind for one in rules.standing() if one.finding.marks_unhealthy]


def test_an_imbalance_of_one_report_of_a_young_run_marks_nothing(reports: ReportsOf) -> None:
    rules, found = judged(*reports([layer(AT_20)], begin=20))

    assert [(one.kind, one.severity, one.marks_unhealthy) for one in found] == [
        ("collapse", "warning", False),
        ("dead_experts", "warning", False),
    ]
    assert all("may find its balance" in one.text for one in found)
    assert marks(rules) == []


def test_one_that_lasts_for_three_reports_marks_and_is_said_as_worse(reports: ReportsOf) -> None:
    rules, found = judged(*reports(*[[layer(AT_20)]] * 5, begin=20))

    assert [(one.kind, one.severity, one.step) for one in found] == [
        ("collapse", "warning", 20),
        ("dead_experts", "warning", 20),
        ("collapse", "critical", 120),
        ("dead_experts", "warning", 120),
    ]
    assert marks(rules) == ["collapse", "dead_experts"]
    assert "may find its balance" not in found[2].text + found[3].text
    assert all(one.text.endswith(FROM_HERE_ON) for one in found[2:])
    # and what stands later says it no more
    assert all(FROM_HERE_ON not in one.because for one in rules.standing())


@pytest.mark.parametrize(
    ("course", "since"),
    [
        ((AT_20, AT_20, BALANCED, AT_20), 3),
        ((AT_20, BALANCED) * 3, 4),
        ((BALANCED, AT_20) * 3, 3),
        ((BALANCED, AT_20, AT_20, AT_20), 3),
        ((AT_20, BETWEEN, BETWEEN, AT_20, BETWEEN, AT_20), 5),
    ],
    ids=["after_a_well_one", "every_second", "every_second_but_the_first", "after_the_beginning", "between_the_bounds"],
)
def test_a_young_layer_that_is_out_of_line_again_and_again_marks(
    reports: ReportsOf, course: tuple[tuple[int, ...], ...], since: int
) -> None:
    rules, marking = RouterRules(WatchConfig()), []
    for place, report in enumerate(reports(*([layer(one)] for one in course), begin=20)):
        marking += [place for one in rules.judge(report) if one.kind == "collapse" and one.marks_unhealthy]

    assert marking[0] == since


@pytest.mark.parametrize("broken", [AT_20, (5_900, 290, 60, 60, 60, 6_403, 213, 60)], ids=["dead", "load_alone"])
def test_a_young_layer_that_had_found_its_balance_and_breaks_is_judged_at_once(
    reports: ReportsOf, broken: tuple[int, ...]
) -> None:
    # given seven balanced reports, and a resume before the eighth
    *before, last = reports(*[[layer(BALANCED)]] * 7, [layer(broken)], begin=50)
    first, _ = judged(*before)
    rules = RouterRules(WatchConfig())
    rules.load_state_dict(json.loads(json.dumps(first.state_dict())))

    found = rules.judge(last)

    assert last.step == 400
    assert found[0].severity == "critical"
    assert all(one.marks_unhealthy for one in found)
    assert not any("young" in one.text or FROM_HERE_ON in one.text for one in found)


def test_a_layer_out_of_line_beside_one_that_is_young_is_judged_by_itself(reports: ReportsOf) -> None:
    old, young = layer(BALANCED, name="old"), layer(AT_20, name="young")
    broken = replace(young, name="old")
    _, found = judged(*reports([old], [old], [broken, young], begin=50))

    collapses = [(one.layers, one.marks_unhealthy) for one in found if one.kind == "collapse"]
    assert collapses == [(("old",), True), (("young",), False)]


def test_silence_that_chance_may_explain_shows_no_layer_well(reports: ReportsOf) -> None:
    # given 8 tokens a report over the same 4 of 8 experts: some such reports until chance does not explain it
    few = layer((2, 2, 2, 2, 0, 0, 0, 0), top_k=1)
    _, found = judged(*reports(*[[few]] * 8, begin=20))

    dead = [(one.step, one.marks_unhealthy) for one in found if one.kind == "dead_experts"]
    assert dead == [(dead[0][0], False), (dead[0][0] + 100, True)]
    assert dead[0][0] > 100


def test_a_layer_all_of_whose_tokens_go_to_the_same_experts_needs_no_second_report(reports: ReportsOf) -> None:
    _, found = judged(*reports([layer(TOTAL)], begin=20))

    assert [(one.kind, one.severity) for one in found] == [("collapse", "critical"), ("dead_experts", "warning")]


def test_past_the_warm_up_one_report_is_enough(reports: ReportsOf) -> None:
    rules, _ = judged(*reports([layer(AT_20)], begin=1_001))

    assert marks(rules) == ["collapse", "dead_experts"]


def test_dead_experts_are_over_in_the_next_report_in_which_each_gets_a_fair_number(reports: ReportsOf) -> None:
    # given experts 2, 3, 4 and 7 dead for three reports, and 16 tokens for the least busy of them, 1 % of the mean
    rules, _ = judged(*reports(*[[layer(AT_20)]] * 3, [layer(AT_60)], begin=20))

    assert [one.finding.kind for one in rules.standing()] == ["collapse"]


def test_an_expert_that_was_not_dead_keeps_no_finding_alive(reports: ReportsOf) -> None:
    # given expert 0 dead and back, and a silence of expert 1 that proves nothing yet
    rules, _ = judged(*reports([layer((0, *[100] * 7))], [layer((50, 0, 10, 10, 10, 10, 10, 10), top_k=1)]))

    assert rules.standing() == ()


def test_dead_experts_that_are_fewer_now_are_told_as_they_are_and_mark_no_more(reports: ReportsOf) -> None:
    one_left = (3_000, 2_000, 0, 1_600, 1_600, 3_000, 800, 800)
    rules, _ = judged(*reports([layer(AT_20)], [layer(one_left)]))

    (standing,) = [one for one in rules.standing() if one.finding.kind == "dead_experts"]
    assert not standing.finding.marks_unhealthy
    assert standing.because.startswith(
        "dead_experts in moe since step 2000, last seen at step 2050: in layer moe expert 2 of 8 got none"
    )


def test_a_reason_says_when_it_was_seen_last(reports: ReportsOf) -> None:
    # given a collapse at three reports, and a load between the bounds at the next two
    rules, _ = judged(*reports(*([layer(one)] for one in (AT_20, AT_20, AT_60, BETWEEN, BETWEEN))))

    (standing,) = rules.standing()
    assert standing.because.startswith(
        "collapse in moe since step 2000, last seen at step 2100: in layer moe the load has collapsed"
    )
    assert standing.finding.figures["layers"]["moe"]["max_vio"] == pytest.approx(6_080 * 8 / sum(AT_60) - 1)


@pytest.mark.parametrize(
    "after",
    [
        layer(BALANCED, name="another"),
        layer(None),
        layer(BETWEEN),
    ],
    ids=["the_layer_is_gone", "its_counts_are_no_longer_known", "between_the_bounds"],
)
def test_what_ten_reports_do_not_show_again_is_over(reports: ReportsOf, after: LayerFigures) -> None:
    after = replace(after, token_entropy=None)
    rules, _ = judged(*reports([layer(AT_60)], *[[after]] * 9))
    assert len(rules.standing()) == 1

    rules, _ = judged(*reports([layer(AT_60)], *[[after]] * 10))
    assert rules.standing() == ()


def test_growth_that_has_come_to_rest_is_over_and_new_growth_is_said_again(z_reports: ReportsOf) -> None:
    grown = [14.0, 16.0, 19.0, 24.0]
    # each a little above the one before: never flat, and no growth
    rest = [24.0 * 1.001**n for n in range(1, 15)]
    again = [28.0, 34.0, 42.0, 52.0]
    rules, found = judged(*z_reports([*grown, *rest, *again]))

    assert [one.kind for one in found] == ["logits_growing", "logits_growing"]
    assert len(rules.standing()) == 1


def test_layers_that_stand_together_are_told_as_long_as_one_of_them_is_seen(reports: ReportsOf) -> None:
    both = [layer(AT_60, name="a"), layer(AT_60, name="b")]
    one = [layer(AT_60, name="a"), layer(BALANCED, name="b")]
    rules, found = judged(*reports(both, one))
    (standing,) = rules.standing()

    assert len(found) == 1
    assert (standing.since, standing.finding.step, standing.finding.layers) == (2_000, 2_050, ("a",))
