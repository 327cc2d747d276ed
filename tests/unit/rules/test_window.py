"""The window: the last values by age, and their statistics whatever that age."""

import json
import math
import statistics
import struct
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.rules.window import Window, float32

FLOAT32 = st.floats(width=32, allow_nan=False, allow_infinity=False)


def window_of(values: list[float], *, size: int) -> Window:
    window = Window(size)
    for x in values:
        window.absorb(x)
    return window


@given(st.floats())
def test_float32_is_the_nearest_one(x: float) -> None:
    with np.errstate(over="ignore"):
        expected = float(np.float32(x))

    assert struct.pack("d", float32(x)) == struct.pack("d", expected) or math.isnan(x)


@pytest.mark.parametrize(("x", "expected"), [(1e39, math.inf), (-1e300, -math.inf), (math.inf, math.inf)])
def test_what_float32_can_not_hold_is_infinite(x: float, expected: float) -> None:
    assert float32(x) == expected
    assert math.isnan(float32(math.nan))


def test_the_oldest_value_leaves_a_full_window() -> None:
    window = window_of([5.0, 1.0, 3.0, 2.0, 4.0], size=3)

    assert window.values() == [3.0, 2.0, 4.0]
    assert (len(window), window.size, window.newest) == (3, 3, 4.0)


def test_the_middle_of_an_even_window_is_the_mean_of_two() -> None:
    # given deviations from 2.5 of 1.5, 0.5, 0.5, 7.5
    window = window_of([1.0, 2.0, 3.0, 10.0], size=4)

    assert window.median() == 2.5
    assert window.mad() == 1.0
    assert window.mean() == 4.0


def test_the_middle_of_an_odd_window_is_a_value() -> None:
    # given deviations from 3 of 2, 0, 7
    window = window_of([1.0, 10.0, 3.0], size=4)

    assert (window.median(), window.mad()) == (3.0, 2.0)


@given(st.lists(FLOAT32, min_size=1, max_size=40), st.integers(1, 12))
def test_the_statistics_are_those_of_the_last_values(values: list[float], size: int) -> None:
    # when
    window = window_of(values, size=size)

    # then
    last = values[-size:]
    median = statistics.median(last)
    assert window.values() == last
    assert window.median() == median
    assert window.mad() == statistics.median([abs(x - median) for x in last])
    assert window.mean() == math.fsum(last) / len(last)


@given(st.lists(FLOAT32, min_size=1, max_size=5))
def test_the_statistics_do_not_depend_on_the_order_of_arrival(values: list[float]) -> None:
    seen = {
        (window.mean(), window.median(), window.mad())
        for window in (window_of(list(order), size=5) for order in permutations(values))
    }

    assert len(seen) == 1


def test_a_sum_of_very_unlike_values_is_exact() -> None:
    assert window_of([1e30, 1.0, -1e30, 1.0], size=4).mean() == 0.5


@given(st.lists(FLOAT32, max_size=20), st.lists(FLOAT32, max_size=20))
def test_a_replaced_window_is_as_one_that_saw_only_the_new_values(old: list[float], new: list[float]) -> None:
    # given
    replaced = window_of(old, size=6)
    fresh = window_of(new, size=6)

    # when
    replaced.replace(new)
    for window in (replaced, fresh):
        window.absorb(7.0)

    # then
    assert replaced.values() == fresh.values()
    assert (replaced.median(), replaced.mad()) == (fresh.median(), fresh.mad())


def test_a_cleared_window_is_empty() -> None:
    window = window_of([1.0, 2.0], size=4)

    window.clear()
    window.absorb(9.0)

    assert (window.values(), window.median()) == ([9.0], 9.0)


@given(st.lists(FLOAT32, max_size=20))
def test_the_state_survives_json(values: list[float]) -> None:
    # given
    window = window_of(values, size=6)
    other = window_of([1.0, 2.0], size=6)

    # when
    other.load_state_dict(json.loads(json.dumps(window.state_dict(), allow_nan=False)))

    # then
    assert other.values() == window.values()
