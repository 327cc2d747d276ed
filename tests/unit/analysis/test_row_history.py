"""One row through a run, from records written down by hand."""

import math

import numpy as np
import pytest

from trimtab.analysis.row_history import MAX_VISITS, find_row, row_history
from trimtab.errors import LogError
from trimtab.log.columns import IdColumns


def with_ids(log, rows, *, names=None, table_rows=None):
    size = len(rows)
    columns = IdColumns(
        row=np.array(rows, np.int64),
        table_row=np.array(table_rows or [-1] * size, np.int64),
        digest=np.zeros(size, np.int64),
        has_digest=np.zeros(size, np.bool_),
        name=np.array(names or [None] * size, object),
    )
    log.id_columns = lambda: columns
    return log


def test_a_row_is_followed_through_its_steps(make_log):
    # given: row 7 at steps 1, 4 and 9, one occurrence without tokens, one that the guard left out
    log = make_log(
        [
            (9, 7, 60.0, 10, {"keep": False}),
            (1, 7, 20.0, 10),
            (1, 8, 90.0, 10),
            (4, 7, 5.0, 5),
            (5, 7, 0.0, 0),
        ]
    )
    # when
    history = row_history(log, row=7)
    # then
    assert history.count == 4
    assert [(visit.step, visit.loss, visit.tokens, visit.left_out) for visit in history.visits] == [
        (1, 2.0, 10, False),
        (4, 1.0, 5, False),
        (5, None, 0, False),
        (9, 6.0, 10, True),
    ]
    assert history.mean_loss == pytest.approx(85 / 25)
    assert (history.best.step, history.worst.step) == (4, 9)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_is_not_finite_is_the_worst_and_in_no_mean(make_log, broken):
    history = row_history(make_log([(1, 7, 20.0, 10), (2, 7, broken, 10), (3, 7, 900.0, 10)]), row=7)
    assert history.worst.step == 2
    assert history.mean_loss == pytest.approx(46.0)
    document = history.to_dict()
    assert document["worst"]["loss"] in ("nan", "inf")
    assert document["best"] == {"step": 1, "loss": 2.0, "tokens": 10, "left_out": False}


def test_a_row_that_was_only_not_finite_has_no_best(make_log):
    history = row_history(make_log([(1, 7, math.nan, 10)]), row=7)
    assert (history.best, history.mean_loss, history.worst.step) == (None, None, 1)


def test_a_superseded_attempt_does_not_count(make_log):
    # given: step 2 was trained twice
    log = make_log([(1, 7, 1.0, 1), (2, 7, 9.0, 1), (2, 7, 2.0, 1, {"attempt": 2}), (3, 7, 3.0, 1, {"attempt": 2})])
    assert [visit.loss for visit in row_history(log, row=7).visits] == [1.0, 2.0, 3.0]


def test_runs_of_their_own_in_one_log_count_both(make_log):
    # given: the second run begins anew at step 1
    log = make_log([(1, 7, 1.0, 1), (2, 7, 2.0, 1), (1, 7, 3.0, 1, {"attempt": 2}), (2, 7, 4.0, 1, {"attempt": 2})])
    log.restarts = lambda: (2,)
    assert row_history(log, row=7).num_steps == 4
    assert [(visit.step, visit.loss) for visit in row_history(log, row=7).visits] == [
        (1, 1.0),
        (2, 2.0),
        (1, 3.0),
        (2, 4.0),
    ]


def test_pieces_of_a_row_that_was_split_are_counted_and_their_steps_once(make_log):
    # given: pieces in two sequences of a step, and in another step
    log = make_log([(5, 7, 1.0, 1), (2, 7, 2.0, 1), (2, 7, 3.0, 1, {"micro": 1}), (5, 7, 4.0, 1)])
    history = row_history(log, row=7)
    assert (history.count, history.num_steps) == (4, 2)
    assert history.to_dict()["num_steps"] == 2


def test_the_last_occurrences_are_listed_and_all_are_counted(make_log):
    history = row_history(make_log([(step, 7, float(step), 1) for step in range(1, 201)]), row=7)
    assert (history.count, history.visits_left_out) == (200, 200 - MAX_VISITS)
    assert [history.visits[0].step, history.visits[-1].step] == [201 - MAX_VISITS, 200]
    assert (history.best.step, history.mean_loss) == (1, pytest.approx(100.5))


def test_a_row_that_never_occurred_has_a_count_of_0(make_log):
    history = row_history(make_log([(1, 7, 1.0, 1)]), row=8)
    assert (history.count, history.visits, history.best, history.worst, history.mean_loss) == (0, (), None, None, None)


def test_what_else_a_row_is_known_by_is_told(make_log):
    log = with_ids(make_log([(1, 7, 1.0, 1)]), [7, 9], names=["seven", None], table_rows=[70, -1])
    assert (row_history(log, row=7).name, row_history(log, row=7).table_row) == ("seven", 70)
    assert (row_history(log, row=9).name, row_history(log, row=9).table_row) == (None, None)


def test_a_row_is_found_by_its_number_or_its_id(make_log):
    log = with_ids(make_log([(1, 7, 1.0, 1)]), [7, 9, 10, 11], names=["seven", "7", "two", "two"])
    assert find_row(log, "seven") == 7
    assert find_row(log, "12") == 12
    assert find_row(log, "-3") == -3
    # then: an id that reads like a number is the id
    assert find_row(log, "7") == 9
    with pytest.raises(LogError, match="2 rows have the id 'two'"):
        find_row(log, "two")
    for name in ("nine", "", "1.5", "9" * 40, "\u0667", "1_0"):
        with pytest.raises(LogError, match="it is no row number"):
            find_row(log, name)
