"""A resumed guard decides as the uninterrupted one, and any guard as a naive one does."""

import json
import math
import statistics
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import GuardLockupError, UsageError
from trimtab.guard import LossGuard, PerTokenLossGuard
from trimtab.values import Verdict

GUARDS: dict[str, Callable[[], LossGuard]] = {
    "mean": lambda: LossGuard(multiplier=1.5, window_size=4, min_history=2, max_consecutive_skips=3),
    "never": lambda: LossGuard(multiplier=1.5, window_size=4, min_history=2, max_consecutive_skips="never"),
    "raise": lambda: LossGuard(multiplier=1.5, max_consecutive_skips=2, on_lockup="raise"),
    "robust": lambda: LossGuard(rule="robust", k=3, window_size=6, min_history=3, max_consecutive_skips=2),
    "off": LossGuard,
}

LOSSES = st.one_of(
    st.sampled_from([1.0, 1.0, 1.1, 5.0, 5.0, 50.0, 0.0, -2.0, math.nan, math.inf, 1e39]),
    st.floats(-3, 9),
    st.integers(0, 99).map(lambda tenths: tenths / 10),
)
MICROS = st.tuples(LOSSES, st.sampled_from([None, 1, 2, 2, 3, 3, 3]))


def decide(guard: LossGuard, loss: float, step: int | None) -> object:
    """What came of one micro-batch; a verdict's loss left out, since NaN equals nothing."""
    try:
        verdict = guard.check(loss, step=step)
    except GuardLockupError as error:
        return str(error)
    return verdict.keep, verdict.reason, verdict.baseline, verdict.threshold, verdict.scale


@pytest.mark.parametrize("name", GUARDS)
@given(before=st.lists(MICROS, max_size=40), after=st.lists(MICROS, max_size=25))
def test_a_resumed_guard_decides_as_the_uninterrupted_one(
    name: str, before: list[tuple[float, int | None]], after: list[tuple[float, int | None]]
) -> None:
    # given
    guard, resumed = GUARDS[name](), GUARDS[name]()
    for loss, step in before:
        decide(guard, loss, step)

    # when
    resumed.load_state_dict(json.loads(json.dumps(guard.state_dict(), allow_nan=False)))

    # then
    assert resumed.state_dict() == guard.state_dict()
    for loss, step in after:
        assert decide(resumed, loss, step) == decide(guard, loss, step)
    assert resumed.state_dict() == guard.state_dict()


class NaiveGuard:
    """The specification, slowly: every kept loss in one list, statistics from the standard library."""

    def __init__(self, *, rule: str, window_size: int, min_history: int, max_skips: int) -> None:
        self.rule, self.window_size, self.min_history, self.max_skips = rule, window_size, min_history, max_skips
        self.kept: list[float] = []
        self.skipped: list[float] = []
        self.last_step = 0

    def check(self, loss: float, step: int) -> str:
        if step < self.last_step:
            self.kept, self.skipped = [], []
        self.last_step = step
        with np.errstate(over="ignore"):
            x = float(np.float32(loss))
        reason = self.reason(x)
        if reason == "spike" and len(self.skipped) == self.max_skips:
            self.kept, reason = self.skipped, "rebaselined"
        if reason == "spike":
            self.skipped.append(x)
        elif reason != "nonfinite":
            self.kept = [*self.kept, x]
            self.skipped = []
        return reason

    def reason(self, x: float) -> str:
        last = self.kept[-self.window_size :]
        if not math.isfinite(x):
            return "nonfinite"
        if len(last) < self.min_history:
            return "warmup"
        if self.rule == "robust":
            median = statistics.median(last)
            scale = max(1.4826 * statistics.median([abs(v - median) for v in last]), 0.02 * abs(median), 5e-5)
            return "spike" if x - median > 3 * scale else "normal"
        mean = statistics.fmean(last)
        if mean <= 0:
            return "baseline_not_positive"
        return "spike" if x > mean * 1.5 else "normal"


@pytest.mark.parametrize("name", ["mean", "robust"])
@given(micros=st.lists(st.tuples(LOSSES, st.sampled_from([1, 3, 5, 5, 5, 5])), max_size=60))
def test_a_guard_decides_as_the_specification_says(name: str, micros: list[tuple[float, int]]) -> None:
    # given
    guard = GUARDS[name]()
    config = guard.config
    assert isinstance(config.window_size, int)
    assert isinstance(config.min_history, int)
    assert isinstance(config.max_consecutive_skips, int)
    naive = NaiveGuard(
        rule=config.rule,
        window_size=config.window_size,
        min_history=config.min_history,
        max_skips=config.max_consecutive_skips,
    )

    for loss, step in micros:
        # when
        verdict = guard.check(loss, step=step)

        # then
        expected = naive.check(loss, step)
        assert (verdict.reason, verdict.keep) == (expected, expected not in ("nonfinite", "spike"))


@pytest.mark.parametrize("name", ["mean", "robust"])
@given(losses=st.lists(LOSSES, max_size=80))
def test_a_guard_never_skips_more_finite_losses_in_a_row_than_it_may(name: str, losses: list[float]) -> None:
    guard = GUARDS[name]()
    max_skips = guard.config.max_consecutive_skips
    assert isinstance(max_skips, int)
    in_a_row = 0
    for loss in losses:
        verdict = guard.check(loss)
        if verdict.reason == "spike":
            in_a_row += 1
        elif verdict.keep:
            in_a_row = 0

        assert in_a_row <= max_skips


@given(micros=st.lists(st.tuples(st.floats(-100, 900), st.integers(0, 50)), max_size=40))
def test_both_guards_decide_alike_on_the_same_loss(micros: list[tuple[float, int]]) -> None:
    """The per-token guard is the other one behind a division, and a look at the tokens."""
    by_mean, by_token = LossGuard(multiplier=1.5), PerTokenLossGuard(multiplier=1.5)
    for loss_sum, num_tokens in micros:
        verdict = by_token.check(loss_sum, num_tokens)
        if num_tokens:
            assert by_mean.check(loss_sum / num_tokens) == verdict
        else:
            assert verdict == Verdict(keep=True, reason="no_tokens", loss=0.0)

    assert by_mean.state_dict() == by_token.state_dict()


def test_what_was_said_is_not_said_again_after_a_resume(caplog: pytest.LogCaptureFixture) -> None:
    # given
    guard, resumed = LossGuard(multiplier=2.0), LossGuard(multiplier=2.0)
    for _ in range(20):
        guard.check(math.nan)
    assert len(caplog.records) == 1

    # when
    resumed.load_state_dict(guard.state_dict())
    for _ in range(20):
        resumed.check(math.nan)

    # then
    assert len(caplog.records) == 1


def test_a_step_out_of_numpy_is_saved_as_a_plain_number() -> None:
    guard = LossGuard(multiplier=2.0)
    guard.check(1.0, step=np.int64(7))  # type: ignore[arg-type]

    assert json.loads(json.dumps(guard.state_dict()))["last_step"] == 7


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"rule": "robust"}, "rule 'robust'; here rule is 'mean'"),
        ({"multiplier": 3.0}, "multiplier 3.0; here multiplier is 2.0"),
        ({"multiplier": 2.0, "window_size": 16}, "window_size 16; here window_size is None"),
        ({"multiplier": 2.0, "max_consecutive_skips": "never"}, "max_consecutive_skips 'never'"),
        ({}, "multiplier None; here multiplier is 2.0"),
    ],
)
def test_the_state_of_a_guard_with_other_settings_is_refused(settings: dict[str, object], found: str) -> None:
    # given
    guard = LossGuard(multiplier=2.0)
    guard.check(1.0)
    before = guard.state_dict()

    # when
    with pytest.raises(UsageError, match="leave the state out") as error:
        guard.load_state_dict(LossGuard(**settings).state_dict())  # type: ignore[arg-type]

    # then
    assert found in str(error.value)
    assert guard.state_dict() == before


def test_the_state_of_another_version_is_refused() -> None:
    guard = LossGuard(multiplier=2.0)

    with pytest.raises(UsageError, match="version 99; here version is 1"):
        guard.load_state_dict(guard.state_dict() | {"version": 99})
