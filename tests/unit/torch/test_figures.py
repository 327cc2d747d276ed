"""What ranks show each other, whose gradient counts, and what the host hears: one meaning for all who decide."""

import itertools
import math

import pytest
import torch

from trimtab.torch.device_rule import Ruling
from trimtab.torch.figures import HeardFigures, Shown, counts_here
from trimtab.values import VERDICT_REASONS


def wide(number: float) -> torch.Tensor:
    return torch.tensor(number, dtype=torch.float64)


@pytest.mark.parametrize(
    ("own_sum", "num_tokens", "expected"),
    [
        (12.5, 4.0, (12.5, 4.0, 0.0)),
        (math.nan, 4.0, (0.0, 4.0, 1.0)),
        (-math.inf, 4.0, (0.0, 4.0, 1.0)),
        (math.nan, 0.0, (0.0, 0.0, 0.0)),  # 0 / 0 is nobody's fault
        (3.0, 0.0, (0.0, 0.0, 0.0)),  # no token, no loss
    ],
)
def test_what_a_rank_shows_is_finite_and_a_flag_tells_what_is_not(own_sum, num_tokens, expected):
    shown = Shown.of(wide(own_sum), wide(num_tokens))

    assert tuple(torch.stack(shown).tolist()) == expected
    assert torch.stack(shown).dtype == torch.float64


def test_a_gradient_counts_where_it_is_kept_and_there_is_something_to_learn_from():
    counting = set()
    for keep, has_tokens, is_finite, has_terms in itertools.product([False, True], repeat=4):
        on_host = counts_here(keep, has_tokens=has_tokens, is_finite=is_finite, has_terms=has_terms)
        on_device = counts_here(
            torch.tensor(keep),
            has_tokens=torch.tensor(has_tokens),
            is_finite=torch.tensor(is_finite),
            has_terms=has_terms,
        )
        assert on_host is on_device.item()
        if on_host:
            counting.add((has_tokens, is_finite, has_terms))
            assert keep

    # all that has tokens (what of it is not finite was skipped by all), and a finite term without any
    with_tokens = {(True, is_finite, has_terms) for is_finite in (False, True) for has_terms in (False, True)}
    assert counting == with_tokens | {(False, True, True)}


@pytest.mark.parametrize(("flag", "together"), [(0.0, (8.0, 5)), (1.0, (math.nan, 5))])
def test_what_is_brought_to_the_host_is_what_was_decided_by(flag, together):
    # given
    nan = wide(math.nan)
    reason = torch.tensor(VERDICT_REASONS.index("spike"))
    ruling = Ruling(torch.tensor(False), reason, loss=nan, baseline=nan, threshold=nan)
    on_device = HeardFigures.on_device(
        torch.stack([wide(8.0), wide(5.0), wide(flag)]), torch.stack([*map(wide, (6.0, 3.0, 0.25, 0.5))]), ruling
    )
    # when
    heard = HeardFigures(*on_device.tolist())
    # then
    assert (heard.reason, heard.keep) == ("spike", 0.0)
    assert heard.figures(alone=True) == (6.0, 3, 0.25, 0.5, None)
    found = heard.figures(alone=False)
    assert found[:4] == (6.0, 3, 0.25, 0.5)
    assert repr(found.together) == repr(together)
