"""A dataset object tells its length and fingerprint, and is not disturbed by being asked."""

import hashlib
import os
import random
import struct
import subprocess
import sys
import time
from collections import OrderedDict, UserDict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.dataset import describe
from trimtab.dataset.data import is_stream, is_table_dataset, selection_of, table_of
from trimtab.dataset.fingerprint import MAX_FULL_PASS_ROWS, NUM_SPREAD_ROWS

# Few different leaves, so that two values drawn are often equal, and often only nearly so.
plain_values = st.recursive(
    st.sampled_from([None, True, False, 0, 1, -1, 0.0, 1.0, "", "a", "0", b"", b"a"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
    max_leaves=3,
)


def fingerprint_of(rows):
    return describe(rows).fingerprint


# Lists of plain rows


def test_the_fingerprint_is_the_written_down_spelling_hashed():
    # given: one row of every plain type, and its spelling by hand
    row = {"b": [1, 2], "a": (None, True, "x", 300, 0.5, b"\x00")}
    spelled_items = (
        b"N" + b"T" + b"s" + struct.pack("<Q", 1) + b"x" + b"i" + struct.pack("<Q", 2) + b"\x2c\x01"
        b"f" + struct.pack("<d", 0.5) + b"b" + struct.pack("<Q", 1) + b"\x00"
    )
    spelled_row = (
        b"m" + struct.pack("<Q", 2)
        + b"s" + struct.pack("<Q", 1) + b"a" + b"l" + struct.pack("<Q", 6) + spelled_items
        + b"s" + struct.pack("<Q", 1) + b"b" + b"q" + struct.pack("<Q", 16) + struct.pack("<qq", 1, 2)
    )  # fmt: skip
    # then
    expected = hashlib.sha256(b"trimtab rows 1\n" + struct.pack("<QQ", 1, 1) + spelled_row).hexdigest()
    assert fingerprint_of([row]) == expected


def test_the_fingerprint_is_the_same_in_every_process():
    # given: a process with another hash seed, so that sets and dicts of strings fall out differently
    program = (
        "from trimtab.dataset import describe; print(describe([{'text': 'to be', 'ids': [1, 2]}] * 3).fingerprint)"
    )
    # when
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    ]
    # then
    assert printed == [fingerprint_of([{"text": "to be", "ids": [1, 2]}] * 3)] * 2


def test_the_order_of_keys_does_not_matter_and_the_order_of_rows_does():
    assert fingerprint_of([{"a": 1, "b": 2}]) == fingerprint_of([{"b": 2, "a": 1}])
    assert fingerprint_of([{"a": 1}, {"a": 2}]) != fingerprint_of([{"a": 2}, {"a": 1}])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, None),
        (1, 1.0),
        (1, "1"),
        ("a", b"a"),
        ([1, 2], [True, 2]),
        ([1, 2], [1.0, 2.0]),
        ([], {}),
        (["ab", "c"], ["a", "bc"]),
        ([[1], [2]], [[1, 2]]),
        ([[], [[]]], [[[]], []]),
        ({"a": "b"}, ["a", "b"]),
        (2**63 - 1, 2**63),
        (-1, 255),
        ([2**63], [-(2**63)]),
        (np.int64(1), np.int32(1)),
        (np.zeros((2, 3)), np.zeros((3, 2))),
        (np.zeros(2), np.zeros(2, dtype=np.int64)),
    ],
)
def test_values_that_differ_have_other_fingerprints(one, other):
    assert fingerprint_of([one]) is not None
    assert fingerprint_of([one]) != fingerprint_of([other])


@given(plain_values, plain_values)
def test_equal_fingerprints_mean_equal_rows(one, other):
    # repr tells types and signed zeros apart and knows nothing of our spelling; sorted keys make dicts comparable
    def told(value):
        if isinstance(value, dict):
            return "{" + ",".join(f"{key!r}:{told(value[key])}" for key in sorted(value)) + "}"
        if isinstance(value, list):
            return "[" + ",".join(map(told, value)) + "]"
        return repr(value)

    assert (fingerprint_of([one]) == fingerprint_of([other])) == (told(one) == told(other))


def test_a_row_read_back_from_json_is_the_same_row():
    assert fingerprint_of([("a", (1, 2))]) == fingerprint_of([["a", [1, 2]]])


def test_subclasses_of_plain_types_count_as_plain():
    pair = namedtuple("pair", "a b")
    assert fingerprint_of([OrderedDict(a=1)]) == fingerprint_of([{"a": 1}])
    assert fingerprint_of([UserDict(a=1)]) == fingerprint_of([{"a": 1}])
    assert fingerprint_of([pair(1, "x")]) == fingerprint_of([(1, "x")])


def test_an_array_counts_by_value_whatever_its_layout_in_memory():
    # given
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    # then
    assert fingerprint_of([table]) == fingerprint_of([np.asfortranarray(table)])
    assert fingerprint_of([table]) == fingerprint_of([table.astype(">f4")])
    assert fingerprint_of([table]) != fingerprint_of([table.T])
    assert fingerprint_of([np.empty((0, 3))]) != fingerprint_of([np.empty((3, 0))])


def test_a_tensor_counts_as_the_array_it_turns_into():
    torch = pytest.importorskip("torch")
    assert fingerprint_of([torch.arange(5)]) == fingerprint_of([np.arange(5)])


def test_a_full_pass_sees_every_row_and_a_longer_list_is_judged_by_rows_spread_evenly():
    # given
    full = list(range(MAX_FULL_PASS_ROWS))
    longer = list(range(MAX_FULL_PASS_ROWS + 1))
    seen = MAX_FULL_PASS_ROWS * 500 // (NUM_SPREAD_ROWS - 1)
    before_full, before_longer = fingerprint_of(full), fingerprint_of(longer)
    # when, then: any row of the first
    full[12_345] = -1
    assert fingerprint_of(full) != before_full
    # when, then: of the second the first, the last, and every hundredth between
    for index, is_seen in ((0, True), (MAX_FULL_PASS_ROWS, True), (seen, True), (seen + 1, False)):
        changed = list(longer)
        changed[index] = -1
        assert (fingerprint_of(changed) != before_longer) == is_seen
    # then: its length counts as well
    assert fingerprint_of([*longer, longer[-1]]) != before_longer


def test_big_rows_are_judged_by_rows_spread_evenly_however_busy_the_machine_is(monkeypatch):
    # given: 2,000 rows of 10 kB, and a budget that holds 1,000 of them (a GiB and a second otherwise)
    monkeypatch.setattr("trimtab.dataset.fingerprint._BUDGET", 15_000_000)
    rows = [np.zeros(10_000, dtype=np.uint8)] * 2_000
    before = fingerprint_of(rows)
    # when, then
    unseen = list(rows)
    unseen[1] = np.ones(10_000, dtype=np.uint8)
    assert before is not None
    assert fingerprint_of(unseen) == before
    seen = list(rows)
    seen[-1] = np.ones(10_000, dtype=np.uint8)
    assert fingerprint_of(seen) != before


def test_rows_too_big_even_for_that_have_no_fingerprint():
    # given: 8 rows that claim 1 GiB each and hold one byte
    huge = np.broadcast_to(np.zeros(1, dtype=np.uint8), (1 << 30,))
    # then
    assert describe([huge] * 8).fingerprint is None
    assert describe([[huge, huge]]).fingerprint is None


class Opaque:
    pass


class RefusesToBeAnArray:
    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("on another device")


def nested_in_itself():
    row = []
    row.append(row)
    return row


@pytest.mark.parametrize(
    "value",
    [
        Opaque(),
        {1, 2},
        RefusesToBeAnArray(),
        np.array([Opaque()], dtype=object),
        np.zeros(2, dtype=[("a", "i1"), ("b", "i8")]),
        nested_in_itself(),
    ],
    ids=["object", "set", "refusing array", "object array", "structured array", "nested in itself"],
)
def test_a_row_of_unknown_type_leaves_the_fingerprint_out_and_raises_nothing(value):
    facts = describe([{"text": "fine"}, {"deep": [value]}])
    assert facts.fingerprint is None
    assert facts.num_rows == 2


@pytest.mark.parametrize("make", [list, tuple])
def test_an_empty_list_has_a_fingerprint(make):
    facts = describe(make())
    assert facts.num_rows == 0
    assert facts.fingerprint is not None


def test_a_hundred_thousand_short_rows_take_less_than_a_second():
    # given
    rows = [{"id": index, "text": f"row number {index}", "ids": [index, 1, 2, 3]} for index in range(100_000)]
    # when
    began = time.process_time()
    fingerprint_of(rows)
    # then: 0.4 s of CPU time measured; the bound leaves room for a slower machine
    assert time.process_time() - began < 2.0


# Datasets with code of their own


class CountingDataset:
    """Draws a random number and counts, as an augmenting dataset does."""

    def __init__(self):
        self.num_reads = 0

    def __len__(self):
        return 7

    def __getitem__(self, index):
        self.num_reads += 1
        return random.random()


def test_a_dataset_with_code_of_its_own_gives_its_length_and_no_row_is_read():
    # given
    dataset = CountingDataset()
    state = random.getstate()
    # when
    facts = describe(dataset)
    # then
    assert (facts.num_rows, facts.fingerprint) == (7, None)
    assert dataset.num_reads == 0
    assert random.getstate() == state


def test_a_list_that_makes_its_rows_when_asked_is_not_read():
    class Lazy(list):
        def __getitem__(self, index):
            raise AssertionError("read")

    assert describe(Lazy([1, 2])) == describe(CountingDatasetOfTwo())


class CountingDatasetOfTwo(CountingDataset):
    def __len__(self):
        return 2


def test_a_selection_says_that_its_rows_are_not_the_tables():
    # given
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"text": ["a", "b", "c"]})
    # when
    whole, selection = describe(table), describe(table.select([2, 0]))
    # then
    assert whole.row_index == "index into the dataset handed to the trainer"
    assert selection.row_index.startswith(whole.row_index)
    assert "selection" in selection.row_index
    assert whole.fingerprint != selection.fingerprint


@pytest.mark.parametrize("error", [TypeError, NotImplementedError, ZeroDivisionError])
def test_a_length_that_cannot_be_told_makes_it_a_stream(error):
    class Lengthless:
        def __len__(self):
            raise error("no length")

    assert describe(Lengthless()) == describe(iter([]))


def test_attributes_that_raise_are_left_alone():
    class Touchy(CountingDataset):
        def __getattr__(self, name):
            raise RuntimeError(name)

    assert describe(Touchy()).num_rows == 7


def test_a_stream_has_neither_length_nor_fingerprint_and_is_not_consumed():
    # given
    stream = iter(["a", "b"])
    # when
    facts = describe(stream)
    # then
    assert (facts.num_rows, facts.fingerprint) == (None, None)
    assert facts.row_index == "worker << 40 | position in the worker's stream"
    assert list(stream) == ["a", "b"]


def test_an_iterable_dataset_is_a_stream_even_with_a_length():
    torch_data = pytest.importorskip("torch.utils.data")

    class Stream(torch_data.IterableDataset):
        def __len__(self):
            return 5

        def __iter__(self):
            return iter(range(5))

    assert describe(Stream()).num_rows is None


def test_a_stream_is_told_from_rows_by_number():
    torch_data = pytest.importorskip("torch.utils.data")
    datasets = pytest.importorskip("datasets")

    class Stream(torch_data.IterableDataset):
        def __len__(self):
            return 5

        def __iter__(self):
            return iter(range(5))

    rows = datasets.Dataset.from_dict({"a": [1, 2, 3]})
    streams = [Stream(), iter([1]), (row for row in [1]), rows.to_iterable_dataset()]

    assert [is_stream(dataset) for dataset in streams] == [True] * 4
    assert [is_stream(dataset) for dataset in ([], (1,), rows, rows.select([2]))] == [False] * 4


def test_a_hugging_face_dataset_shows_its_table_and_what_it_selects_of_it():
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_dict({"a": [1, 2, 3]})
    some = whole.select([2, 0])

    assert [table_of(dataset).column("a").to_pylist() for dataset in (whole, some)] == [[1, 2, 3]] * 2
    assert selection_of(some).column(0).to_pylist() == [2, 0]
    assert [selection_of(other) for other in (whole, [1, 2], None)] == [None] * 3
    assert [is_table_dataset(dataset) for dataset in (whole, some, [1, 2], whole.to_iterable_dataset())] == [
        True,
        True,
        False,
        False,
    ]


def test_without_a_dataset_the_loop_numbers_its_own_rows():
    facts = describe(None)
    assert (facts.num_rows, facts.fingerprint) == (None, None)
    assert facts.row_index == "row number handed over by the training loop"
