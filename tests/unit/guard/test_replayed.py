"""What a replay asks of a guard: to remember without judging, and to hold its tongue."""

import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.guard import GuardConfig, LossGuard

LOSSES = st.lists(st.floats(0.5, 1.5, width=32), min_size=0, max_size=30)


def test_what_was_kept_unjudged_is_remembered_as_if_it_had_been_judged() -> None:
    @given(before=LOSSES, kept=LOSSES, after=st.lists(st.floats(0, 50, width=32), max_size=30))
    def compare(before: list[float], kept: list[float], after: list[float]) -> None:
        # given: x60 keeps all of `kept`, whatever lies behind
        config = GuardConfig(multiplier=60.0)
        asked, told = LossGuard.from_config(config), LossGuard.from_config(config)
        for loss in before:
            assert asked.check(loss) == told.check(loss)

        # when
        for loss in kept:
            assert asked.check(loss).keep
        told.remember_kept(kept)

        # then
        assert told.state_dict() == asked.state_dict()
        assert [told.check(loss) for loss in after] == [asked.check(loss) for loss in after]

    compare()


def test_a_kept_loss_ends_a_row_of_skips_when_it_is_told_too() -> None:
    guard = LossGuard(multiplier=2.0, max_consecutive_skips=2)
    for loss in (1.0, 1.0, 1.0, 9.0, 9.0):
        guard.check(loss)

    guard.remember_kept([1.0])

    assert guard.check(9.0).reason == "spike"


def test_a_guard_that_is_off_remembers_nothing() -> None:
    guard = LossGuard()

    guard.remember_kept([1.0])

    assert guard.num_judged == 0


@pytest.mark.parametrize("quiet", [False, True])
def test_a_quiet_guard_decides_alike_and_says_nothing(quiet: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trimtab")
    guard = LossGuard.from_config(GuardConfig(multiplier=2.0), quiet=quiet)

    reasons = [guard.check(loss).reason for loss in [1.0] * 9 + [9.0] * 9 + [math.nan] * 9]

    assert reasons == ["warmup"] * 3 + ["normal"] * 6 + ["spike"] * 8 + ["rebaselined"] + ["nonfinite"] * 9
    assert bool(caplog.records) is not quiet
