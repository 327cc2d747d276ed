"""Rows that stand out though no step does."""

import math

import numpy as np
import pytest

from trimtab.analysis.attempts import read_runs
from trimtab.analysis.findings import rewind_log
from trimtab.analysis.stand_outs import StandOut, find_stand_outs


def quiet(num_steps, *, rows_a_step=4, loss=1.0, tokens=32, noise=0.0, seed=0):
    """Row numbers from 1000 on, each once; as (step, row, loss sum, tokens). The noise is a part of the loss."""
    num_rows = num_steps * rows_a_step
    factors = np.exp(np.random.default_rng(seed).normal(0.0, noise, num_rows)).tolist()
    return [(1 + i // rows_a_step, 1000 + i, loss * factors[i] * tokens, tokens) for i in range(num_rows)]


def stand_outs(log):
    return find_stand_outs(log, series=read_runs(log)[0].series)


def test_a_row_diluted_by_its_steps_is_given_with_its_visits(make_log):
    # given: row 7 has 7.0 in steps 40 and 60, and was learned for the time of step 20
    log = make_log(
        sorted([*quiet(80), (20, 7, 32.0, 32), (40, 7, 224.0, 32), (60, 7, 208.0, 32)], key=lambda record: record[0])
    )
    # when / then
    assert stand_outs(log) == [StandOut(row=7, step=40, loss=7.0, usual=1.0, num_visits=3, num_out=2)]


def test_a_superseded_visit_does_not_count(make_log):
    records = [*quiet(40), (40, 7, 224.0, 32)]
    again = [(step, row, loss, tokens, {"attempt": 2}) for step, row, loss, tokens in quiet(40) if step > 30]
    assert stand_outs(make_log([*records, *again])) == []
    # then: nor among the visits of a row that stands out elsewhere
    (found,) = stand_outs(make_log([*records, *again, (39, 7, 224.0, 32, {"attempt": 2})]))
    assert (found.step, found.num_visits, found.num_out) == (39, 1, 1)


@pytest.mark.parametrize("num_tokens", [1, 15])
def test_a_row_of_few_tokens_says_nothing(make_log, num_tokens):
    assert stand_outs(make_log([*quiet(40), (40, 7, 9.0 * num_tokens, num_tokens)])) == []
    both = [*quiet(40), (40, 7, 9.0 * num_tokens, num_tokens), (40, 8, 192.0, 32)]
    assert [row.row for row in stand_outs(make_log(both))] == [8]


@pytest.mark.parametrize(("loss", "found"), [(3.0, False), (3.1, True)])
def test_a_row_stands_out_above_three_times_what_is_usual(make_log, loss, found):
    assert bool(stand_outs(make_log([*quiet(40), (40, 7, loss * 32, 32)]))) is found


def test_a_model_that_knows_its_data_by_heart_has_no_row_that_stands_out_by_a_hair(make_log):
    assert stand_outs(make_log([*quiet(40, loss=0.02), (40, 7, 0.9 * 32, 32)])) == []
    assert len(stand_outs(make_log([*quiet(40, loss=0.02), (40, 7, 1.1 * 32, 32)]))) == 1


def test_the_first_steps_of_a_loss_that_falls_fast_hold_no_row_that_stands_out(make_log):
    # given: 11 falls to 1 in six steps; later steps are the neighbours of the first
    losses = [11.0, 9.0, 7.0, 5.0, 3.0, *[1.0] * 40]
    records = [
        (step, 10 * step + i, (loss + 0.1 * i) * 32, 32) for step, loss in enumerate(losses, 1) for i in range(4)
    ]
    assert stand_outs(make_log(records)) == []


def test_two_rows_that_stand_out_in_one_step_are_both_given(make_log):
    found = stand_outs(make_log([*quiet(40), (40, 7, 224.0, 32), (40, 8, 192.0, 32)]))
    assert [row.row for row in found] == [7, 8]
    assert [row.usual for row in found] == [1.0, 1.0]


def test_three_rows_are_given_those_that_stand_out_most(make_log):
    bad = [(10 * i, i, (3.0 + i) * 32, 32) for i in range(1, 8)]
    log = make_log(sorted([*quiet(80), *bad], key=lambda record: record[0]))
    assert [row.row for row in stand_outs(log)] == [7, 6, 5]


@pytest.mark.parametrize("rows_a_step", [1, 8])
@pytest.mark.parametrize("noise", [0.2, 0.4, 0.6])
def test_ordinary_rows_do_not_stand_out_however_far_they_spread(make_log, noise, rows_a_step):
    # given: from 0.4 on some rows have more than three times what is usual
    records = quiet(300, rows_a_step=rows_a_step, loss=4.0, noise=noise)
    assert noise < 0.4 or rows_a_step == 1 or max(loss / tokens for _, _, loss, tokens in records) > 12.0
    assert stand_outs(make_log(records, block_rows=1000)) == []
    # then: a row that is far beyond them does
    found = stand_outs(make_log([*records, (300, 7, 400.0 * 32, 32)], block_rows=1000))
    assert [row.row for row in found] == [7]


def test_losses_that_are_no_parts_of_a_whole_have_no_row_that_stands_out(make_log):
    # given: a policy's losses, of both signs
    signs = [(step, row, loss if row % 2 else -loss, tokens) for step, row, loss, tokens in quiet(40)]
    assert stand_outs(make_log([*signs, (40, 7, 224.0, 32)])) == []
    assert stand_outs(make_log([*quiet(40, loss=-1.0), (40, 7, 224.0, 32)])) == []
    assert stand_outs(make_log([*quiet(40), (40, 8, -160.0, 32), (40, 7, 224.0, 32)])) == []


def test_a_log_of_a_few_steps_has_nothing_to_compare_with(make_log):
    assert stand_outs(make_log([*quiet(4), (4, 7, 224.0, 32)])) == []
    assert stand_outs(make_log([(step, 7, math.nan, 32) for step in range(9)])) == []


def test_it_is_said_on_a_log_without_a_finding_and_is_none(make_log):
    # given: the loss is noisy enough for step 60 to be in line
    records = sorted(
        [*quiet(80, rows_a_step=8, noise=0.3), (40, 7, 128.0, 32), (60, 7, 208.0, 32)], key=lambda record: record[0]
    )
    findings = rewind_log(make_log(records))
    # then
    assert (findings.spikes, findings.step) == ((), None)
    (notice,) = (notice for notice in findings.notices if "stands out" in notice)
    assert notice.startswith("a row that stands out all the same: row 7 (loss 6.5 where ")
    assert notice.endswith(" is usual, step 60; 2 of its 2 visits). trimtab rewind --step 60 shows it")


def test_nothing_of_it_is_said_beside_a_finding_of_the_loss(make_log):
    records = [*quiet(80), (80, 7, 3200.0, 32)]
    findings = rewind_log(make_log(records))
    assert [spike.step for spike in findings.spikes] == [80]
    assert not any("stand" in notice for notice in findings.notices)
    assert len(stand_outs(make_log(records))) == 1
