"""The divisor of a window from which micro-batches were taken out, and the loss of one in which nothing is left."""

import math

import pytest
import torch

from trimtab.guard.counts import WindowCounts
from trimtab.torch.window import removed_factor, unless_empty

KINDS = {"host": int, "device": torch.tensor}


def window(number, *, unjudged=False):
    """3 micro-batches: 30 tokens kept, 50 skipped, and one more, of 20 tokens or of which nobody knows."""
    counts = WindowCounts()
    for skipped, num_tokens in ((0, 30), (1, 50)) + (() if unjudged else ((0, 20),)):
        counts.next_micro()
        counts.count(skipped=number(skipped), num_tokens=number(num_tokens), num_own_tokens=number(num_tokens))
    if unjudged:
        counts.next_micro()
        counts.count_unjudged()
    return counts


@pytest.mark.parametrize("number", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("unjudged", "by_token", "num_items", "factor"),
    [
        (False, True, None, 2.0),
        (False, False, None, 1.5),
        (True, False, None, 1.5),
        (True, True, None, 1.0),  # nobody knows
        (True, True, 100, 2.0),  # the host does
        (True, True, torch.tensor(100), 2.0),
    ],
)
def test_the_divisor_loses_what_was_skipped_as_far_as_anybody_knows(number, unjudged, by_token, num_items, factor):
    found = removed_factor(window(number, unjudged=unjudged), by_token=by_token, num_items=num_items)
    assert float(found) == factor


@pytest.mark.parametrize("kind", [bool, torch.tensor], ids=KINDS)
def test_the_loss_of_a_window_in_which_nothing_is_left_is_no_number(kind):
    assert unless_empty(torch.tensor(2.0), may_step=kind(True)).item() == 2.0
    assert math.isnan(unless_empty(torch.tensor(0.0), may_step=kind(False)).item())
