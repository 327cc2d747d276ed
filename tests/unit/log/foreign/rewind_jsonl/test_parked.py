"""What was parked comes back as it was."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.columns import RowColumns
from trimtab.log.foreign.rewind_jsonl import parked as module
from trimtab.log.foreign.rewind_jsonl.parked import ParkedRows

edges = st.sampled_from(
    [0, 1, -1, 127, 128, -128, -129, 300, -300, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, -(2**63)]
)


def block_of(values):
    size = len(values)
    return RowColumns(
        attempt=np.ones(size, np.int32),
        step=np.array(values, np.int64),
        micro=np.arange(size, dtype=np.int32),
        rank=np.zeros(size, np.int32),
        row=np.array(values[::-1], np.int64),
        loss_sum=np.array([-1.5, np.nan, np.inf, -np.inf, 0.0])[:size],
        num_tokens=np.arange(size, dtype=np.int64) * 1000,
        reason=np.zeros(size, np.uint8),
        keep=np.array([value > 0 for value in values]),
    )


@given(
    blocks=st.lists(st.lists(edges, min_size=1, max_size=5), min_size=1, max_size=4),
    limit=st.sampled_from([1, 1 << 20]),
)
def test_every_block_comes_back_with_its_values_and_dtypes(blocks, limit):
    # given: in memory, and in a file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "MEMORY_LIMIT", limit)
        parked = ParkedRows()
    given_blocks = [block_of(values) for values in blocks]
    for block in given_blocks:
        parked.park(block)
    # then: as often as asked
    for _ in range(2):
        back = list(parked.blocks(first_step=None, last_step=None))
        assert len(back) == len(given_blocks)
        for block, again in zip(given_blocks, back, strict=True):
            for column, same in zip(block, again, strict=True):
                np.testing.assert_array_equal(column, same)
                assert column.dtype == same.dtype
    parked.close()
