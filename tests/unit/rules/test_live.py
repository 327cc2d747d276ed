"""The rules that a guard can be given: each keeps what `LiveRule` promises; a new one needs its entry alone."""

import dataclasses
import inspect
import json
from typing import ClassVar, get_args

import pytest

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig, LossGuard
from trimtab.rules.live import LIVE_RULES, LiveRule, LiveRuleName
from trimtab.rules.median import MedianRule


@pytest.mark.parametrize("name", LIVE_RULES)
def test_a_live_rule_stands_under_its_own_name_and_is_set_by_a_setting_of_guards(name: LiveRuleName) -> None:
    rule = LIVE_RULES[name]

    assert rule.name == name
    assert rule.sensitivity in {field.name for field in dataclasses.fields(GuardConfig)}
    assert rule.sensitivity in inspect.signature(LossGuard).parameters
    assert next(iter(inspect.signature(rule).parameters)) == rule.sensitivity
    assert rule.default_min_history <= rule.default_window_size
    assert rule.default_max_skips >= 1


def test_the_names_that_a_type_checker_accepts_are_those_of_the_rules() -> None:
    assert get_args(LiveRuleName) == tuple(LIVE_RULES)


@pytest.mark.parametrize("rule", LIVE_RULES.values())
def test_the_defaults_of_a_live_rule_are_those_of_its_constructor(rule: type[LiveRule]) -> None:
    settings = rule(3.0).settings

    assert settings == {
        rule.sensitivity: 3.0,
        "window_size": rule.default_window_size,
        "min_history": rule.default_min_history,
    }


@pytest.mark.parametrize("rule", LIVE_RULES.values())
def test_the_needed_setting_is_the_one_under_which_a_spike_is_normal(rule: type[LiveRule]) -> None:
    # given a spike among values whose mean, median and noise are exact in binary
    def behind(sensitivity: float) -> LiveRule:
        made = rule(sensitivity)
        made.replace([48.0, 50.0, 52.0, 50.0] * 25)
        return made

    verdict = behind(2.0).judge(400.0)
    assert verdict.reason == "spike"

    # when
    needed = behind(2.0).needed(verdict)

    # then
    assert behind(needed).judge(400.0).reason == "normal"
    assert behind(needed * 0.999).judge(400.0).reason == "spike"


class LiveMedianRule(MedianRule):
    """What a file of its own would hold: a rule that the guard has never heard of."""

    name: ClassVar[str] = "half"
    default_window_size: ClassVar[int] = 5
    default_min_history: ClassVar[int] = 2
    default_max_skips: ClassVar[int] = 3


@pytest.fixture
def _a_further_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LIVE_RULES, "half", LiveMedianRule)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_a_further_rule")
def test_a_further_rule_guards_by_its_entry_alone() -> None:
    # given
    guard = LossGuard(rule="half", multiplier=2.0)  # type: ignore[arg-type]

    # when a level shift comes after its own warm-up of two
    reasons = [guard.check(loss).reason for loss in [1.0, 1.0, 1.0, 4.0, 4.0, 4.0, 4.0]]

    # then three skips in a row, its own number, are all it takes
    assert reasons == ["warmup", "warmup", "normal", "spike", "spike", "spike", "rebaselined"]
    assert guard.state_dict()["rule"]["settings"] == {"multiplier": 2.0, "window_size": 5, "min_history": 2}
    restored = LossGuard(rule="half", multiplier=2.0)  # type: ignore[arg-type]
    restored.load_state_dict(json.loads(json.dumps(guard.state_dict())))
    assert restored.check(9.0) == guard.check(9.0)


@pytest.mark.usefixtures("_a_further_rule")
def test_a_further_rule_is_among_the_choices_and_off_without_its_setting() -> None:
    assert not GuardConfig(rule="half").enabled  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="use 'mean' or 'robust' or 'half'"):
        GuardConfig(rule="third")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="window_size=1 is smaller than min_history=2"):
        GuardConfig(rule="half", window_size=1)  # type: ignore[arg-type]
