"""The counts of a window: numbers of a host, or anything that takes the same arithmetic."""

import numpy as np
import pytest

from trimtab.guard.counts import WindowCounts


@pytest.mark.parametrize("number", [int, np.int64, np.asarray], ids=["int", "scalar", "0-d array"])
def test_kept_and_skipped_are_told_apart_over_all_ranks_and_for_this_one(number):
    counts = WindowCounts()
    for skipped, num_tokens, own in ((0, 30, 10), (1, 50, 20), (0, 5, 0)):
        counts.count(skipped=number(skipped), num_tokens=number(num_tokens), num_own_tokens=number(own))
        counts.num_micros += 1

    assert (counts.num_micros, counts.num_skipped_micros, counts.num_kept_micros) == (3, 1, 2)
    assert (counts.num_tokens, counts.num_skipped_tokens, counts.num_kept_tokens) == (85, 50, 35)
    assert counts.num_own_skipped_tokens == 20
