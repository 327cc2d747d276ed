"""Columns of a log at step level, as they were logged."""

import math

import pytest

from trimtab.log.foreign.steps.records import StepRecords
from trimtab.values import STEP_REASONS


def test_what_a_log_has_not_is_unknown_and_no_value_is_told_apart_from_nan():
    records = StepRecords.of([2**62, -3], place=[7, 8], loss=[math.nan, math.nan], has_loss=[True, False])
    assert (records.num_records, records.step.tolist(), records.place.tolist()) == (2, [2**62, -3], [7, 8])
    assert (records.has_loss.tolist(), records.has_grad_norm.tolist()) == ([True, False], [False, False])
    assert all(math.isnan(value) for value in (*records.grad_norm, *records.lr, *records.loss_scale))
    assert (records.num_tokens.tolist(), records.reason.tolist()) == ([-1, -1], [len(STEP_REASONS)] * 2)


@pytest.mark.parametrize(
    ("logged", "count"),
    [(0.0, 0), (9, 9), (2.0**53 - 1, 2**53 - 1), (-1.0, -1), (-7, -1), (2.0**53, -1), (math.nan, -1), (math.inf, -1)],
)
def test_tokens_that_are_no_count_are_not_known(logged, count):
    assert StepRecords.of([1], place=[1], num_tokens=[logged]).num_tokens.tolist() == [count]
