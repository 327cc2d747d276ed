"""Digests of row records: the same however they are cut into blocks, another for any change of any value."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.analysis.row_digests import RowDigests, bits_of, digests, placed
from trimtab.log.columns import RowColumns

COLUMNS = RowDigests._fields[1:]


def records_of(num_ranks=2, num_steps=4, num_micros=2, num_rows=3, seed=0):
    """Rank by rank, as a log gives them."""
    draw = np.random.default_rng(seed)
    places = [
        (rank, step, micro)
        for rank in range(num_ranks)
        for step in range(1, num_steps + 1)
        for micro in range(num_micros)
        for _ in range(num_rows)
    ]
    rank, step, micro = (np.array(column) for column in zip(*places, strict=True))
    size = len(places)
    return RowColumns(
        attempt=np.ones(size, np.int32),
        step=step.astype(np.int64),
        micro=micro.astype(np.int32),
        rank=rank.astype(np.int32),
        row=draw.integers(-(2**62), 2**62, size),
        loss_sum=draw.random(size).astype(np.float32),
        num_tokens=draw.integers(0, 100, size).astype(np.int32),
        reason=draw.integers(0, 3, size).astype(np.uint8),
        keep=draw.random(size) < 0.5,
    )


def cut(records, edges):
    bounds = sorted({0, *edges, records.num_records})
    return [records.take(np.arange(begin, end)) for begin, end in itertools.pairwise(bounds)]


def assert_equal(one, other):
    for name in RowDigests._fields:
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@given(edges=st.sets(st.integers(0, 48), max_size=12))
def test_in_which_blocks_the_records_come_changes_nothing(edges):
    records = records_of()
    assert_equal(digests(cut(records, edges)), digests([records]))


@given(index=st.integers(0, 47), seed=st.integers(0, 5))
@pytest.mark.parametrize(
    ("field", "change", "columns"),
    [
        ("row", lambda value: value + 1, {"row"}),
        ("loss_sum", lambda value: np.nextafter(value, np.float32(9)), {"loss_sum"}),
        ("loss_sum", lambda value: np.float32("nan"), {"loss_sum"}),
        ("num_tokens", lambda value: value + 1, {"num_tokens"}),
        ("reason", lambda value: value + 1, {"verdict"}),
        ("keep", lambda value: not value, {"verdict"}),
    ],
)
def test_a_change_of_one_value_shows_in_its_column_and_step_alone(field, change, columns, index, seed):
    # given
    records = records_of(seed=seed)
    values = getattr(records, field).copy()
    values[index] = change(values[index])
    # when
    one, other = digests([records]), digests([records._replace(**{field: values})])
    # then
    differs = {name: one.step[getattr(one, name) != getattr(other, name)].tolist() for name in COLUMNS}
    assert differs == {name: [int(records.step[index])] if name in columns else [] for name in COLUMNS}


def test_a_rank_that_comes_first_or_last_is_the_same():
    records = records_of()
    turned = np.argsort(-records.rank, kind="stable")
    assert_equal(digests([records.take(turned)]), digests([records]))


def test_places_count_from_the_beginning_of_a_micro_batch_across_blocks():
    records = records_of(num_ranks=1, num_steps=2, num_micros=1, num_rows=4)
    positions = [places.position.tolist() for _, places in placed(cut(records, {1, 3, 6}))]
    assert positions == [[0], [1, 2], [3, 0, 1], [2, 3]]


def test_blocks_without_records_are_left_aside():
    records = records_of()
    assert_equal(digests([RowColumns.empty(), records, RowColumns.empty()]), digests([records]))
    assert digests([]).step.size == digests([RowColumns.empty()]).step.size == 0


def test_every_nan_is_the_same_and_the_zeros_are_two():
    odd = np.array([0x7FC00001, 0x7FC00000, 0xFFC00000, 0, 0x80000000], np.uint32).view(np.float32)
    bits = bits_of(odd).tolist()
    assert len(set(bits[:3])) == 1
    assert len(set(bits)) == 3
