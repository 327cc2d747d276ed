"""Skips in a row, and skips among many."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.rules.streak import SkipRate, SkipStreak, round_up


def test_a_loss_that_is_not_finite_neither_counts_nor_ends_the_row() -> None:
    streak = SkipStreak(num_losses=8)

    streak.skip_finite(5.0)
    streak.skip_nonfinite()
    streak.skip_finite(6.0)

    assert (streak.num_finite, list(streak.losses), streak.num_nonfinite) == (2, [5.0, 6.0], 0)


def test_a_kept_loss_ends_both_rows() -> None:
    streak = SkipStreak(num_losses=8)
    streak.skip_finite(5.0)
    streak.skip_nonfinite()

    streak.end()

    assert (streak.num_finite, streak.num_nonfinite, list(streak.losses)) == (0, 0, [])


def test_only_the_most_recent_losses_are_held_but_all_are_counted() -> None:
    streak = SkipStreak(num_losses=3)

    for loss in (1.0, 2.0, 3.0, 4.0, 5.0):
        streak.skip_finite(loss)

    assert (streak.num_finite, list(streak.losses)) == (5, [3.0, 4.0, 5.0])


def test_ten_skips_in_a_thousand_are_not_too_many_and_eleven_are() -> None:
    rate = SkipRate()

    assert [rate.add(2.0, place=place) for place in range(1, 12)] == [False] * 10 + [True]


@pytest.mark.parametrize(("last", "too_high"), [(1_000, True), (1_001, False)])
def test_only_the_last_thousand_verdicts_count(last: int, too_high: bool) -> None:
    # given ten skips from the first verdict on
    rate = SkipRate()
    for place in range(1, 11):
        rate.add(2.0, place=place)

    # then an eleventh counts while the first is among the last thousand
    assert rate.add(2.0, place=last) is too_high


@pytest.mark.parametrize(("num_verdicts", "expected"), [(40, 11.0), (250, 9.0), (1_000, 1.0)])
def test_the_setting_within_one_percent_lets_one_in_a_hundred_be_skipped(num_verdicts: int, expected: float) -> None:
    # given skips that needed 1 to 11
    rate = SkipRate()
    for place in range(1, 12):
        rate.add(float(place), place=place)

    # then of 40 none may be skipped, of 250 two, of 1,000 ten
    assert rate.setting_within(num_verdicts) == expected


@pytest.mark.parametrize(
    ("x", "digits", "expected"),
    [(2.341, 3, 2.35), (2.35, 3, 2.35), (12.31, 2, 13.0), (999.5, 3, 1000.0), (0.01234, 3, 0.0124), (3e30, 3, 3e30)],
)
def test_a_number_is_rounded_up_to_its_first_digits(x: float, digits: int, expected: float) -> None:
    assert round_up(x, digits=digits) == expected


@given(st.floats(1e-3, 1e80), st.integers(2, 4))
def test_a_rounded_number_is_never_below_and_hardly_above(x: float, digits: int) -> None:
    rounded = round_up(x, digits=digits)

    assert x * (1 - 1e-15) <= rounded <= x * (1 + 10.0 ** (1 - digits)) * (1 + 1e-9)
