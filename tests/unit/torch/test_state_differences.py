"""Two states are compared to the last bit, and what differs is told by its place."""

import math
from collections import OrderedDict

import pytest
import torch

from trimtab.torch.state_differences import differences, tensor_difference

# Two NaNs of float32 with other bits.
NAN_BITS = torch.tensor([0x7FC00000, 0x7FC00001], dtype=torch.int32).view(torch.float32)


def found(live, loaded):
    return list(differences(live, loaded, where="x"))


@pytest.mark.parametrize(
    "value",
    [
        torch.tensor(3),
        torch.tensor([1.5, math.nan, -math.inf]),
        torch.tensor([True, False]),
        torch.tensor([[1 + 2j, math.nan * 1j]]),
        torch.arange(12.0).reshape(3, 4).t(),
        torch.tensor([1.0, 2.0]).to(torch.float8_e4m3fn),
        torch.zeros(0, 3),
        torch.sparse_coo_tensor([[0, 2]], [1.0, 2.0], (4,), check_invariants=True),
        torch.empty(2, device="meta"),
        {"a": [1, 2.5, None, "text"], 3: (math.nan, -math.inf)},
        OrderedDict(a=torch.ones(2)),
        [],
    ],
    ids=[
        "0-d",
        "nan",
        "bool",
        "complex",
        "transposed",
        "float8",
        "empty",
        "sparse",
        "meta",
        "nested",
        "ordered",
        "none",
    ],
)
def test_a_value_is_the_same_as_itself(value):
    assert found(value, value) == []


def test_the_layout_in_memory_is_no_difference():
    assert found(torch.arange(12.0).reshape(3, 4).t(), torch.arange(12.0).reshape(3, 4).t().contiguous()) == []


@pytest.mark.parametrize(
    ("live", "loaded", "expected"),
    [
        (
            torch.tensor([0.0, 1.0]),
            torch.tensor([-0.0, 1.0]),
            "x differs in 1 of 2 entries: at [0] it is 0.0 in the training and -0.0 as loaded",
        ),
        (
            NAN_BITS[:1],
            NAN_BITS[1:],
            "x differs in 1 of 1 entries: at [0] it is nan in the training and nan as loaded",
        ),
        (
            torch.tensor([[0, 1, 2], [3, 4, 5]]),
            torch.tensor([[0, 1, 2], [3, 9, 6]]),
            "x differs in 2 of 6 entries by up to 5: at [1, 1] it is 4 in the training and 9 as loaded",
        ),
        (
            torch.tensor([1 + 1j]),
            torch.tensor([1 + 4j]),
            "x differs in 1 of 1 entries by up to 3: at [0] it is (1+1j) in the training and (1+4j) as loaded",
        ),
        (torch.tensor(2.0), torch.tensor(2.5), "x is 2.0 in the training and 2.5 as loaded"),
        (
            torch.ones(2),
            torch.ones(2, dtype=torch.bfloat16),
            "x is float32 of shape (2,) in the training and bfloat16 of shape (2,) as loaded",
        ),
        (
            torch.ones(2),
            torch.ones(1, 2),
            "x is float32 of shape (2,) in the training and float32 of shape (1, 2) as loaded",
        ),
        (
            torch.sparse_coo_tensor([[0]], [1.0], (2,), check_invariants=True),
            torch.sparse_coo_tensor([[1]], [1.0], (2,), check_invariants=True),
            "x differs in which entries it holds",
        ),
        (torch.ones(2), torch.ones(2, device="meta"), "x is on the meta device on one side, and holds no values"),
        (torch.tensor(1.0), 1.0, "x is a tensor (float32 of shape ()) in the training and 1.0 as loaded"),
        ({"a": {"b": [1, 2]}}, {"a": {"b": [1, 3]}}, "x[a][b][1] is 2 in the training and 3 as loaded"),
        ([1], [1, 2], "x has 1 entries in the training and 2 as loaded"),
        (0.1, math.nan, "x is 0.1 in the training and nan as loaded"),
        ("a\x1b", "a", "x is a\\x1b in the training and a as loaded"),
    ],
    ids=[
        "the sign of zero",
        "bits of nan",
        "integers",
        "complex",
        "0-d",
        "dtype",
        "shape",
        "sparse",
        "meta",
        "no tensor",
        "nested",
        "length",
        "number",
        "text",
    ],
)
def test_what_differs_is_told_by_its_place(live, loaded, expected):
    assert found(live, loaded) == [expected]


def test_keys_that_one_side_alone_has_are_told():
    assert sorted(found({"a": 1, "c": 2}, {"b": 1, "c": 2})) == [
        "x[a] is in the training and not in what was loaded",
        "x[b] is in what was loaded and not in the training",
    ]


def test_differences_behind_the_first_piece_of_a_large_tensor_are_counted():
    live = torch.zeros((1 << 20) + 8)
    loaded = live.clone()
    loaded[-3:] = torch.tensor([1.0, -4.0, 2.0])
    assert tensor_difference(live, loaded) == (
        "differs in 3 of 1048584 entries by up to 4: at [1048581] it is 0.0 in the training and 1.0 as loaded"
    )


def test_a_value_whose_class_cannot_be_compared_differs():
    class Odd:
        def __eq__(self, other):
            raise TypeError

        def __repr__(self):
            return "Odd()" * 50

    [difference] = found(Odd(), Odd())
    assert difference.startswith("x is Odd()Odd()")
    assert len(difference) < 250
