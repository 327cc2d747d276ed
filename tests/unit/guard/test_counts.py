"""The counts of a window: numbers of a host, or anything that takes the same arithmetic."""

import numpy as np
import pytest

from trimtab.guard.counts import WindowCounts


@pytest.mark.parametrize("number", [int, np.int64, np.asarray], ids=["int", "scalar", "0-d array"])
def test_kept_and_skipped_are_told_apart_over_all_ranks_and_for_this_one(number):
    counts = WindowCounts()
    for skipped, num_tokens, own in ((0, 30, 10), (1, 50, 20), (0, 5, 0)):
        counts.count(skipped=number(skipped), num_tokens=number(num_tokens), num_own_tokens=number(own))
        counts.next_micro()

    assert (counts.num_micros, counts.num_skipped_micros, counts.num_kept_micros) == (3, 1, 2)
    assert (counts.num_tokens, counts.num_skipped_tokens, counts.num_kept_tokens) == (85, 50, 35)
    assert counts.num_own_skipped_tokens == 20


def test_micro_batches_are_numbered_from_0():
    counts = WindowCounts()
    assert [counts.next_micro() for _ in range(3)] == [0, 1, 2]
    assert counts.num_micros == 3


@pytest.mark.parametrize("number", [int, np.asarray], ids=["int", "0-d array"])
def test_there_is_something_to_step_by_where_a_token_was_kept_or_nobody_judged(number):
    counts = WindowCounts()
    assert not counts.may_step
    counts.count(skipped=number(1), num_tokens=number(50), num_own_tokens=number(20))
    assert not counts.may_step
    counts.count_unjudged()
    assert counts.may_step
    assert (counts.num_tokens, counts.num_kept_tokens) == (50, 0), "its tokens are in no sum"

    kept = WindowCounts()
    kept.count(skipped=number(0), num_tokens=number(1), num_own_tokens=number(0))
    assert kept.may_step
