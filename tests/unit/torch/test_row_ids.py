"""Ids of rows: each is told once, and worked out when the recorder's writer asks."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.torch import row_ids
from trimtab.torch.marks import Mark, pack_marks
from trimtab.torch.row_ids import NamedRows, StreamRows, ToldRows

WORKER = 1 << 40


def named(*rows):
    """The marks of a batch, as (row, name)."""
    return pack_marks([row for row, _ in rows], [None if name is None else Mark(0, name) for _, name in rows])


def read(ids):
    """The parts as a writer reads them; the digests and names of a stream, the names of a dataset."""
    digests = None if ids.digests is None else np.asarray(ids.digests).tolist()
    return np.asarray(ids.rows).tolist(), digests, list(ids.names)


def told(book, *batches):
    return [
        read(book.late(pack_marks([row for row, *_ in batch], [Mark(*mark) for _, *mark in batch])))
        for batch in batches
    ]


# ---------------------------------------------------------------------------------------------------------- a dataset


def test_a_row_of_a_dataset_is_told_once_with_its_name():
    book = NamedRows(10)
    assert read(book.late(named((3, b"c"), (5, None), (3, b"c"), (1, b"a")))) == ([1, 3], None, ["a", "c"])
    assert read(book.late(named((3, b"c"), (4, b"d"))[None])) == ([4], None, ["d"])
    assert read(book.late(named((4, b"d")))) == ([], None, [])


@given(st.lists(st.lists(st.integers(-3, 12), max_size=6), max_size=6))
def test_of_any_rows_each_of_the_dataset_is_new_once(batches):
    # given
    rows = ToldRows(10)
    seen = set()
    for batch in batches:
        places = rows.first_seen(np.array(batch, np.int64)).tolist()
        # then: an oracle that looks at one row after the other
        expected = {row for row in batch if 0 <= row < 10} - seen
        assert sorted(batch[place] for place in places) == sorted(expected)
        seen |= expected
        assert rows.num_left == 10 - len(seen)


# ----------------------------------------------------------------------------------------------------------- a stream


def test_a_row_of_a_stream_is_told_by_its_digest_once_as_long_as_it_stays_the_same():
    first, again, more = told(
        StreamRows(),
        [(0, 70, None), (1, 71, b"b"), (WORKER, 80, None)],
        [(1, 71, b"b"), (0, 70, None)],
        [(2, 72, None), (WORKER, 80, None), (WORKER | 1, 81, None)],
    )
    assert first == ([0, 1, WORKER], [70, 71, 80], [None, "b", None])
    assert again == ([], [], [])
    assert more == ([2, WORKER | 1], [72, 81], [None, None])


def test_a_number_that_stood_for_two_rows_has_no_digest_any_more():
    # given a second pass in another order, and a third in the first one's
    book = StreamRows()
    first, second, third = told(book, *[[(0, a, None), (1, b, None)] for a, b in ((70, 71), (71, 70), (70, 71))])
    # then: what stands last in the log is that nobody knows
    assert first == ([0, 1], [70, 71], [None, None])
    assert second == ([0, 1], [0, 0], [None, None])
    assert third == ([], [], [])


@pytest.mark.parametrize("low", [0, 1])
def test_a_digest_that_looks_like_no_row_in_its_lower_half_is_told_once(low):
    digest = (5 << 32) | low
    first, again = told(StreamRows(), [(0, digest, None)], [(0, digest, None)])
    assert first == ([0], [digest], [None])
    assert again == ([], [], [])


def test_a_row_without_a_digest_is_told_by_its_name_alone():
    [found] = told(StreamRows(), [(0, 0, b"a"), (1, 0, None)])
    assert found == ([0], [0], ["a"])


def test_gaps_between_positions_are_no_rows():
    first, second = told(StreamRows(), [(5, 70, None)], [(3, 71, None), (5, 70, None)])
    assert (first[0], second[0]) == ([5], [3])


def test_memory_is_bounded_and_rows_beyond_it_are_told_each_time(monkeypatch):
    monkeypatch.setattr(row_ids, "REMEMBERED_ROWS", 4)
    book = StreamRows()
    batch = [(3, 70, None), (4, 71, None), (1 << 39, 72, None), (WORKER, 73, None)]
    assert [rows for rows, *_ in told(book, batch, batch)] == [[3, 4, 1 << 39, WORKER], [4, 1 << 39, WORKER]]


# ------------------------------------------------------------------------------------------------------------ the time


def test_nothing_is_looked_up_before_somebody_reads_and_then_once():
    # given
    class Counted(NamedRows):
        num_looked_up = 0

        def new_ids(self, numbers):
            Counted.num_looked_up += 1
            return super().new_ids(numbers)

    ids = Counted(10).late(named((3, b"c")))
    assert (Counted.num_looked_up, ids.rows.nbytes) == (0, 256)
    # then
    assert [read(ids), read(ids)] == [([3], None, ["c"])] * 2
    assert Counted.num_looked_up == 1


def test_a_failure_is_the_readers():
    class Broken(NamedRows):
        def new_ids(self, numbers):
            raise OSError("the disk is gone")

    ids = Broken(10).late(torch.zeros(1, 32, dtype=torch.int64))
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            np.asarray(ids.rows)
