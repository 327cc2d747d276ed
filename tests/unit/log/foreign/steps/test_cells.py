"""Texts become numbers, or none."""

import math

import pytest

from trimtab.log.foreign.steps.cells import NoNumber, as_step, read_number


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1.0), (" 2.5E-3 ", 0.0025), ("-.5", -0.5), ("+7.", 7.0), ("1e400", math.inf), ("0" * 300 + "1", 1.0)],
)
def test_a_number_is_read_exactly(text, value):
    assert read_number(text) == value


@pytest.mark.parametrize("text", ["inf", "Infinity", "+inf", "INF"])
def test_infinity_keeps_its_kind(text):
    assert read_number(text) == math.inf
    assert read_number("-" + text.removeprefix("+")) == -math.inf


@pytest.mark.parametrize("text", ["nan", "NaN", "-nan"])
def test_nan_keeps_its_kind(text):
    assert math.isnan(read_number(text))


@pytest.mark.parametrize("text", ["", "  ", "null", "None", "N/A"])
def test_a_cell_that_says_nothing_is_no_value(text):
    assert read_number(text) is None


@pytest.mark.parametrize(
    "text", ["1_000", "1,5", "0x10", "\u0661", "2.3s", "1e", "--1", "nano", "1 2", "1\x00", "9" * 500, "tensor(2.1)"]
)
def test_what_is_spelled_otherwise_is_no_number(text):
    assert isinstance(read_number(text), NoNumber)


@pytest.mark.parametrize(
    ("value", "step"), [(12.0, 12), (-1.0, -1), (0.5, None), (math.nan, None), (1e300, None), (None, None)]
)
def test_a_step_is_whole_and_of_64_bits(value, step):
    assert as_step(value) == step
