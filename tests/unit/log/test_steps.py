"""Step losses and step lines, against hand-worked numbers."""

import math

import numpy as np
import pytest

from trimtab.log.columns import RowColumns, StepColumns
from trimtab.log.steps import step_lines, step_sums


def rows(*entries: tuple[int, int, int, float, int]) -> RowColumns:
    """Attempt, rank, step, loss sum, tokens."""
    attempt, rank, step, loss, tokens = (list(column) for column in zip(*entries, strict=True))
    zeros = np.zeros(len(entries), np.int64)
    return RowColumns(
        np.array(attempt, np.int32), np.array(step, np.int64), zeros.astype(np.int32), np.array(rank, np.int32), zeros,
        np.array(loss, np.float32), np.array(tokens, np.int32), zeros.astype(np.uint8), zeros.astype(np.bool_),
    )  # fmt: skip


def records(*entries: tuple[int, int, int, float, int, int]) -> StepColumns:
    """Attempt, rank, step, loss, tokens, reason; the learning rate is a tenth of the rank."""
    attempt, rank, step, loss, tokens, reason = (list(column) for column in zip(*entries, strict=True))
    count = len(entries)
    return StepColumns(
        attempt=np.array(attempt, np.int32),
        rank=np.array(rank, np.int32),
        step=np.array(step, np.int64),
        loss=np.array(loss, np.float64),
        grad_norm=np.full(count, np.nan),
        has_grad_norm=np.zeros(count, np.bool_),
        lr=np.array(rank) / 10,
        has_lr=np.ones(count, np.bool_),
        reason=np.array(reason, np.uint8),
        clipped=np.full(count, -1, np.int8),
        loss_scale=np.full(count, np.nan),
        wall_s=np.full(count, np.nan),
        num_tokens=np.array(tokens, np.int64),
        num_skipped_micros=np.zeros(count, np.int64),
        num_skipped_tokens=np.zeros(count, np.int64),
    )


def test_a_step_loss_is_the_sum_over_micro_batches_and_ranks_of_its_attempt() -> None:
    # Step 1, attempt 1: (45 + 2700) / (50 + 300) = 7.842857; the same step of attempt 2 stands for itself.
    sums = step_sums([rows((1, 0, 1, 45.0, 50), (1, 0, 2, 1.0, 1)), rows((1, 1, 1, 2700.0, 300), (2, 1, 1, 8.0, 4))])

    lines = step_lines(sums, StepColumns.empty())

    assert list(zip(lines.attempt.tolist(), lines.step.tolist(), strict=True)) == [(1, 1), (1, 2), (2, 1)]
    assert lines.loss.tolist() == pytest.approx([2745 / 350, 1.0, 2.0])
    assert lines.num_tokens.tolist() == [350, 1, 4]


def test_steps_that_go_backwards_inside_a_block_are_still_summed() -> None:
    sums = step_sums([rows((1, 0, 2, 1.0, 1), (1, 0, 1, 2.0, 1), (1, 0, 2, 3.0, 1))])

    assert sums.step.tolist() == [1, 2]
    assert sums.loss_sum.tolist() == [2.0, 4.0]


def test_not_finite_stays_and_no_tokens_is_no_loss() -> None:
    sums = step_sums(
        [rows((1, 0, 1, math.nan, 1), (1, 0, 2, math.inf, 1), (1, 0, 2, 1.0, 1), (1, 0, 3, 0.0, 0), (1, 0, 4, 2.0, 1))]
    )

    lines = step_lines(sums, StepColumns.empty())

    assert lines.finite.tolist() == [False, False, True, True]
    assert lines.has_loss.tolist() == [True, True, False, True]
    assert math.isnan(lines.loss[0])
    assert lines.loss[1] == math.inf
    assert math.isnan(lines.loss[2])


def test_opposite_infinities_are_not_a_number() -> None:
    sums = step_sums([rows((1, 0, 1, math.inf, 1), (1, 0, 1, -math.inf, 1))])

    assert math.isnan(sums.loss_sum[0])


def test_without_rows_the_record_speaks_and_with_rows_the_rows_do() -> None:
    lines = step_lines(step_sums([rows((1, 0, 2, 6.0, 2))]), records((1, 0, 1, 9.0, 5, 0), (1, 0, 2, 9.0, 5, 1)))

    assert lines.loss.tolist() == [9.0, 3.0]
    assert lines.num_tokens.tolist() == [5, 2]
    assert lines.stepped.tolist() == [1, 0]
    assert lines.reason.tolist() == [0, 1]


def test_a_step_that_nobody_finished_has_rows_only() -> None:
    lines = step_lines(step_sums([rows((1, 0, 7, 6.0, 2))]), records((1, 0, 6, 1.0, 1, 0)))

    assert lines.step.tolist() == [6, 7]
    assert lines.stepped.tolist() == [1, -1]
    assert lines.reason.tolist() == [0, 6]
    assert lines.has_lr.tolist() == [True, False]


def kept(*entries: tuple[int, int, int, float, int]) -> RowColumns:
    """As `rows`, of micro-batches that took part in the update."""
    return rows(*entries)._replace(keep=np.ones(len(entries), np.bool_))


def test_where_the_rows_do_not_hold_all_tokens_of_the_step_the_record_speaks() -> None:
    # given: steps of two micro-batches of 22 tokens; of one of step 2 the rows are known without their losses
    sums = step_sums([kept((1, 0, 1, 44.0, 44), (1, 0, 2, 22.0, 22), (1, 0, 2, 0.0, 0), (1, 0, 3, 44.0, 44))])

    lines = step_lines(sums, records((1, 0, 1, 1.01, 44, 0), (1, 0, 2, 5.5, 44, 0), (1, 0, 3, 1.0, 44, 0)))

    assert lines.loss.tolist() == [1.0, 5.5, 1.0]
    assert lines.num_tokens.tolist() == [44, 44, 44]
    assert lines.is_reported.tolist() == [False, True, False]
    assert lines.differs.tolist() == [False, False, False]


def test_where_the_rows_of_one_rank_are_short_the_records_of_all_ranks_speak() -> None:
    sums = step_sums([kept((1, 0, 1, 10.0, 10)), kept((1, 1, 1, 5.0, 5))])

    lines = step_lines(sums, records((1, 0, 1, 1.0, 10, 0), (1, 1, 1, 4.0, 30, 0)))

    assert lines.loss.tolist() == pytest.approx([130 / 40])
    assert lines.num_tokens.tolist() == [40]


def test_a_record_that_leaves_out_what_the_guard_did_does_not_speak_for_rows_that_do_not() -> None:
    # given: one micro-batch was left out of the update, of another the losses of the rows are not known
    sums = step_sums([kept((1, 0, 1, 0.0, 0)), rows((1, 0, 1, 220.0, 22))])

    lines = step_lines(sums, records((1, 0, 1, 0.5, 44, 0)))

    assert (lines.loss.tolist(), lines.is_reported.tolist()) == ([10.0], [False])


@pytest.mark.parametrize(("tokens", "reason"), [(44, 1), (-1, 0), (0, 0)])
def test_a_record_without_a_loss_or_a_count_does_not_speak_for_rows(tokens: int, reason: int) -> None:
    lines = step_lines(step_sums([kept((1, 0, 1, 22.0, 22))]), records((1, 0, 1, math.nan, tokens, reason)))

    assert (lines.loss.tolist(), lines.num_tokens.tolist()) == ([1.0], [22])


@pytest.mark.parametrize(
    ("reported", "differs"),
    [(1.0, False), (1.09, False), (1.2, True), (0.8, True), (math.nan, True), (math.inf, True)],
)
def test_a_reported_loss_that_is_far_from_that_of_the_rows_is_told(reported: float, differs: bool) -> None:
    sums = step_sums([kept((1, 0, 1, 10.0, 10), (1, 0, 2, math.nan, 10))])

    lines = step_lines(sums, records((1, 0, 1, reported, 10, 0), (1, 0, 2, math.nan, 10, 0)))

    assert lines.loss[0] == 1.0
    assert lines.differs.tolist() == [differs, False]


def test_of_what_the_guard_left_out_of_a_reported_loss_no_difference_is_told() -> None:
    lines = step_lines(step_sums([rows((1, 0, 1, 10.0, 10))]), records((1, 0, 1, 0.1, 10, 0)))

    assert lines.differs.tolist() == [False]


def test_the_lowest_rank_speaks_for_a_step_and_tokens_are_those_of_all_ranks() -> None:
    lines = step_lines(step_sums([]), records((1, 3, 1, 4.0, 10, 0), (1, 1, 1, 2.0, 5, 0), (1, 2, 1, 3.0, 7, 0)))

    # (4 x 10 + 2 x 5 + 3 x 7) / 22: the ranks' own means, weighted by their tokens
    assert lines.loss.tolist() == pytest.approx([71 / 22])
    assert lines.lr.tolist() == [0.1]
    assert lines.num_tokens.tolist() == [22]


def test_a_step_took_as_long_as_its_slowest_rank() -> None:
    ranks = records((1, 0, 1, 4.0, 10, 0), (1, 1, 1, 2.0, 5, 0), (1, 0, 2, 4.0, 10, 0), (1, 1, 2, 4.0, 10, 0))
    ranks = ranks._replace(wall_s=np.array([0.5, 0.75, np.nan, np.nan]))

    for rows_too in ([], [rows((1, 0, 1, 1.0, 1), (1, 1, 2, 1.0, 1))]):
        wall_s = step_lines(step_sums(rows_too), ranks).wall_s.tolist()
        assert wall_s[0] == 0.75
        assert math.isnan(wall_s[1])


def test_of_two_records_of_one_rank_the_later_one_counts_and_its_tokens_once() -> None:
    lines = step_lines(step_sums([]), records((1, 0, 1, 4.0, 10, 0), (1, 0, 1, 5.0, 11, 0)))

    assert lines.loss.tolist() == [5.0]
    assert lines.num_tokens.tolist() == [11]


def test_nothing_gives_no_lines() -> None:
    assert step_lines(step_sums([]), StepColumns.empty()).step.size == 0
    assert step_sums([RowColumns.empty()]).step.size == 0


@pytest.mark.parametrize("with_rows", [True, False])
def test_the_mean_over_no_tokens_is_no_loss(with_rows: bool) -> None:
    sums = step_sums([rows((1, 0, 2, 6.0, 2))] if with_rows else [])

    lines = step_lines(sums, records((1, 0, 1, math.nan, 0, 0), (1, 0, 2, 3.0, 2, 0)))

    assert lines.has_loss.tolist() == [False, True]
    assert lines.finite.tolist() == [True, True]
    assert math.isnan(lines.loss[0])


def test_a_loss_without_a_count_of_tokens_is_taken_where_no_row_says_otherwise() -> None:
    records_ = records((1, 0, 1, 3.0, 0, 0), (1, 0, 2, math.inf, 0, 0), (1, 0, 3, math.nan, 5, 0))

    assert step_lines(step_sums([]), records_).has_loss.tolist() == [True, True, True]
    with_rows = step_lines(step_sums([rows((1, 0, 1, 0.0, 0), (1, 0, 2, 0.0, 0))]), records_)
    assert with_rows.has_loss.tolist() == [False, False, True]


def test_a_record_of_unknown_tokens_is_measured_and_its_tokens_stay_unknown() -> None:
    lines = step_lines(step_sums([]), records((1, 0, 1, 4.0, -1, 0), (1, 1, 1, 2.0, -1, 0), (1, 0, 2, math.nan, -1, 0)))

    assert lines.has_loss.tolist() == [True, True]
    assert lines.loss[0] == 3.0
    assert lines.finite.tolist() == [True, False]
    assert lines.num_tokens.tolist() == [-1, -1]


def test_a_record_of_unknown_tokens_speaks_for_rows_recorded_without_their_losses() -> None:
    sums = step_sums([rows((1, 0, 1, 0.0, 0), (1, 0, 2, 0.0, 0), (1, 0, 3, 8.0, 2))])

    lines = step_lines(
        sums, records((1, 0, 1, 5.0, -1, 0), (1, 0, 2, math.nan, -1, 0), (1, 0, 3, 7.0, -1, 0), (1, 0, 4, 7.0, -1, 1))
    )

    assert lines.loss[[0, 2]].tolist() == [5.0, 4.0]
    assert lines.has_loss.tolist() == [True, True, True, False]
    assert lines.finite.tolist() == [True, False, True, True]


def test_a_rank_without_tokens_does_not_touch_the_loss_of_the_others() -> None:
    lines = step_lines(step_sums([]), records((1, 0, 1, 4.0, 10, 0), (1, 1, 1, math.nan, 0, 0)))

    assert lines.loss.tolist() == [4.0]
    assert lines.num_tokens.tolist() == [10]


@pytest.mark.parametrize("limit", [1, 1 << 18])
def test_records_that_the_guard_left_out_are_counted_a_step(monkeypatch, limit) -> None:
    # given: steps out of order, in blocks that are folded after each other, and all at once
    monkeypatch.setattr("trimtab.log.steps.PENDING_LIMIT", limit)
    first = rows((1, 0, 2, 1.0, 1), (1, 0, 1, 1.0, 1), (1, 0, 2, 1.0, 1))._replace(keep=np.array([False, True, False]))
    second = rows((1, 1, 2, 1.0, 1), (2, 0, 2, 1.0, 1))._replace(keep=np.array([False, True]))
    # when
    lines = step_lines(step_sums([first, second]), records((1, 0, 3, 1.0, 1, 0)))
    # then
    assert list(zip(lines.attempt, lines.step, lines.num_left_out, strict=True)) == [
        (1, 1, 0), (1, 2, 3), (1, 3, 0), (2, 2, 0)
    ]  # fmt: skip


@pytest.mark.parametrize("limit", [1, 1 << 18])
def test_the_highest_row_loss_of_a_step_is_that_of_a_row_with_tokens_enough(monkeypatch, limit) -> None:
    # given: step 2 has a mean of 9 over 15 tokens, 4 over 16 and NaN; step 3 has few tokens only
    monkeypatch.setattr("trimtab.log.steps.PENDING_LIMIT", limit)
    blocks = [
        rows((1, 0, 2, 135.0, 15), (1, 0, 1, 32.0, 32)),
        rows((1, 0, 2, 64.0, 16), (1, 0, 2, math.nan, 50), (1, 0, 3, 9.0, 3), (1, 0, 2, 20.0, 20)),
    ]
    # when
    lines = step_lines(step_sums(blocks), records((1, 0, 4, 1.0, 1, 0)))
    # then
    assert lines.top_loss.tolist() == [1.0, 4.0, -math.inf, -math.inf]
