"""What a row is beside its number, packed into one tensor a batch."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.torch.marks import MAX_NAME_BYTES, WORDS, Mark, cut_name, integer_of, mark_by_name, name_of, pack_marks
from trimtab.torch.marks import unpack_marks as unpack

INT64 = st.integers(-(2**63), 2**63 - 1)
NAMES = st.none() | st.text(max_size=60).map(cut_name)


@given(st.lists(st.tuples(INT64, st.none() | st.builds(Mark, INT64, NAMES)), min_size=1, max_size=6))
def test_what_is_packed_is_unpacked(entries):
    # when
    packed = pack_marks([row for row, _ in entries], [mark for _, mark in entries])
    rows, digests, names = unpack(np.asarray(packed))
    # then
    assert (packed.shape, packed.dtype) == ((len(entries), WORDS), torch.int64)
    marks = [mark or Mark(0, None) for _, mark in entries]
    assert rows.tolist() == [row for row, _ in entries]
    assert digests.tolist() == [mark.digest for mark in marks]
    assert names == [None if mark.name is None else mark.name.decode() for mark in marks]


def test_marks_of_a_concatenated_batch_and_of_a_part_of_one_are_unpacked_too():
    packed = pack_marks([4, 5, 6], [Mark(1, b"a"), Mark(2, b""), None])
    assert unpack(np.asarray(packed[None]))[2] == ["a", "", None]
    assert unpack(np.asarray(packed[1:2]))[0].tolist() == [5]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("doc-7", b"doc-7"),
        ("", b""),
        (12, b"12"),
        (np.int32(-3), b"-3"),
        (torch.tensor(5), b"5"),
        ("a\udc80", b"a\\udc80"),
        (True, None),
        (1.5, None),
        (None, None),
        (["a"], None),
        (2**63, None),
    ],
)
def test_text_and_integers_are_names_and_nothing_else_is(value, name):
    assert name_of(value) == name


@pytest.mark.parametrize("letter", ["a", "\u00e4", "\u20ac", "\U0001f600"])
@pytest.mark.parametrize("size", [1, 57, 58, 116, 231, 232, 233, 5000])
def test_a_long_name_is_cut_between_two_characters(letter, size):
    text = letter * size
    name = cut_name(text).decode()
    if len(text.encode()) <= MAX_NAME_BYTES:
        assert name == text
    else:
        assert name.endswith("...")
        assert text.startswith(name[:-3])
        assert MAX_NAME_BYTES - 3 <= len(name.encode()) <= MAX_NAME_BYTES


def test_only_an_item_that_is_a_mapping_with_an_id_has_a_mark():
    assert mark_by_name({"id": "a", "x": 1}, row_id="id") == Mark(0, b"a")
    assert mark_by_name({"x": 1}, row_id="id") is None
    assert mark_by_name(("id", "a"), row_id="id") is None


def test_an_integer_of_any_library_is_one():
    assert [integer_of(value) for value in (3, np.uint8(4), torch.tensor(-5), "6", 7.0, False)] == [
        3, 4, -5, None, None, None,
    ]  # fmt: skip
