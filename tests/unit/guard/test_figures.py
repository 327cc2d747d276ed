"""The figures of a micro-batch: what is judged, and whose fault it is."""

import math

import pytest

from trimtab.guard.figures import MicroFigures
from trimtab.values import Verdict

SPIKE = Verdict(keep=False, reason="spike", loss=6.0, baseline=1.0, threshold=3.0)
NONFINITE = Verdict(keep=False, reason="nonfinite", loss=math.nan)


def test_what_is_beyond_the_tokens_is_judged_with_them_and_a_further_term_only_for_being_finite():
    assert MicroFigures(10.0, 10, aux=7.0, beyond=0.5).judged == (15.0, 10)
    for term in (math.nan, math.inf, -math.inf):
        loss_sum, num_tokens = MicroFigures(10.0, 10, aux=term).judged
        assert math.isnan(loss_sum)
        assert num_tokens == 10


def test_among_several_ranks_the_figures_of_all_are_judged():
    assert MicroFigures(10.0, 10, beyond=0.5, together=(40.0, 20)).judged == (40.0, 20)


@pytest.mark.parametrize(
    ("figures", "verdict", "is_cause"),
    [
        (MicroFigures(10.0, 10), SPIKE, True),  # the only rank
        (MicroFigures(10.0, 10, together=(240.0, 40)), SPIKE, False),
        (MicroFigures(31.0, 10, together=(240.0, 40)), SPIKE, True),
        (MicroFigures(30.0, 10, together=(240.0, 40)), SPIKE, False),  # what is no more than the threshold is no spike
        (MicroFigures(10.0, 10, together=(math.nan, 40)), NONFINITE, False),
        (MicroFigures(math.nan, 10, together=(math.nan, 40)), NONFINITE, True),
        (MicroFigures(10.0, 10, aux=math.inf, together=(math.nan, 40)), NONFINITE, True),
        (MicroFigures(math.nan, 0, together=(math.nan, 40)), NONFINITE, False),  # without a token nobody is blamed
    ],
)
def test_a_rank_is_the_cause_where_its_own_figures_would_have_been_skipped(figures, verdict, is_cause):
    assert figures.cause(verdict) is is_cause


@pytest.mark.parametrize(
    ("figures", "verdict", "is_term"),
    [
        (MicroFigures(10.0, 10, aux=math.nan), NONFINITE, True),
        (MicroFigures(math.inf, 10), NONFINITE, False),
        (MicroFigures(10.0, 10, beyond=5.0), SPIKE, True),
        (MicroFigures(50.0, 10, beyond=1.0), SPIKE, False),
        (MicroFigures(30.0, 10, beyond=3.0), SPIKE, False),
    ],
)
def test_no_row_is_to_blame_for_what_is_mostly_a_further_term(figures, verdict, is_term):
    assert figures.is_of_a_term(verdict) is is_term
