"""Runs and attempts in one file of steps; losses stand for the place of their line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.foreign import segments_of_steps
from trimtab.log.foreign.segments_of_steps import find_segments
from trimtab.log.foreign.step_records import StepRecords


def segments_of(steps, **columns):
    places = np.arange(1, len(steps) + 1)
    return find_segments(StepRecords.of(steps, place=places, **{"loss": places.astype(float), **columns}))


def attempts(found):
    """The steps of each attempt, in its order."""
    numbers = dict.fromkeys(found.attempt.tolist())
    return [found.records.step[found.attempt == number].tolist() for number in numbers]


def test_steps_that_begin_again_are_a_run_of_their_own():
    found = segments_of([1, 2, 3, 4, 5, 1, 2, 3, 4, 5])
    assert attempts(found) == [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5]]
    assert found.restarts == (2,)
    assert found.begins[1] == (1, 6, True)


def test_steps_that_go_back_into_the_middle_are_a_resumed_attempt():
    found = segments_of([1, 2, 3, 4, 3, 4, 5])
    assert attempts(found) == [[1, 2, 3, 4], [3, 4, 5]]
    assert (found.restarts, found.begins[1]) == ((), (3, 5, False))


def test_a_run_resumed_at_steps_that_were_not_logged_is_a_resumed_attempt_too():
    assert attempts(segments_of([10, 20, 30, 40, 25, 35, 45])) == [[10, 20, 30, 40], [25, 35, 45]]


def test_a_run_that_begins_before_the_first_step_is_a_run_of_its_own():
    assert segments_of([5, 6, 7, 1, 2, 3]).restarts == (2,)


def test_a_resumed_run_that_is_started_from_scratch_is_a_run_of_its_own():
    found = segments_of([1, 2, 3, 4, 3, 4, 1, 2, 3])
    assert (len(found.begins), found.restarts) == (3, (3,))


@pytest.mark.parametrize("steps", [[1, 2, 4, 3, 5], [2, 1, 3, 4], [1, 2, 3, 5, 4]])
def test_a_line_that_stands_late_begins_nothing(steps):
    assert attempts(segments_of(steps)) == [sorted(steps)]


def test_lines_that_stand_in_the_file_again_begin_nothing():
    found = segments_of([1, 2, 3, 4, 2, 5])
    assert attempts(found) == [[1, 2, 3, 4, 5]]
    assert found.records.loss.tolist() == [1.0, 5.0, 3.0, 4.0, 6.0]


def test_of_a_step_that_stands_twice_the_last_loss_counts_and_it_is_said():
    found = segments_of([7, 7, 8, 8, 8])
    assert found.records.loss.tolist() == [2.0, 5.0]
    assert (found.num_doubles, found.first_double) == (3, (7, 2))


def test_lines_that_each_hold_a_part_of_a_step_are_put_together():
    found = segments_of(
        [1, 1, 2, 2],
        loss=[3.0, 0.0, 0.0, 4.0],
        has_loss=[True, False, False, True],
        grad_norm=[0.0, 0.5, 0.6, 0.0],
        has_grad_norm=[False, True, True, False],
        lr=[np.nan, 1e-4, 2e-4, np.nan],
    )
    assert found.records.loss.tolist() == [3.0, 4.0]
    assert found.records.grad_norm.tolist() == [0.5, 0.6]
    assert found.records.lr.tolist() == [1e-4, 2e-4]
    assert found.num_doubles == 0


def test_beyond_a_bound_further_runs_count_as_attempts(monkeypatch):
    monkeypatch.setattr(segments_of_steps, "MAX_RUNS", 3)
    found = segments_of([1, 2] * 6)
    assert (len(found.begins), found.restarts) == (6, (2, 3))


def test_no_records_are_no_attempts():
    found = segments_of([])
    assert (found.begins, found.attempt.size, found.restarts) == ((), 0, ())


@given(st.lists(st.integers(0, 6), max_size=40))
def test_every_step_comes_out_once_an_attempt_with_its_last_loss(steps):
    # when
    found = segments_of(steps)
    # then
    pairs = list(zip(found.attempt.tolist(), found.records.step.tolist(), strict=True))
    assert pairs == sorted(set(pairs))
    assert {step for _, step in pairs} == set(steps)
    assert len(pairs) + found.num_doubles == len(steps)
    # Attempts follow one another in the file: where one begins, all lines before it are of those before.
    begins = [begin.place for begin in found.begins]
    for number, step, loss in zip(*zip(*pairs, strict=True), found.records.loss.tolist(), strict=True) if pairs else ():
        end = begins[number] if number < len(begins) else len(steps) + 1
        lines = [place for place in range(begins[number - 1], end) if steps[place - 1] == step]
        assert loss == lines[-1]
