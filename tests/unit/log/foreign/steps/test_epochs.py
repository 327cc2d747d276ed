"""Epochs as steps, and steps of each epoch counted through."""

import math

import numpy as np
import pytest

from trimtab.log.foreign.steps.epochs import counted_through, epoch_as_step


def through(steps, epochs):
    step, said = counted_through(np.array(steps, np.int64), np.array(epochs, np.float64))
    return step.tolist(), said


def test_steps_that_each_epoch_counts_anew_are_counted_through():
    step, said = through([1, 2, 3, 1, 2, 3], [1, 1, 1, 2, 2, 2])
    assert step == [1, 2, 3, 4, 5, 6]
    assert "step 1 of epoch 2 is step 4" in said[0]


def test_they_keep_their_spacing_and_unequal_epochs_their_length():
    assert through([0, 10, 20, 0, 10, 0, 10], [0, 0, 0, 1, 1, 2, 2])[0] == [0, 10, 20, 30, 40, 50, 60]


@pytest.mark.parametrize(
    ("steps", "epochs"),
    [
        ([1, 2, 3, 1, 2, 3], [1, 1, 1, 1, 1, 1]),
        ([1, 2, 3, 1, 2, 3], [1, 1, 2, 1, 1, 2]),
        ([1, 2, 3, 4], [1, 1, 2, 2]),
        ([1, 2, 1, 2, 1, 2], [1, 1, 2, 2, 1, 1]),
        ([1, 2, 1, 2], [math.nan] * 4),
    ],
)
def test_a_run_that_was_started_again_stays_as_it_is(steps, epochs):
    assert through(steps, epochs) == (steps, [])


def test_an_entry_without_an_epoch_is_of_the_one_before():
    assert through([1, 2, 1, 2], [1, math.nan, 2, math.nan])[0] == [1, 2, 3, 4]


def test_epochs_are_steps_where_each_entry_has_its_own():
    assert epoch_as_step(np.array([1.0, 2.0, 1.0])).tolist() == [1, 2, 1]
    for epochs in ([1.0, 1.0, 2.0], [0.5, 1.0], [math.nan], []):
        assert epoch_as_step(np.array(epochs)) is None
