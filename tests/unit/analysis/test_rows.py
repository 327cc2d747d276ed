"""The rows of a step: shares by loss x tokens, what is not finite first, what has no tokens last."""

import math

import numpy as np
import pytest

from trimtab.analysis.attempts import read_runs
from trimtab.analysis.rows import describe_rows, gather_rows


def table_of(log, step, *, top=10):
    series = read_runs(log)[0].series
    tables = gather_rows(log, series=series, steps=[step])
    return describe_rows(log, tables[step], series=series, top=top)


def test_a_share_is_loss_times_tokens_over_the_step(make_log):
    first, second = table_of(make_log([(9, 16, 45.0, 50), (9, 17, 2700.0, 300)]), 9)
    assert (first.row, first.loss, first.tokens) == (17, 9.0, 300)
    assert first.share == pytest.approx(0.984, abs=5e-4)
    assert second.share == pytest.approx(0.016, abs=5e-4)


def test_a_row_that_is_not_finite_comes_first_and_takes_no_share(make_log):
    rows = table_of(make_log([(5, 3, 200.0, 100), (5, 17, math.nan, 80), (5, 4, 100.0, 100)]), 5)
    assert [row.row for row in rows] == [17, 3, 4]
    assert rows[0].share == 0.0
    assert math.isnan(rows[0].loss)
    assert [row.share for row in rows[1:]] == pytest.approx([2 / 3, 1 / 3])
    assert rows[0].excess is None


def test_a_row_without_tokens_comes_last_and_is_not_called_nonfinite(make_log):
    rows = table_of(make_log([(1, 1, 100.0, 50), (1, 2, math.nan, 0)]), 1)
    assert [(row.row, row.loss, row.share, row.finite) for row in rows] == [(1, 2.0, 1.0, True), (2, None, 0.0, True)]


def test_equal_shares_are_listed_by_row_and_several_dead_rows_as_recorded(make_log):
    rows = table_of(make_log([(1, 9, 1.0, 1), (1, 4, 1.0, 1), (1, 8, math.inf, 1), (1, 6, math.nan, 1)]), 1)
    assert [row.row for row in rows] == [8, 6, 4, 9]


def test_a_row_that_stands_twice_in_a_step_is_one_line_with_a_count(make_log):
    log = make_log([(1, 5, 10.0, 10, {"rank": 1}), (1, 5, 30.0, 10, {"micro": 1}), (1, 6, 10.0, 5)], block_rows=1)
    first, second = table_of(log, 1)
    assert (first.row, first.count, first.loss, first.tokens, first.share, first.rank) == (5, 2, 2.0, 20, 0.8, 0)
    assert (second.count, second.rank) == (1, 0)


def test_an_occurrence_that_is_not_finite_makes_the_row_so(make_log):
    first, second = table_of(make_log([(1, 5, 10.0, 10), (1, 5, math.nan, 10), (1, 6, 10.0, 5)]), 1)
    assert (first.row, first.finite, first.share, second.share) == (5, False, 0.0, 1.0)


def test_shares_are_left_open_where_losses_do_not_add_up(make_log):
    rows = table_of(make_log([(1, 5, -10.0, 10), (1, 6, 4.0, 5)]), 1)
    assert [(row.row, row.share) for row in rows] == [(6, None), (5, None)]


def test_losses_of_different_signs_in_earnest_have_no_shares(make_log):
    # given: 6 and -5 add up to 1
    rows = table_of(make_log([(1, 5, -5.0, 10), (1, 6, 6.0, 5)]), 1)
    assert [(row.row, row.share) for row in rows] == [(6, None), (5, None)]


def test_a_loss_that_rounding_left_a_hair_below_0_costs_no_shares(make_log):
    rows = table_of(make_log([(1, 5, -1e-6, 10), (1, 6, 9.0, 5), (1, 7, 1.0, 5)]), 1)
    assert [row.share for row in rows] == [pytest.approx(0.9), pytest.approx(0.1), 0.0]
    assert table_of(make_log([(1, 5, -1e-6, 10), (1, 6, 9.0, 5)]), 1)[0].share == 1.0


def test_a_loss_beyond_float32_is_in_no_usual_loss(make_log):
    # given: row 5 stands at 1.0 elsewhere, and once at 1e300
    rest = [(1, 5, 10.0, 10), (2, 5, 1e301, 10), (3, 6, 1e301, 10)]
    log = make_log([*rest, (6, 5, 90.0, 10), (6, 8, 90.0, 10)], dtype=np.float64)
    first, second = table_of(log, 6)
    assert (first.excess, second.excess) == (pytest.approx(8.0), pytest.approx(8.0))


def test_the_excess_is_over_the_rows_own_other_steps(make_log):
    # given: row 5 stands at 1.0 x 10 and 3.0 x 30 elsewhere (2.5), once without tokens, once not finite
    rest = [(1, 5, 10.0, 10), (2, 5, 90.0, 30), (3, 5, 0.0, 0), (4, 5, math.nan, 7)]
    first, *_ = table_of(make_log([*rest, (6, 5, 90.0, 10), (6, 5, 90.0, 10)]), 6)
    assert first.excess == pytest.approx(9.0 - 2.5)


def test_the_excess_of_a_row_seen_once_is_over_the_runs_level_before(make_log):
    # given: 30 steps, the level is the median of the last 20 finite ones; step 20 had no tokens, 21 is not finite
    losses = {step: float(step) for step in range(1, 31)}
    rest = [(step, 100 + step, losses[step] * 10, 10) for step in losses if step not in (20, 21)]
    rest += [(20, 120, 0.0, 0), (21, 121, math.nan, 10)]
    first, *_ = table_of(make_log([*rest, (31, 5, 1000.0, 10), (32, 6, 1e6, 10)]), 31)
    # then: 9..19 and 22..30 are twenty; their middle values are 18 and 19
    assert first.excess == pytest.approx(100.0 - 18.5)


def test_the_excess_is_open_where_nothing_lies_behind(make_log):
    assert table_of(make_log([(1, 5, 10.0, 10)]), 1)[0].excess is None


def test_a_superseded_attempt_counts_neither_for_shares_nor_for_the_usual_loss(make_log):
    first_attempt = [(1, 5, 10.0, 10), (2, 5, 500.0, 10), (3, 5, 500.0, 10)]
    second_attempt = [(step, row, 20.0, 10, {"attempt": 2}) for step, row in ((2, 5), (2, 6), (3, 7))]
    first, second = table_of(make_log(first_attempt + second_attempt), 2)
    assert (first.row, first.count, first.share, first.excess) == (5, 1, 0.5, pytest.approx(1.0))
    assert second.row == 6


def test_only_the_rows_asked_for_are_described(make_log):
    rows = table_of(make_log([(1, row, float(row), 1) for row in range(1, 8)]), 1, top=2)
    assert [row.row for row in rows] == [7, 6]


def test_only_the_part_of_the_log_that_holds_the_steps_is_read(make_log):
    log = make_log([(step, 1, 1.0, 1) for step in range(1, 101)], block_rows=10)
    series = read_runs(log)[0].series
    log.num_records_read = 0
    tables = gather_rows(log, series=series, steps=[55, 58])
    assert sorted(tables) == [55, 58]
    assert log.num_records_read == 10


def test_what_lies_between_steps_far_apart_is_not_read(make_log):
    log = make_log([(step, 1, 1.0, 1) for step in range(1, 10_001)], block_rows=100)
    series = read_runs(log)[0].series
    log.num_records_read = 0
    tables = gather_rows(log, series=series, steps=[250, 9_950, 5_001])
    assert sorted(tables) == [250, 5_001, 9_950]
    assert log.num_records_read == 300


def test_very_many_steps_take_no_more_than_32_passes(make_log):
    log = make_log([(step, step, 1.0, 1) for step in range(1, 90_001, 1_500)], block_rows=4)
    series = read_runs(log)[0].series
    log.ranges.clear()
    tables = gather_rows(log, series=series, steps=range(1, 90_001, 1_500))
    assert [table.row.tolist() for table in tables.values()] == [[step] for step in range(1, 90_001, 1_500)]
    assert len(log.ranges) == 32


def test_no_step_means_no_pass(make_log):
    log = make_log([(1, 1, 1.0, 1)])
    series = read_runs(log)[0].series
    assert gather_rows(log, series=series, steps=[]) == {}
    assert len(log.ranges) == 1


def test_what_the_log_knows_of_a_row_beside_its_number_stands_with_it(make_log):
    ids = [(4, 400, None, "doc-4"), (5, -1, 7, None), (9, 12, None, "not in this step")]
    log = make_log([(1, 5, 3.0, 1), (1, 4, 2.0, 1), (1, 3, 1.0, 1)], ids=ids)
    assert [(row.row, row.table_row, row.name) for row in table_of(log, 1)] == [
        (5, None, None),
        (4, 400, "doc-4"),
        (3, None, None),
    ]
