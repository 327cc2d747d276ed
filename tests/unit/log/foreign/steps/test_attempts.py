"""Runs and attempts in one file of steps; losses stand for the place of their line."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.foreign.steps import attempts as module
from trimtab.log.foreign.steps.attempts import find_attempts
from trimtab.log.foreign.steps.records import StepRecords


def segments_of(steps, **columns):
    places = np.arange(1, len(steps) + 1)
    return find_attempts(StepRecords.of(steps, place=places, **{"loss": places.astype(float), **columns}))


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


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ([10, 20, 25], [10, 20, 30]),
        ([*range(10, 101, 10), 103], [*range(10, 201, 10)]),
        ([10, 20, 25], [10, 20, 40, 50]),
        ([1, 2, 3], [1, 2, 4, 8]),
        ([10, 25], [10, 30, 50]),
        ([*range(1, 1001)], [*range(1, 901), 1001, 1002]),
        ([5, 10, 15, 16, 17, 18], [0, 5, 20, 25]),
    ],
)
def test_a_run_that_begins_anew_is_one_wherever_the_first_one_ends(first, second):
    found = segments_of([*first, *second])
    assert (attempts(found), found.restarts, found.num_doubles) == ([first, second], (2,), 0)


@pytest.mark.parametrize(
    ("steps", "resumed"),
    [
        ([*range(5, 1006, 5)], [*range(510, 2001, 10)]),
        ([10, 20, 25], [20, 30, 40]),
        ([*range(10, 101, 10), 103], [*range(50, 101, 10), 120, 130]),
        ([*range(1, 101)], [*range(52, 101, 3), 103, 106]),
    ],
)
def test_a_resumed_run_is_one_at_another_pace_too(steps, resumed):
    found = segments_of([*steps, *resumed])
    assert (attempts(found), found.restarts) == ([steps, resumed], ())


@pytest.mark.parametrize(
    "late",
    [[5, 6], [5, 3], [5, 6, 5], [5, 5], [1], [3, 2, 1], [*range(5, 15)]],
)
def test_late_and_repeated_lines_between_others_hide_no_step(late):
    # given: all of them stand before a line that goes on where the run was
    found = segments_of([*range(1, 21), *late, *range(21, 31)])
    # then
    assert attempts(found) == [[*range(1, 31)]]
    assert found.num_doubles == len(late)


def test_lines_that_were_flushed_late_together_hide_none_of_those_before_them():
    assert attempts(segments_of([1, 2, 3, 6, 7, 4, 5, 8, 9])) == [[*range(1, 10)]]


@pytest.mark.parametrize("following", [[16, 17], [21, 22]])
def test_a_run_between_late_lines_stays_a_run(following):
    found = segments_of([*range(1, 21), *range(1, 16), 3, *following])
    assert attempts(found) == [[*range(1, 21)], [*range(1, 16), *following]]
    assert found.restarts == (2,)


def test_a_late_line_before_a_resumed_run_is_no_attempt_of_its_own():
    assert attempts(segments_of([*range(1, 21), 5, *range(3, 26)])) == [[*range(1, 21)], [*range(3, 26)]]


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.lists(st.integers(1, 9), min_size=1, max_size=30),
    st.integers(0, 3),
)
def test_two_whole_runs_are_never_merged(gaps_of_first, gaps_of_second, before):
    # given: each at a pace of its own, the second from the first step of the first on, or before it
    first = np.cumsum([10, *gaps_of_first]).tolist()
    second = np.cumsum([10 - before, *gaps_of_second]).tolist()
    if second[1] > first[-1]:  # of two lines the second runs into no step of the first
        return
    # then
    found = segments_of([*first, *second])
    assert (attempts(found), found.restarts) == ([first, second], (2,))


def test_many_late_lines_cost_no_more_than_others():
    # given: every second line stands late
    steps = np.arange(200_000)
    steps[1::2] = np.maximum(steps[1::2] - 1_000, 0)
    began = time.process_time()
    found = segments_of(steps.tolist())
    # then
    assert len(found.begins) == 1
    assert time.process_time() - began < 10


def test_many_attempts_cost_no_more_than_others():
    steps = [10**6, *[1, 2, 5, 3, 4] * 20_000, 10**7]
    began = time.process_time()
    segments_of(steps)
    assert time.process_time() - began < 10


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
    monkeypatch.setattr(module, "MAX_RUNS", 3)
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
