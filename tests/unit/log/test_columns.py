"""Columns: parallel arrays that are picked from, put together, and none."""

import re

import numpy as np
import pytest

from trimtab.log.columns import RowColumns, StepColumns


@pytest.mark.parametrize("columns", [RowColumns, StepColumns])
def test_no_records_have_the_dtypes_that_are_documented(columns):
    documented = dict(re.findall(r"^ +(\w+): \(N,\) (\w+)", columns.__doc__, flags=re.M))
    assert {name: column.dtype.name for name, column in columns.empty()._asdict().items()} == documented
    assert columns.empty().num_records == 0
    assert columns.concat([]).num_records == 0


@pytest.mark.parametrize("columns", [RowColumns, StepColumns])
def test_records_are_picked_and_put_together_in_the_order_asked_for(columns):
    # given: three records, every field of which tells its record
    records = columns._make(np.arange(3).astype(column.dtype) for column in columns.empty())
    # when
    picked = records.take(np.array([2, 0]))
    together = columns.concat([picked, records.take(np.array([False, True, False]))])
    # then
    assert picked.num_records == 2
    for column, none in zip(together, columns.empty(), strict=True):
        np.testing.assert_array_equal(column, np.array([2, 0, 1]).astype(none.dtype))
        assert column.dtype == none.dtype
