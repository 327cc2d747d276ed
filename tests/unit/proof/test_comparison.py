"""How far apart two trainings are, by hand-worked numbers."""

import math

import numpy as np
import pytest

from trimtab.proof.comparison import distance, largest_gap, state_gap
from trimtab.proof.snapshot import Snapshot
from trimtab.proof.trial import Outcome

EPSILON = 2.0**-23


def outcome(*parameters, moments=(1.0,), steps=(3.0,)):
    """A training of one parameter, from 0."""
    snapshots = [
        Snapshot(
            digest=f"{value} {moments} {steps}",
            buffers="",
            parameters=np.array([value]),
            moments=np.array(moments),
            steps=np.array(steps),
            lrs=(),
            scale=None,
            epsilon=EPSILON,
            is_sharded=False,
        )
        for value in (0.0, *parameters)
    ]
    return [Outcome(rank=0, snapshots=snapshots)]


def test_the_same_bits_are_bitwise():
    assert distance(outcome(1.0), outcome(1.0), window=-1, since=0) == (True, True, 0.0, 0.0, 1.0)


@pytest.mark.parametrize(("units", "is_near"), [(1, True), (15, True), (20, False)])
def test_a_few_units_in_the_last_place_are_rounding(units, is_near):
    found = distance(outcome(1.0 + units * EPSILON), outcome(1.0), window=-1, since=0)
    assert (found.is_bitwise, found.is_near) == (False, is_near)
    assert found.parameters == pytest.approx(units * EPSILON)


def test_a_difference_as_large_as_the_move_is_none_however_small_it_is():
    # given a step of 8 units in the last place that one training has taken and the other has not
    found = distance(outcome(1.0, 1.0), outcome(1.0, 1.0 + 8 * EPSILON), window=1, since=1)
    assert not found.is_near


@pytest.mark.parametrize("other", [dict(moments=(1.001,)), dict(steps=(2.0,)), dict(moments=(1.0, 1.0))])
def test_moments_and_step_counts_are_looked_at_too(other):
    assert not distance(outcome(1.0, **other), outcome(1.0), window=-1, since=0).is_near


def test_what_is_not_finite_is_near_nothing():
    found = distance(outcome(math.nan), outcome(1.0), window=-1, since=0)
    assert not found.is_near
    assert math.isnan(found.parameters)


def test_the_rank_that_is_furthest_counts():
    found = distance(outcome(1.0) + outcome(1.5), outcome(1.0) + outcome(1.0), window=-1, since=0)
    assert (found.is_bitwise, found.is_near, found.parameters) == (False, False, 0.5)


def test_the_largest_gap_is_that_of_one_number():
    assert largest_gap(np.array([1.0, 2.0]), np.array([1.5, 2.25])) == 0.5
    assert largest_gap(np.zeros(2), np.zeros(3)) == math.inf
    assert largest_gap(np.zeros(0), np.zeros(0)) == 0.0


def test_the_state_of_an_optimizer_is_told_apart_by_moments_and_step_counts():
    [ours] = outcome(1.0, moments=(4.0,), steps=(3.0,))
    [theirs] = outcome(1.0, moments=(1.0,), steps=(7.0,))
    assert state_gap(ours.end, theirs.end) == 5.0
    [other] = outcome(1.0, moments=())
    assert state_gap(ours.end, other.end) == math.inf
