"""Row records become steps: token-weighted, over micro-batches and ranks, one attempt a step."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.analysis.attempts import read_runs
from trimtab.analysis.findings import rewind_log
from trimtab.log import steps as steps_module
from trimtab.log.columns import RowColumns


def test_a_step_loss_is_weighted_by_tokens_over_micros_and_ranks(make_log):
    # given: loss 0.9 x 50 tokens and 9.0 x 300, on two ranks
    log = make_log([(9, 16, 45.0, 50), (9, 17, 2700.0, 300, {"rank": 1, "micro": 3})])
    # when
    series = read_runs(log)[0].series
    # then
    assert series.step.tolist() == [9]
    assert series.loss[0] == pytest.approx(7.842857, abs=1e-6)
    assert (series.tokens[0], series.num_records[0]) == (350, 2)


def test_a_row_without_tokens_has_no_loss_whatever_stands_there(make_log):
    log = make_log([(1, 1, 100.0, 50), (1, 2, math.nan, 0), (2, 3, 7.0, 0), (3, 4, math.inf, 10)])
    series = read_runs(log)[0].series
    assert series.loss[0] == 2.0
    assert series.measured.tolist() == [True, False, True]
    assert math.isnan(series.loss[1])
    assert series.loss[2] == math.inf
    assert series.num_empty.tolist() == [1, 1, 0]


def test_what_a_later_attempt_went_over_again_does_not_count(make_log):
    # given: the run got to 5, was resumed at 3 and got to 4, and was resumed at 4
    first = [(step, 1, 1.0, 1, {"attempt": 1}) for step in (1, 2, 3, 4, 5)]
    second = [(step, 1, 2.0, 1, {"attempt": 2}) for step in (3, 4)]
    third = [(step, 1, 3.0, 1, {"attempt": 3}) for step in (4, 5, 6)]
    # when
    reading = read_runs(make_log([*first, *second, *third]))[0]
    # then
    assert reading.series.step.tolist() == [1, 2, 3, 4, 5, 6]
    assert reading.series.attempt.tolist() == [1, 1, 2, 3, 3, 3]
    assert reading.series.loss.tolist() == [1.0, 1.0, 2.0, 3.0, 3.0, 3.0]
    # then: three of the first attempt, one of the second
    assert (reading.num_superseded, reading.first_superseded, reading.last_superseded) == (4, 3, 5)


def test_an_attempt_that_goes_further_back_supersedes_only_what_it_has_reached(make_log):
    first = [(step, 1, 1.0, 1, {"attempt": 1}) for step in (1, 2, 3, 4, 5, 9)]
    second = [(step, 1, 2.0, 1, {"attempt": 2}) for step in (4, 5, 6)]
    third = [(step, 1, 3.0, 1, {"attempt": 3}) for step in (2, 3)]
    reading = read_runs(make_log([*first, *second, *third]))[0]
    assert reading.series.step.tolist() == [1, 2, 3, 4, 5, 6, 9]
    assert reading.series.loss.tolist() == [1.0, 3.0, 3.0, 2.0, 2.0, 2.0, 1.0]
    assert (reading.num_superseded, reading.first_superseded, reading.last_superseded) == (4, 2, 5)
    # then: what stands from step 4 on is of older attempts
    assert reading.newest_attempt == 3
    assert reading.not_reached.tolist() == [False] * 3 + [True] * 4


def test_a_step_that_a_later_attempt_passed_over_is_superseded_all_the_same(make_log):
    first = [(step, 1, 1.0, 1) for step in (1, 2, 3, 4)]
    second = [(step, 1, 2.0, 1, {"attempt": 2}) for step in (2, 4)]
    reading = read_runs(make_log([*first, *second]))[0]
    assert reading.series.step.tolist() == [1, 2, 4]
    assert not reading.not_reached.any()


spans = st.lists(st.tuples(st.integers(-3, 12), st.integers(0, 6)), min_size=1, max_size=9)


@given(spans=spans, ends_of_int64=st.booleans())
def test_a_step_counts_for_the_last_attempt_whose_first_and_last_step_enclose_it(make_log, spans, ends_of_int64):
    # given: an attempt a span
    records = [
        (step, 1, float(attempt), 1, {"attempt": attempt})
        for attempt, (first, length) in enumerate(spans, 1)
        for step in range(first, first + length + 1)
    ]
    if ends_of_int64:
        records += [(step, 1, 0.0, 1, {"attempt": 1}) for step in (-(2**63), 2**63 - 1)]
    reached = {}
    for attempt in sorted({record[4]["attempt"] for record in records}):
        steps = [record[0] for record in records if record[4]["attempt"] == attempt]
        reached[attempt] = (min(steps), max(steps))
    # when
    series = read_runs(make_log(records))[0].series
    # then
    expected = {
        (record[0], record[4]["attempt"])
        for record in records
        if not any(
            first <= record[0] <= last for later, (first, last) in reached.items() if later > record[4]["attempt"]
        )
    }
    assert list(zip(series.step.tolist(), series.attempt.tolist(), strict=True)) == sorted(expected)


def test_65_535_attempts_are_told_apart_in_a_moment(make_log):
    # given: each goes ten steps back and three further on than the one before it
    num_attempts = 65_535
    attempt = np.repeat(np.arange(1, num_attempts + 1, dtype=np.int32), 13)
    step = (np.arange(num_attempts, dtype=np.int64) * 3)[:, None] + np.arange(1, 14)
    size = attempt.size
    rows = RowColumns(
        attempt=attempt,
        step=step.ravel(),
        micro=np.zeros(size, np.int32),
        rank=np.zeros(size, np.int32),
        row=np.zeros(size, np.int64),
        loss_sum=np.ones(size, np.float32),
        num_tokens=np.ones(size, np.int32),
        reason=np.zeros(size, np.uint8),
        keep=np.ones(size, np.bool_),
    )
    # when
    began = time.process_time()
    series = read_runs(make_log(rows, block_rows=1 << 17))[0].series
    # then: quadratic work would take minutes
    assert time.process_time() - began < 5
    assert series.attempt[:9].tolist() == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert series.num_steps == 3 * num_attempts + 10


def test_step_records_of_a_superseded_attempt_do_not_count_either(make_log):
    rows = [(1, 1, 1.0, 1), (2, 1, 1.0, 1), (2, 1, 1.0, 1, {"attempt": 2})]
    records = [{"step": 2, "grad_norm": 99.0}, {"step": 2, "grad_norm": 1.0, "attempt": 2}]
    reading = read_runs(make_log(rows, steps=records))[0]
    assert reading.series.grad_norm[1] == 1.0
    assert reading.num_superseded == 1


def test_the_lowest_rank_speaks_for_the_norm_unless_one_is_not_finite(make_log):
    records = [
        {"step": 1, "rank": 1, "grad_norm": 2.0},
        {"step": 1, "rank": 0, "grad_norm": 1.0},
        {"step": 2, "rank": 0, "grad_norm": 1.0},
        {"step": 2, "rank": 1, "grad_norm": math.inf},
        {"step": 3, "rank": 0},
    ]
    series = read_runs(make_log([], steps=records))[0].series
    assert series.grad_norm[:2].tolist() == [1.0, math.inf]
    assert series.has_grad_norm.tolist() == [True, True, False]


def test_a_log_without_rows_takes_its_losses_from_step_records(make_log):
    # given: ranks with 100 and 300 tokens, a NaN loss, and a window of which nothing was left
    records = [
        {"step": 1, "rank": 0, "loss": 1.0, "num_tokens": 100},
        {"step": 1, "rank": 1, "loss": 2.0, "num_tokens": 300},
        {"step": 2, "loss": math.nan, "num_tokens": 100},
        {"step": 3, "loss": math.nan, "reason": "all_skipped"},
        {"step": 4, "loss": 3.0},
    ]
    series = read_runs(make_log([], steps=records))[0].series
    assert series.loss[0] == 1.75
    assert math.isnan(series.loss[1])
    assert series.loss[3] == 3.0
    assert series.measured.tolist() == [True, True, False, True]


def test_an_empty_log_is_an_empty_series(make_log):
    assert read_runs(make_log([]))[0].series.num_steps == 0


records_of_a_run = st.lists(
    st.tuples(st.integers(1, 6), st.integers(0, 3), st.sampled_from([0.5, 1.0, 4.0]), st.integers(0, 3)), min_size=1
)


@given(records=records_of_a_run, block_rows=st.integers(1, 9), pending=st.sampled_from([0, 3, 1 << 18]))
def test_steps_do_not_depend_on_blocks_or_order(make_log, records, block_rows, pending):
    # given: sums by the book
    tokens = {step: sum(r[3] for r in records if r[0] == step) for step in {r[0] for r in records}}
    sums = {step: sum(r[2] for r in records if r[0] == step and r[3]) for step in tokens}
    # when
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(steps_module, "PENDING_LIMIT", pending)
        series = read_runs(make_log(records, block_rows=block_rows))[0].series
    # then
    assert series.step.tolist() == sorted(tokens)
    assert series.tokens.tolist() == [tokens[step] for step in sorted(tokens)]
    for step, loss in zip(series.step.tolist(), series.loss.tolist(), strict=True):
        assert loss == sums[step] / tokens[step] if tokens[step] else math.isnan(loss)


def test_a_log_of_800_000_rows_is_read_twice_and_its_ten_spikes_once_more_where_they_are(make_log):
    # given: 50,000 steps x 4 micro-batches x 4 rows, ten of them planted
    step = np.repeat(np.arange(1, 50_001), 16)
    size = step.size
    loss_sum = (100 * (2 + 0.1 * np.random.default_rng(1).random(size))).astype(np.float32)
    planted = list(range(4_000, 50_000, 4_600))
    loss_sum[[16 * (at - 1) + 5 for at in planted]] = 9_000.0
    rows = RowColumns(
        attempt=np.ones(size, np.int32),
        step=step,
        micro=np.tile(np.repeat(np.arange(4, dtype=np.int32), 4), 50_000),
        rank=np.zeros(size, np.int32),
        row=np.arange(size) % 90_000,
        loss_sum=loss_sum,
        num_tokens=np.full(size, 100, np.int32),
        reason=np.zeros(size, np.uint8),
        keep=np.ones(size, np.bool_),
    )
    log = make_log(rows, block_rows=1 << 16)
    # when
    findings = rewind_log(log)
    # then
    assert sorted(spike.step for spike in findings.spikes) == planted
    assert all(spike.row == (16 * (spike.step - 1) + 5) % 90_000 for spike in findings.spikes)
    # and: for its losses, for the ten, and for what their rows cost elsewhere
    assert log.ranges == [(None, None), *((at, at) for at in planted), (None, None)]
