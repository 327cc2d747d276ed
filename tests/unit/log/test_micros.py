"""Micro-batches put together again from their rows."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log import micros as module
from trimtab.log.columns import RowColumns
from trimtab.log.micros import micro_sums


def block_of(records):
    """`records`: (attempt, step, micro, rank, loss_sum, tokens, keep)."""
    attempt, step, micro, rank, loss_sum, tokens, keep = zip(*records, strict=True)
    size = len(records)
    return RowColumns(
        attempt=np.array(attempt, np.int32),
        step=np.array(step, np.int64),
        micro=np.array(micro, np.int32),
        rank=np.array(rank, np.int32),
        row=np.arange(size),
        loss_sum=np.array(loss_sum, np.float32),
        num_tokens=np.array(tokens, np.int32),
        reason=np.zeros(size, np.uint8),
        keep=np.array(keep, np.bool_),
    )


def listed(sums):
    return [tuple(entry) for entry in zip(*(column.tolist() for column in sums), strict=True)]


RECORDS = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(1, 5),
        st.integers(0, 2),
        st.integers(0, 1),
        st.integers(-8, 8).map(float),
        st.integers(0, 9),
        st.booleans(),
    ),
    max_size=40,
)


@given(st.lists(RECORDS, max_size=6), st.integers(1, 50))
def test_rows_add_up_to_their_micro_batch_in_whatever_order_they_come(blocks, limit):
    # given
    expected = {}
    for attempt, step, micro, _, loss_sum, tokens, keep in (record for records in blocks for record in records):
        total = expected.setdefault((attempt, step, micro), [0.0, 0, False])
        total[0] += loss_sum if tokens else 0.0
        total[1] += tokens
        total[2] |= not keep
    usual, module.PENDING_LIMIT = module.PENDING_LIMIT, limit

    # when
    try:
        sums = micro_sums(block_of(records) for records in blocks if records)
    finally:
        module.PENDING_LIMIT = usual

    # then
    assert listed(sums) == [(*key, *total) for key, total in sorted(expected.items())]


def test_a_row_without_tokens_has_no_loss_whatever_stands_there():
    sums = micro_sums([block_of([(1, 1, 0, 0, math.nan, 0, True), (1, 1, 0, 1, 6.0, 3, True)])])

    assert listed(sums) == [(1, 1, 0, 6.0, 3, False)]


def test_what_is_not_finite_makes_its_micro_batch_so():
    sums = micro_sums([block_of([(1, 1, 0, 0, math.nan, 4, True), (1, 1, 0, 0, 6.0, 3, True)])])

    assert math.isnan(sums.loss_sum[0])
    assert sums.num_tokens.tolist() == [7]


def test_no_rows_are_no_micro_batches():
    assert listed(micro_sums([])) == []
