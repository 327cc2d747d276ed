"""Which rows are named as the cause of a finding: the headline and the drop list say the same of every row."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.analysis.drop_list import drop_list
from trimtab.analysis.findings import rewind_log
from trimtab.log.columns import IdColumns
from trimtab.report.headline import headline
from trimtab.values import RunHeader

INSPECT_OR_DROP = "Inspect or drop this row, then retrain."


def quiet(num_steps):
    """Two rows a step, alike: (step, row, loss sum, tokens)."""
    return [(step, row * 1000 + step, 10.0, 10) for step in range(1, num_steps + 1) for row in (1, 2)]


def with_step(step, *rows, num_steps=60):
    """A quiet log with other rows at one step, each as (row, loss sum, tokens)."""
    return [record for record in quiet(num_steps) if record[0] != step] + [(step, *row) for row in rows]


def norms(num_steps=60, **jumps):
    return [{"step": step, "grad_norm": jumps.get(f"s{step}", 1.0)} for step in range(1, num_steps + 1)]


def dropped(findings):
    return drop_list(findings, header=RunHeader(run_id="r", backend="test"), ids=IdColumns.empty())["rows"]


@pytest.mark.parametrize(
    ("rows", "named", "reason"),
    [
        ([(5, 500.0, 10), (6, 500.0, 10)], (5,), "share"),
        ([(5, 700.0, 10), (6, 300.0, 10)], (5,), "share"),
        ([(5, 499.0, 10), (6, 498.0, 10), (7, 3.0, 10)], (), "spread"),
        ([(5, 500.0, 10)], (), "only_row"),
        ([(5, 500.0, 10), (6, 0.0, 0)], (), "only_row"),
        ([(5, 900.0, 10), (6, -400.0, 10)], (), "no_shares"),
        # not finite: the only row, one of two, several that are fewer than half, and half
        ([(5, math.nan, 10)], (5,), "nonfinite"),
        ([(5, 1.0, 10), (6, math.inf, 10)], (6,), "nonfinite"),
        ([(5, math.nan, 1), (6, math.nan, 1), *((row, 1.0, 1) for row in (7, 8, 9))], (5, 6), "nonfinite"),
        ([(5, math.nan, 1), (6, math.nan, 1), (7, 1.0, 1), (8, 1.0, 1)], (), "mostly_nonfinite"),
        ([(5, math.nan, 1), (6, math.nan, 1), (7, 1.0, 1), (8, 0.0, 0), (9, 0.0, 0)], (), "mostly_nonfinite"),
        ([(row, math.nan, 1) for row in range(8)], (), "mostly_nonfinite"),
    ],
)
def test_a_row_is_named_where_the_others_of_its_step_are_unlike_it(make_log, rows, named, reason):
    # when
    findings = rewind_log(make_log(with_step(41, *rows)))
    # then
    (spike,) = findings.spikes
    assert (findings.blame.step, findings.blame.rows, findings.blame.reason) == (41, named, reason)
    assert spike.blame == findings.blame
    assert dropped(findings) == list(named)
    assert (INSPECT_OR_DROP in headline(findings)) == findings.first_row_is_cause == bool(named)


def test_a_norm_that_jumps_alone_accuses_nobody(make_log):
    # given: the row carries 69 % of a step whose loss is not out of line
    log = make_log(with_step(41, (5, 13.8, 10), (6, 6.2, 10)), steps=norms(s41=20.0))
    # when
    findings = rewind_log(log)
    # then
    assert (findings.step, findings.step_reason, findings.blame.reason) == (41, "grad_norm_before", "suspect")
    assert findings.rows[0].share == pytest.approx(0.69)
    assert headline(findings) == [
        "The gradient norm jumped at step 41, but no loss is out of line: its rows are only suspects.",
        "row 5: 69% of step 41's loss, 10 tokens",
    ]
    assert dropped(findings) == []


def test_a_norm_that_jumps_before_the_loss_names_its_row_beside_the_row_of_the_loss(make_log):
    # given
    records = with_step(41, (5, 13.8, 10), (6, 6.2, 10))
    records = [record for record in records if record[0] != 45] + [(45, 7, 900.0, 10), (45, 8, 9.0, 10)]
    log = make_log(records, steps=norms(s41=20.0))
    # when
    findings = rewind_log(log)
    # then
    assert (findings.step, findings.step_reason) == (41, "grad_norm_before")
    assert headline(findings)[1:] == ["row 5: 69% of step 41's loss, 10 tokens", INSPECT_OR_DROP]
    assert dropped(findings) == [7, 5]
    # then: whichever step is asked for
    assert dropped(rewind_log(log, step=3)) == [7, 5]
    assert headline(rewind_log(log, step=41))[-1] == INSPECT_OR_DROP


def test_a_norm_that_climbs_further_after_the_loss_still_names_the_row_it_began_with(make_log):
    # given: the norm is out of line from 44 to 46, most at 46; the loss at 45
    records = with_step(44, (5, 13.8, 10), (6, 6.2, 10))
    records = [record for record in records if record[0] != 45] + [(45, 7, 900.0, 10), (45, 8, 9.0, 10)]
    findings = rewind_log(make_log(records, steps=norms(s44=20.0, s45=30.0, s46=40.0)), step=1)
    # then
    norm = findings.spikes[1]
    assert (norm.first, norm.step, norm.blame.step) == (44, 46, 44)
    assert dropped(findings) == [7, 5]


@pytest.mark.parametrize(("loss_step", "expected"), [(51, [7, 5]), (52, [7]), (40, [7])])
def test_a_norm_names_a_row_only_if_the_loss_follows_within_ten_steps(make_log, loss_step, expected):
    records = with_step(41, (5, 13.8, 10), (6, 6.2, 10))
    records = [record for record in records if record[0] != loss_step]
    records += [(loss_step, 7, 900.0, 10), (loss_step, 8, 9.0, 10)]
    findings = rewind_log(make_log(records, steps=norms(s41=20.0)))
    assert dropped(findings) == expected


def test_a_norm_that_is_not_finite_is_no_mere_suspicion(make_log):
    findings = rewind_log(make_log(with_step(41, (5, 13.8, 10), (6, 6.2, 10)), steps=norms(s41=math.nan)))
    assert findings.spikes[0].severity == "critical"
    assert dropped(findings) == [5]


def test_a_step_that_is_no_finding_names_nobody(make_log):
    findings = rewind_log(make_log(with_step(41, (5, 11.0, 10), (6, 9.0, 10))), step=41)
    assert (findings.spikes, findings.blame.rows, findings.blame.reason) == ((), (), "suspect")
    assert not findings.first_row_is_cause


loss_sums = st.sampled_from([0.0, 1.0, 30.0, 900.0, math.nan, math.inf])
jumps = st.dictionaries(st.integers(31, 45), st.lists(loss_sums, min_size=1, max_size=5), max_size=4)


@given(jumps=jumps, norm_steps=st.sets(st.integers(30, 45), max_size=3), asked=st.none() | st.integers(28, 46))
def test_what_the_headline_says_to_drop_is_in_the_drop_list(make_log, jumps, norm_steps, asked):
    records = [record for record in quiet(46) if record[0] not in jumps]
    records += [(step, 9000 + 10 * step + place, x, 10) for step, xs in jumps.items() for place, x in enumerate(xs)]
    steps = norms(46, **{f"s{step}": 20.0 for step in norm_steps})
    findings = rewind_log(make_log(records, steps=steps), step=asked)
    said = INSPECT_OR_DROP in headline(findings)
    assert said == findings.first_row_is_cause
    assert not said or findings.rows[0].row in dropped(findings)
