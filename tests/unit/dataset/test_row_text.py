"""A row of whatever kind has a text."""

from array import array

import numpy as np
import pytest

from trimtab.dataset.row_text import read_row

TALK = [{"role": "user", "content": "hi"}, {"role": "model", "content": "yo"}]
TEXT_PART = {"type": "text", "text": "see"}


def nested(depth):
    value = "core"
    for _ in range(depth):
        value = [value]
    return value


def in_itself():
    value = {"name": "x"}
    value["self"] = value
    return value


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ("to be", "to be"),
        ({"text": "to be", "url": "x", "id": 5}, "to be"),
        ({"prompt": "2 + 2", "completion": "4", "id": "x"}, "2 + 2\n4"),
        ({"prompt": TALK[:1], "completion": TALK[1:]}, "user: hi\nmodel: yo"),
        ({"messages": TALK}, "user: hi\nmodel: yo"),
        ({"messages": [{"role": "user", "content": [TEXT_PART, {"type": "image"}]}]}, "user: see\n{type: image}"),
        ({"conversations": [{"from": "human", "value": "hi"}]}, "human: hi"),
        ({"instruction": "add", "input": "", "output": "4"}, "add\n4"),
        ({"question": "why", "answer": "so", "text": None}, "why\nso"),
        ({"title": "t", "body": "b", "n": 1}, "title: t\nbody: b"),
        ({"body": "b", "n": 1}, "b"),
        ({"prompt": "p", "chosen": "c", "rejected": "r"}, "p\nc\nr"),
        ({"input_ids": [15, 27], "labels": [1, 2]}, "token ids 15 27"),
        ({"input_ids": array("q", [15, 27])}, "token ids 15 27"),
        ({"input_ids": np.array([[15, 27]])}, "token ids 15 27"),
        ([15, 27], "token ids 15 27"),
        ({"text": "to be", "input_ids": [15, 27]}, "to be"),
        ({"image": b"\x89PNG\x00", "label": 3}, "image: <5 bytes>, label: 3"),
        (("x", np.zeros((3, 2), np.float32)), "[x, <3 x 2 of float32>]"),
        (b"plain", "plain"),
        (b"\xff\x00", "<2 bytes>"),
        (object(), "<object>"),
        (None, "None"),
        (1.5, "1.5"),
        ({}, ""),
        ({"n": 10**5_000}, "n: <a number of 16610 bits>"),
        ({"mask": list(range(100))}, "mask: 0 1 2 3 4 5 6 7 8 9 10 11 ... (100 numbers)"),
        ({"d": {"a": [1, "x"], "b": None}}, "d: {a: [1, x], b: None}"),
        (nested(1_000), "[" * 12 + "..." + "]" * 12),
    ],
)  # fmt: skip
def test_the_text_of_a_row(row, text):
    assert read_row(row).main == text


def test_a_tensor_of_token_ids_is_read_like_a_list():
    torch = pytest.importorskip("torch")
    row = read_row({"input_ids": torch.tensor([5, 6]), "pixels": torch.zeros(2, 3)})
    assert row.main == "token ids 5 6"
    assert dict(row.fields)["pixels"] == "<2 x 3 of float32>"


def test_every_field_is_there_with_long_lists_counted():
    row = read_row({"text": "a\nb", "input_ids": list(range(5_000)), 7: True})
    assert row.fields == (
        ("text", "a\nb"),
        ("input_ids", "0 1 2 3 4 5 6 7 8 9 10 11 ... (5000 numbers)"),
        ("7", "True"),
    )


@pytest.mark.parametrize(
    ("row", "numbers"),
    [
        ({"text": "ab", "input_ids": [7, 8]}, [7, 8]),
        ({"text": "\u00e9"}, [0xC3, 0xA9]),
        ({"text": "\udcff"}, [0xED, 0xB3, 0xBF]),
        (b"\xff", [0xFF]),
        ({"label": 1}, []),
    ],
)
def test_repetition_is_looked_for_in_token_ids_else_in_bytes(row, numbers):
    assert read_row(row).numbers.tolist() == numbers


def test_what_holds_itself_and_what_refuses_has_a_text():
    class Refuses:
        def __array__(self, dtype=None, copy=None):
            raise RuntimeError("no")

        def __repr__(self):
            raise RuntimeError("no")

    assert read_row(in_itself()).main == "x"
    assert read_row({"a": Refuses()}).main == "a: <Refuses>"


def test_a_huge_row_costs_its_size_and_no_more():
    row = read_row({"text": "x" * 100_000_000})
    assert len(row.main) == 100_000_000
