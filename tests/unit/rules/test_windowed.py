"""What every rule with a window gets right, and that each judges as a naive oracle does.

The oracle keeps a plain list, rounds with numpy, and takes its statistics from the standard library.
"""

import json
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import UsageError
from trimtab.rules.finite import FiniteRule
from trimtab.rules.mean import MeanRule
from trimtab.rules.median import MedianRule
from trimtab.rules.norms import NormRule
from trimtab.rules.robust import RobustRule
from trimtab.rules.windowed import WindowedRule
from trimtab.values import Verdict

WINDOWED: dict[str, Callable[[], WindowedRule]] = {
    "mean": lambda: MeanRule(1.5, window_size=5, min_history=2),
    "median": lambda: MedianRule(1.5, window_size=6, min_history=2),
    "robust": lambda: RobustRule(3.0, window_size=7, min_history=3),
    "norm": NormRule,
}

LOSSES = st.one_of(
    st.floats(width=32),
    st.floats(-5, 5),
    st.integers(-30, 90).map(lambda tenths: tenths / 10),
    st.sampled_from([0.0, -0.0, math.nan, math.inf, -math.inf, 1e39, -1e39, 1e-46, 2.5, 2.5078, 1e-4, 2e-4]),
)


def rounded(x: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(x))


def decided(verdict: Verdict) -> tuple[object, ...]:
    """All of a verdict but the loss, which may be NaN and then equals nothing."""
    return verdict.keep, verdict.reason, verdict.baseline, verdict.threshold, verdict.scale


def naive_ratio(x: float, baseline: float, multiplier: float) -> str:
    if baseline <= 0:
        return "baseline_not_positive"
    return "spike" if x > baseline * multiplier else "normal"


def naive_mean(x: float, history: list[float]) -> str:
    last = history[-5:]
    return naive_ratio(x, statistics.fmean(last), 1.5) if len(last) >= 2 else "warmup"


def naive_median(x: float, history: list[float]) -> str:
    last = history[-6:]
    return naive_ratio(x, statistics.median(last), 1.5) if len(last) >= 2 else "warmup"


def naive_distance(x: float, last: list[float], k: float) -> bool:
    median = statistics.median(last)
    mad = statistics.median([abs(value - median) for value in last])
    return x - median > k * max(1.4826 * mad, 0.02 * abs(median), 5e-5)


def naive_robust(x: float, history: list[float]) -> str:
    last = history[-7:]
    if len(last) < 3:
        return "warmup"
    return "spike" if naive_distance(x, last, 3.0) else "normal"


def naive_norm(x: float, history: list[float]) -> str:
    last = history[-100:]
    if not last:
        return "warmup"
    if len(last) < 3:
        return naive_ratio(x, last[-1], 10.0)
    if len(last) < 20:
        return naive_ratio(x, statistics.median(last), 2.0)
    return "spike" if naive_distance(x, last, 10.0) and x > 3 * statistics.median(last) else "normal"


NAIVE = {"mean": naive_mean, "median": naive_median, "robust": naive_robust, "norm": naive_norm}


@pytest.mark.parametrize("name", WINDOWED)
@given(losses=st.lists(LOSSES, max_size=40), skip=st.booleans())
def test_a_rule_judges_as_the_oracle_does(name: str, losses: list[float], *, skip: bool) -> None:
    """Live (a spike stays out) and offline (every finite value enters)."""
    rule = WINDOWED[name]()
    history: list[float] = []
    for loss in losses:
        # when
        verdict = rule.judge(loss)
        if verdict.keep or not skip:
            rule.absorb(loss)

        # then
        x = rounded(loss)
        expected = NAIVE[name](x, history) if math.isfinite(x) else "nonfinite"
        assert verdict.reason == expected
        assert verdict.keep == (expected not in ("nonfinite", "spike"))
        assert verdict.loss == x or math.isnan(x)
        if math.isfinite(x) and (verdict.keep or not skip):
            history.append(x)


@given(losses=st.lists(st.floats(0, 300, width=32), min_size=20, max_size=60), spread=st.floats(0.01, 1))
def test_the_norm_rule_judges_as_the_oracle_does_once_twenty_lie_behind(losses: list[float], spread: float) -> None:
    # given norms around 1, so that some of the drawn ones are out of line and some are not
    rule = NormRule()
    history = [rounded(1 + spread * math.sin(place)) for place in range(25)]
    rule.replace(history)

    for loss in losses:
        assert rule.judge(loss).reason == naive_norm(rounded(loss), history)
        rule.absorb(loss)
        history.append(rounded(loss))


@pytest.mark.parametrize("name", WINDOWED)
@given(window=st.lists(st.floats(-5, 5), min_size=3, max_size=5), loss=LOSSES, data=st.data())
def test_a_verdict_does_not_depend_on_the_order_of_the_window(
    name: str, window: list[float], loss: float, data: st.DataObject
) -> None:
    # given the same values in another order
    one, other = WINDOWED[name](), WINDOWED[name]()
    one.replace(window)
    other.replace(data.draw(st.permutations(window)))

    # then
    assert decided(one.judge(loss)) == decided(other.judge(loss))


@pytest.mark.parametrize("name", WINDOWED)
def test_judging_changes_nothing(name: str) -> None:
    rule = WINDOWED[name]()
    rule.replace([1.0, 1.1, 0.9, 1.0])
    before = rule.state_dict()

    for loss in (1.0, 100.0, math.nan, -5.0):
        rule.judge(loss)

    assert rule.state_dict() == before


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e39])
def test_what_is_not_finite_is_skipped_in_warm_up_too_and_never_enters(name: str, loss: float) -> None:
    # given nothing behind, and values behind
    for behind in ([], [1.0, 1.1, 0.9, 1.0]):
        rule = WINDOWED[name]()
        rule.replace(behind)
        before = rule.state_dict()

        # when
        verdict = rule.judge(loss)
        rule.absorb(loss)

        # then
        assert (verdict.keep, verdict.reason, verdict.baseline) == (False, "nonfinite", None)
        assert rule.state_dict() == before


@pytest.mark.parametrize("name", WINDOWED)
def test_a_replaced_window_leaves_out_what_is_not_finite(name: str) -> None:
    rule = WINDOWED[name]()

    rule.replace([1.0, math.nan, 2.1, math.inf])

    assert rule.state_dict()["window"]["values"] == [1.0, rounded(2.1)]


@pytest.mark.parametrize("name", WINDOWED)
def test_after_a_reset_it_is_warm_up_again(name: str) -> None:
    rule = WINDOWED[name]()
    rule.replace([1.0] * 5)
    assert rule.judge(100.0).reason == "spike"

    rule.reset()

    assert rule.judge(100.0).reason == "warmup"


@pytest.mark.parametrize("name", WINDOWED)
@given(before=st.lists(LOSSES, max_size=30), after=st.lists(LOSSES, max_size=15))
def test_a_restored_rule_decides_as_the_one_that_went_on(name: str, before: list[float], after: list[float]) -> None:
    # given
    rule, restored = WINDOWED[name](), WINDOWED[name]()
    for loss in before:
        rule.absorb(loss)

    # when
    restored.load_state_dict(json.loads(json.dumps(rule.state_dict(), allow_nan=False)))

    # then
    for loss in after:
        assert decided(rule.judge(loss)) == decided(restored.judge(loss))
        rule.absorb(loss)
        restored.absorb(loss)


@pytest.mark.parametrize(
    ("rule", "state", "found"),
    [
        (MeanRule(2.0), RobustRule().state_dict(), "rule 'robust'"),
        (MeanRule(2.0), MeanRule(3.0).state_dict(), "'multiplier': 3.0"),
        (RobustRule(), RobustRule(min_history=30).state_dict(), "'min_history': 30"),
        (MedianRule(), MedianRule().state_dict() | {"version": 2}, "version 2"),
        (FiniteRule(), NormRule().state_dict(), "rule 'norm'"),
        (NormRule(), {}, "version None"),
    ],
)
def test_the_state_of_another_rule_is_refused(
    rule: WindowedRule | FiniteRule, state: dict[str, object], found: str
) -> None:
    before = rule.state_dict()

    with pytest.raises(UsageError, match="leave the state out") as error:
        rule.load_state_dict(state)

    assert found in str(error.value)
    assert rule.state_dict() == before


@pytest.mark.parametrize(
    ("window_size", "min_history", "advice"),
    [
        (2, 3, "window_size=3 or more, or min_history=2 or less"),
        (0, 1, "window_size is 0 of type int: expected a whole number from 1 to 2147483647"),
        (8, 0, "min_history is 0 of type int: expected a whole number from 1 to 2147483647"),
        (-1, 1, "window_size is -1"),
        (8.0, 3, "window_size is 8.0 of type float"),
        (True, 1, "window_size is True"),
        (math.nan, 3, "window_size is nan"),
    ],
)
def test_a_history_that_makes_no_sense_is_refused(window_size: int, min_history: int, advice: str) -> None:
    with pytest.raises(UsageError, match=advice):
        RobustRule(window_size=window_size, min_history=min_history)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (MeanRule(2.0), ("mean", 8, 3)),
        (MedianRule(), ("median", 20, 3)),
        (RobustRule(), ("robust", 100, 20)),
        (NormRule(), ("norm", 100, 1)),
    ],
)
def test_a_rule_tells_its_name_and_how_far_it_looks(rule: WindowedRule, expected: tuple[str, int, int]) -> None:
    assert (rule.name, rule.window_size, rule.min_history) == expected
