"""One plain number out of what a trainer holds it in."""

import fractions
import math

import numpy as np
import pytest
import torch

from trimtab.errors import UsageError
from trimtab.rules.scalar import real_number, token_count, whole_number


@pytest.mark.parametrize(
    "value",
    [
        2.5,
        np.float64(2.5),
        np.float32(2.5),
        np.array(2.5),
        np.array([2.5]),
        fractions.Fraction(5, 2),
        torch.tensor(2.5),
        torch.tensor(2.5, dtype=torch.bfloat16),
        torch.tensor([[2.5]]),
        torch.tensor(2.5, requires_grad=True),
    ],
)
def test_one_real_number_is_read(value: object) -> None:
    number = real_number(value, name="loss")

    assert (number, type(number)) == (2.5, float)


def test_a_whole_number_is_a_real_one() -> None:
    assert real_number(3, name="loss") == 3.0
    assert math.isnan(real_number(torch.tensor(math.nan), name="loss"))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (True, "True of type bool"),
        (np.bool_(True), "bool"),
        (torch.tensor(True), "Tensor"),
        ("2.5", "'2.5' of type str"),
        (None, "None of type NoneType"),
        (2.5 + 1j, "type complex"),
        (torch.tensor(1j), "Tensor"),
        ([2.5], "[2.5] of type list"),
        (np.array([1.0, 2.0]), "ndarray and shape (2,)"),
        (torch.zeros(3, 2), "Tensor and shape (3, 2)"),
        (torch.zeros(0), "Tensor and shape (0,)"),
    ],
)
def test_anything_else_is_refused_by_name(value: object, found: str) -> None:
    with pytest.raises(UsageError, match=r"^loss is ") as error:
        real_number(value, name="loss")
    assert found in str(error.value)


@pytest.mark.parametrize("value", [7, np.int32(7), np.array(7), torch.tensor(7), torch.tensor([7])])
def test_one_whole_number_is_read(value: object) -> None:
    number = token_count(value, name="num_tokens")

    assert (number, type(number)) == (7, int)


@pytest.mark.parametrize("value", [-1, True, 7.0, torch.tensor(7.0), torch.tensor(-1), "7", None, torch.ones(2)])
def test_what_is_no_count_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match=r"^num_tokens is "):
        token_count(value, name="num_tokens")


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3), np.array(3), torch.tensor(3)])
def test_any_integer_type_is_a_whole_number(value: object) -> None:
    number = whole_number(value, name="top", least=3, most=3, expected="a three.")

    assert (number, type(number)) == (3, int)


@pytest.mark.parametrize("value", [2, 4, 3.0, np.float64(3), True, np.bool_(True), "3", None, [3], np.array([3, 3])])
def test_what_is_no_whole_number_in_range_is_refused_with_what_was_found_and_expected(value: object) -> None:
    with pytest.raises(UsageError, match=r"^top is .*of type \w+( and shape \(2,\))?: expected a three\.$"):
        whole_number(value, name="top", least=3, most=3, expected="a three.")
