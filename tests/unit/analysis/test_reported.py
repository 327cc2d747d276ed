"""What is said where the run reported another loss than that of its rows."""

import math

import pytest

from trimtab.analysis.findings import rewind_log
from trimtab.values import Event

UNKNOWN = "rows whose losses were not recorded"
OTHER = "another loss than that of its rows"


def micros(num_steps, **changes):
    """Two micro-batches a step of one row and 22 tokens each, loss 1; `changes` maps s<step> to those of its two."""
    return [
        (step, 10 * step + micro, *pair, {"micro": micro})
        for step in range(1, num_steps + 1)
        for micro, pair in enumerate(changes.get(f"s{step}", [(22.0, 22), (22.0, 22)]))
    ]


def steps(num_steps, **losses):
    return [{"step": s, "loss": losses.get(f"s{s}", 1.0), "num_tokens": 44} for s in range(1, num_steps + 1)]


def said(findings, words):
    return [notice for notice in findings.notices if words in notice]


def test_a_spike_in_a_micro_batch_whose_row_losses_are_not_known_is_found(make_log):
    # given: the rows of step 41 that are known have nothing to do with it
    why = Event("no_row_losses", 41, 0.0, {"why": "24 token losses do not spread evenly over 1 rows"})
    log = make_log(micros(60, s41=[(22.0, 22), (0.0, 0)]), steps=steps(60, s41=5.5), events=[why])
    # when
    findings = rewind_log(log)
    # then
    (spike,) = findings.spikes
    assert (spike.step, spike.value) == (41, 5.5)
    assert said(findings, UNKNOWN) == [
        "step 41 has rows whose losses were not recorded (24 token losses do not spread evenly over 1 rows): its loss "
        "is the one that the run reported, and shares are over the rows that are known"
    ]
    assert not said(findings, OTHER)
    assert not said(findings, "without supervised tokens")


def test_many_steps_are_told_by_their_number_and_the_first(make_log):
    half = [(22.0, 22), (0.0, 0)]
    findings = rewind_log(make_log(micros(60, s41=half, s50=half), steps=steps(60)))
    assert said(findings, UNKNOWN)[0].startswith("2 steps, the first of them 41, have rows whose losses")


@pytest.mark.parametrize("reported", [1000.0, 0.0, math.nan])
def test_a_reported_loss_with_terms_that_are_no_rows_doing_is_told_with_both_values(make_log, reported):
    findings = rewind_log(make_log(micros(60), steps=steps(60, s24=reported)))
    assert findings.spikes == ()
    (notice,) = said(findings, OTHER)
    assert f"at step 24: {reported:.6g} where the rows have 1." in notice


def test_a_factor_on_every_loss_is_told_once(make_log):
    losses = {f"s{step}": 3.0 for step in range(1, 61)}
    (notice,) = said(rewind_log(make_log(micros(60), steps=steps(60, **losses))), OTHER)
    assert "at 60 steps, the first of them 1: 3 where the rows have 1." in notice


def test_a_mean_over_micro_batches_instead_of_tokens_is_no_other_loss(make_log):
    # given: 2.0 over 40 tokens and 12.0 over 4: 2.909 by tokens, 7 by micro-batches, 14 as their sum
    uneven = [(80.0, 40), (48.0, 4)]
    log = make_log(micros(60, s24=uneven, s25=uneven), steps=steps(60, s24=7.0, s25=14.0))
    assert not said(rewind_log(log), OTHER)


def test_of_steps_that_weigh_alike_the_one_that_does_not_is_still_told(make_log):
    # given: at 24 a term of 100 besides
    uneven = {f"s{step}": [(80.0, 40), (48.0, 4)] for step in range(1, 61)}
    losses = {f"s{step}": 7.0 for step in range(1, 61)} | {"s24": 107.0}
    (notice,) = said(rewind_log(make_log(micros(60, **uneven), steps=steps(60, **losses))), OTHER)
    assert "at step 24: 107 where the rows have 2.90909." in notice


def test_the_reported_loss_of_the_attempt_that_counts_is_told(make_log):
    # given: step 24 was trained twice, the second time with a term besides; steps behind are of the first attempt
    rows = [*micros(30), (24, 7, 44.0, 44, {"attempt": 2})]
    records = [*steps(30, s24=50.0), {"step": 24, "attempt": 2, "loss": 9.0, "num_tokens": 44}]
    (notice,) = said(rewind_log(make_log(rows, steps=records)), OTHER)
    assert "at step 24: 9 where the rows have 1." in notice
