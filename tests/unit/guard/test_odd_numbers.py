"""Numbers that no float holds, and states that nobody saved: judged or refused, never a traceback of another kind."""

import copy
import json
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.guard import GuardConfig, LossGuard, PerTokenLossGuard
from trimtab.rules.finite import FiniteRule
from trimtab.rules.mean import MeanRule
from trimtab.rules.median import MedianRule
from trimtab.rules.norms import NormRule
from trimtab.rules.robust import RobustRule


def named(value: object) -> str | None:
    """A test's name for a value; pytest would spell the largest number."""
    return "huge" if value is HUGE else None


HUGE = 10**5000  # too large for a float, and longer than Python is willing to spell


@pytest.mark.parametrize("loss", [10**400, -(10**400), HUGE, Fraction(10**400), Decimal("1e400")], ids=named)
def test_a_loss_beyond_every_float_is_not_finite(loss: Any) -> None:
    assert LossGuard(multiplier=2.0).check(loss).reason == "nonfinite"
    assert PerTokenLossGuard(multiplier=2.0).check(loss, 3).reason == "nonfinite"
    assert LossGuard().check(loss).reason == "off"


@pytest.mark.parametrize("rule", [MeanRule(2.0), MedianRule(), RobustRule(), NormRule(), FiniteRule()])
def test_every_rule_judges_a_number_beyond_every_float(rule: Any) -> None:
    for loss in (10**400, -(10**400)):
        assert rule.judge(loss).reason == "nonfinite"
        assert rule.judge(loss).loss == (math.inf if loss > 0 else -math.inf)
        rule.absorb(loss)
    assert rule.judge(1).keep


class Unfloatable:
    def __float__(self) -> float:
        raise TypeError("no number today")


@pytest.mark.parametrize("loss", [Decimal("sNaN"), Unfloatable(), "1.0", None, 1j, True, [1.0]])
def test_a_loss_that_is_no_real_number_is_refused_by_its_name(loss: Any) -> None:
    for check in (LossGuard(multiplier=2.0).check, lambda x: PerTokenLossGuard(multiplier=2.0).check(x, 3)):
        with pytest.raises(UsageError, match=r"loss.* is .*of type .*: expected one real number"):
            check(loss)


@pytest.mark.parametrize("num_tokens", [10**400, HUGE, 2**63, -1, 1.0, True, "3", None], ids=named)
def test_a_count_of_tokens_that_is_none_is_refused(num_tokens: Any) -> None:
    guard = PerTokenLossGuard(multiplier=2.0)

    with pytest.raises(UsageError, match="num_tokens is "):
        guard.check(1.0, num_tokens)

    assert guard.num_judged == 0


@pytest.mark.parametrize("step", ["a", 1.5, 1.0, True, [1], HUGE, 2**63, math.nan], ids=named)
@pytest.mark.parametrize("rule", ["mean", "off"])
def test_a_step_that_is_no_whole_number_is_refused_and_nothing_has_changed(step: Any, rule: str) -> None:
    guard = LossGuard() if rule == "off" else LossGuard(multiplier=2.0)
    guard.check(1.0, step=3)
    before = guard.state_dict()

    with pytest.raises(UsageError, match=r"step is .*: expected a whole number"):
        guard.check(1.0, step=step)
    per_token = PerTokenLossGuard(multiplier=2.0)
    for num_tokens in (0, 1):
        with pytest.raises(UsageError, match="step is "):
            per_token.check(1.0, num_tokens, step=step)

    assert guard.state_dict() == before


@pytest.mark.parametrize("step", [np.int64(7), np.uint8(7), 7])
def test_a_step_out_of_numpy_is_a_whole_number(step: Any) -> None:
    guard = LossGuard(multiplier=2.0)
    guard.check(1.0, step=step)

    assert json.loads(json.dumps(guard.state_dict()))["last_step"] == 7


BEYOND = [10**400, HUGE, Fraction(10**400), math.inf, math.nan, Decimal(3)]


@pytest.mark.parametrize("value", BEYOND, ids=named)
@pytest.mark.parametrize(
    "make",
    [
        lambda x: LossGuard(multiplier=x),
        lambda x: LossGuard(rule="robust", k=x),
        lambda x: LossGuard(multiplier=2.0, window_size=x),
        lambda x: LossGuard(multiplier=2.0, min_history=x),
        lambda x: LossGuard(multiplier=2.0, max_consecutive_skips=x),
        lambda x: GuardConfig.from_optim({"loss_spike_skip_multiplier": x}),
        lambda x: MeanRule(x),
        lambda x: MedianRule(x),
        lambda x: RobustRule(x),
        lambda x: RobustRule(window_size=x),
    ],
)
def test_a_setting_that_is_no_finite_number_is_refused(make: Callable[[Any], object], value: Any) -> None:
    with pytest.raises(UsageError, match=r"makes no sense: use|expected a whole number from 1 to"):
        make(value)


def judged(guard: LossGuard) -> LossGuard:
    for step, loss in enumerate([1.0, 1.1, 0.9, 9.0, math.nan, 1.0, 9.0, 9.5, math.inf]):
        guard.check(loss, step=step)
    return guard


MAKERS: dict[str, Callable[[], LossGuard]] = {
    "mean": lambda: LossGuard(multiplier=2.0),
    "robust": lambda: LossGuard(rule="robust", window_size=5, min_history=3),
    "off": lambda: LossGuard(),
}


def paths(state: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The place of every value in a state, containers too."""
    inside = state.items() if isinstance(state, dict) else enumerate(state) if isinstance(state, list) else ()
    return [place, *(path for key, value in inside for path in paths(value, (*place, key)))]


def damaged(state: dict[str, Any]) -> list[tuple[str, Any]]:
    """The state with one value gone or wrong, for every place in it."""
    found: list[tuple[str, Any]] = []
    for path in paths(state)[1:]:
        # Nothing follows a hint but its words, and none is as good as any.
        wrongs = [5, b"x", [1], {"a": 1}, "x", 1.5, -1, True, math.nan, 10**400, [math.inf] * 99, np.zeros(3), object()]
        for wrong in ("gone", *wrongs):
            broken = copy.deepcopy(state)
            holder = broken
            for key in path[:-1]:
                holder = holder[key]
            if isinstance(wrong, str) and wrong == "gone":
                if isinstance(holder, list):
                    continue
                del holder[path[-1]]
            else:
                holder[path[-1]] = wrong
            found.append((f"{path} {type(wrong).__name__}", broken))
    return found


@pytest.mark.parametrize("name", MAKERS)
def test_a_damaged_state_is_refused_whole_or_is_taken_over_whole(name: str) -> None:
    # given a guard with a history, and every damage to its state at one place
    guard = judged(MAKERS[name]())
    state = json.loads(json.dumps(guard.state_dict()))
    target = MAKERS[name]()
    target.check(2.0, step=1)
    before = json.dumps(target.state_dict())
    num_refused = 0

    for what, broken in damaged(state):
        # when
        try:
            target.load_state_dict(broken)
        except UsageError:
            num_refused += 1
            # then nothing has changed
            assert json.dumps(target.state_dict()) == before, what
            continue
        # or it is a state that a guard can go on with and save again
        for loss in (1.0, 5.0, 100.0, math.nan, 1.0) * 30:
            target.check(loss, step=10**6)
        json.dumps(target.state_dict(), allow_nan=False)
        target = MAKERS[name]()
        target.check(2.0, step=1)

    assert num_refused > 0.8 * len(damaged(state))


@pytest.mark.parametrize("state", [None, [], "state", 5, {}, {"version": 1}, object()])
@pytest.mark.parametrize("name", MAKERS)
def test_what_is_no_state_is_refused(name: str, state: Any) -> None:
    with pytest.raises(UsageError):
        MAKERS[name]().load_state_dict(state)


@pytest.mark.parametrize("rule", [MeanRule(2.0), MedianRule(), RobustRule(), NormRule(), FiniteRule()])
@pytest.mark.parametrize("state", [None, [], {}, 5])
def test_what_is_no_state_of_a_rule_is_refused(rule: Any, state: Any) -> None:
    with pytest.raises(UsageError):
        rule.load_state_dict(state)


@pytest.mark.parametrize(
    ("place", "wrong", "found"),
    [
        (("rule", "window", "values"), [1.0] * 9, "9 values in a window of 8"),
        (("rule", "window", "values"), [1.0, math.inf], "window"),
        (("rule", "window", "values"), [0.1], "no finite float32"),
        (("streak", "losses"), [], "streak"),
        (("num_skipped",), 10**6, "num_skipped"),
        (("rate", "skips"), [[5, 2.0], [4, 2.0]], "rate"),
        (("last_step",), "a", "last_step"),
        (("said",), "nonfinite", "said"),
    ],
)
def test_a_damaged_state_is_refused_with_what_was_found(place: tuple[str, ...], wrong: Any, found: str) -> None:
    guard = judged(LossGuard(multiplier=2.0))
    state = guard.state_dict()
    before = json.dumps(state)
    holder = state = json.loads(before)
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = wrong

    with pytest.raises(UsageError, match=found) as error:
        guard.load_state_dict(state)

    assert "leave the state out" in str(error.value)
    assert json.dumps(guard.state_dict()) == before
