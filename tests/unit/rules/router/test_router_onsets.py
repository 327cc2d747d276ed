"""Since when a layer may have been as a finding says: the last step after which it was known to be well."""

import json
from collections.abc import Callable, Iterable

import pytest

from trimtab.errors import UsageError
from trimtab.rules.router import RouterRules
from trimtab.rules.router.onsets import Onsets
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding

BALANCED = (800, 810, 790, 805, 795, 800, 790, 810)
DEAD = (6_400, 0, 0, 0, 0, 0, 0, 0)
HALF = (1_600, 1_600, 1_600, 1_600, 0, 0, 0, 0)
ONE_SILENT = (0, 914, 914, 914, 914, 915, 914, 915)


def layer(counts: tuple[int, ...], *, name: str = "moe", z: float | None = None) -> LayerFigures:
    is_dead = counts == DEAD
    return LayerFigures(
        name=name, num_experts=8, top_k=1, num_tokens=sum(counts), counts=counts, z=z,
        token_entropy=0.01 if is_dead else 1.5, spread=50.0 if is_dead else 3.0,
    )  # fmt: skip


Reports = Callable[..., list[RouterReport]]


def marking(rules: RouterRules, reports: Iterable[RouterReport]) -> list[WatchFinding]:
    return [finding for report in reports for finding in rules.judge(report) if finding.marks_unhealthy]


def since(reports: Iterable[RouterReport], *, kind: str) -> int | None:
    """Of the finding that stands at the end."""
    rules = RouterRules(WatchConfig())
    marking(rules, reports)
    (standing,) = [one for one in rules.standing() if one.finding.kind == kind and one.finding.marks_unhealthy]
    return standing.finding.since_step


def test_it_is_the_beginning_of_the_last_report_that_was_well(reports: Reports) -> None:
    # Reports of 1951-2000, 2001-2050, 2051-2100: a router that dies at 2049 does not show in the second.
    three = reports([layer(BALANCED)], [layer(BALANCED)], [layer(DEAD)])
    assert since(three, kind="collapse") == 2_000


def test_it_stays_while_the_finding_stands(reports: Reports) -> None:
    dead = [[layer(DEAD)]] * 5
    assert since(reports([layer(BALANCED)], *dead), kind="collapse") == 1_950


def test_a_layer_that_was_never_well_has_none(reports: Reports) -> None:
    assert since(reports([layer(DEAD)], [layer(DEAD)]), kind="collapse") == 0


def test_a_layer_that_came_back_and_died_again_was_well_between(reports: Reports) -> None:
    again = reports([layer(BALANCED)], [layer(DEAD)], [layer(BALANCED)], [layer(BALANCED)], [layer(DEAD)])
    assert since(again, kind="collapse") == 2_100


def test_half_of_the_experts_were_dead_since_half_were_silent_not_since_the_first_was(reports: Reports) -> None:
    # One expert is dead for thousands of steps, which marks nothing; then half of all are.
    long = [[layer(ONE_SILENT)]] * 70
    found = since(reports([layer(BALANCED)], *long, [layer(HALF)]), kind="dead_experts")
    first_of_half = 2_000 + 50 * 71 - 49
    assert found == first_of_half - 50 - 1


def test_a_low_z_that_a_z_loss_holds_is_well_until_its_load_is_on_few_experts(reports: Reports) -> None:
    held = [[layer(BALANCED, z=0.05)]] * 30
    found = since(reports(*held, [layer(DEAD, z=0.05)]), kind="z_band")
    assert found == 2_000 + 50 * 29 - 49 - 1


def test_one_that_was_held_again_between_was_well_then(reports: Reports) -> None:
    held, dead = [layer(BALANCED, z=0.05)], [layer(DEAD, z=0.05)]
    assert since(reports(held, held, dead, held, held, dead), kind="z_band") == 2_000 + 50 * 4 - 49 - 1


def test_a_state_carries_it(reports: Reports) -> None:
    steps = reports([layer(BALANCED)], [layer(BALANCED)], [layer(DEAD)], [layer(DEAD)])
    rules = RouterRules(WatchConfig())
    marking(rules, steps[:3])
    other = RouterRules(WatchConfig())
    other.load_state_dict(json.loads(json.dumps(rules.state_dict())))
    other.judge(steps[3])
    assert {one.finding.since_step for one in other.standing() if one.finding.kind == "collapse"} == {2_000}


@pytest.mark.parametrize(
    "state",
    [
        None,
        {"starts": 1, "well": []},
        {"starts": [-1], "well": []},
        {"starts": [], "well": [["a", 1]]},
        {"starts": [], "well": [[["a", "b", 3], 1]]},
        {"starts": [], "well": [[["a"], -1]]},
    ],
    ids=["none", "no-list", "negative", "no-cause", "a-number-in-a-cause", "a-step-below-0"],
)
def test_a_damaged_state_is_refused_and_changes_nothing(state: object) -> None:
    onsets = Onsets()
    with pytest.raises(UsageError):
        onsets.load_state_dict(state)
    assert onsets.state_dict() == {"starts": [], "well": []}
