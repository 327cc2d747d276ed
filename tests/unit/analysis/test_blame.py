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


def says_inspect(findings):
    return any(line.startswith("Inspect") for line in headline(findings))


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
        # not finite: the only row, one of two, several that are fewer than half, and half or all of a step between
        # finite ones, which a broken model does not leave behind
        ([(5, math.nan, 10)], (5,), "nonfinite"),
        ([(5, 1.0, 10), (6, math.inf, 10)], (6,), "nonfinite"),
        ([(5, math.nan, 1), (6, math.nan, 1), *((row, 1.0, 1) for row in (7, 8, 9))], (5, 6), "nonfinite"),
        ([(5, math.nan, 1), (6, math.nan, 1), (7, 1.0, 1), (8, 1.0, 1)], (5, 6), "nonfinite"),
        ([(row, math.nan, 1) for row in range(8)], tuple(range(8)), "nonfinite"),
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
    assert says_inspect(findings) == findings.first_row_is_cause == bool(named)


@pytest.mark.parametrize(
    ("rows", "named", "reason"),
    [
        ([(5, math.nan, 1), (6, math.nan, 1), *((row, 1.0, 1) for row in (7, 8, 9))], (5, 6), "nonfinite"),
        ([(5, math.nan, 1), (6, math.nan, 1), (7, 1.0, 1), (8, 1.0, 1)], (), "mostly_nonfinite"),
        ([(5, math.nan, 1), (6, math.nan, 1), (7, 1.0, 1), (8, 0.0, 0), (9, 0.0, 0)], (), "mostly_nonfinite"),
        ([(row, math.nan, 1) for row in range(8)], (), "mostly_nonfinite"),
    ],
)
def test_where_the_run_is_not_finite_again_half_a_step_is_the_model(make_log, rows, named, reason):
    # given: what comes after step 41 is not finite either
    records = with_step(41, *rows)
    records = [record if record[0] <= 41 else (*record[:2], math.nan, 10) for record in records]
    # when
    findings = rewind_log(make_log(records))
    # then
    assert (findings.blame.step, findings.blame.rows, findings.blame.reason) == (41, named, reason)
    assert dropped(findings) == list(named)
    assert says_inspect(findings) == bool(named)


def test_a_run_that_is_finite_again_because_it_was_resumed_says_nothing_for_the_model(make_log):
    # given: broken from 41 on, and resumed at 51 with weights that were saved before
    broken = [(41, 5, math.nan, 10), (41, 6, math.nan, 10)]
    records = [record for record in quiet(60) if record[0] != 41]
    records = [(*r[:2], math.nan, 10) if 41 < r[0] <= 50 else r for r in records]
    records = [(*r, {"attempt": 2}) if r[0] > 50 else r for r in [*records, *broken]]
    # when
    findings = rewind_log(make_log(records), step=41)
    # then
    assert findings.blame.reason == "mostly_nonfinite"


def test_of_the_last_step_it_tells_whether_a_guard_left_its_rows_out(make_log):
    broken = [(60, 5, math.nan, 10), (60, 6, math.nan, 10)]
    taken = rewind_log(make_log([*quiet(59), *broken]))
    left_out = rewind_log(make_log([*quiet(59), *((*row, {"keep": False}) for row in broken)]))
    assert (taken.blame.reason, left_out.blame.reason) == ("mostly_nonfinite", "nonfinite")
    # then: a guard that leaves out everything to the end says nothing for the model
    two = [(step, row, math.nan, 10, {"keep": False}) for step in (59, 60) for row in (5, 6)]
    for asked in (None, 60):
        assert rewind_log(make_log([*quiet(58), *two]), step=asked).blame.reason == "mostly_nonfinite"


def packed(step, *rows):
    """Three rows of a sequence that is not finite, beside one row that is."""
    return [*((step, row, math.nan, 10) for row in rows), (step, 9999, 10.0, 10)]


def test_a_row_that_makes_its_neighbours_not_finite_is_named_and_they_are_not(make_log):
    # given: row 7 is never finite; 6 and 8 are in other epochs, packed with others
    elsewhere = [(30, 6, 10.0, 10), (55, 8, 10.0, 10), (41, 8, 0.0, 0)]
    log = make_log([*with_step(41, num_steps=60), *packed(41, 6, 7, 8), *elsewhere])
    # when
    findings = rewind_log(log)
    # then: table, headline, finding and drop list say the same
    assert (findings.blame.rows, findings.blame.reason) == ((7,), "never_finite")
    assert [row.row for row in findings.rows] == [7, 6, 8, 9999]
    assert findings.spikes[0].row == 7
    assert headline(findings)[-2:] == [
        INSPECT_OR_DROP,
        "The 2 other such rows were finite in another step: packed into one sequence, a NaN goes through all of its "
        "rows.",
    ]
    assert dropped(findings) == [7]


@pytest.mark.parametrize(
    "elsewhere",
    [
        [(30, 6, 0.0, 0)],  # without tokens it says nothing
        [(30, 6, math.inf, 10)],
        [(30, 6, 10.0, 10, {"attempt": 1}), *((s, 1, 10.0, 10, {"attempt": 2}) for s in range(20, 61))],
        [(30, row, 10.0, 10) for row in (6, 7, 8)],  # all of them: then nobody is left
    ],
    ids=["no tokens", "not finite", "superseded", "all"],
)
def test_of_rows_that_nothing_tells_apart_all_are_named(make_log, elsewhere):
    attempt = {"attempt": 2} if len(elsewhere) > 4 else {}
    broken = [(*record, attempt) for record in packed(41, 6, 7, 8)]
    findings = rewind_log(make_log([*with_step(41), *elsewhere, *broken]), step=41)
    assert (findings.blame.rows, findings.blame.reason) == ((6, 7, 8), "nonfinite")
    assert [row.row for row in findings.rows][:3] == [6, 7, 8]
    assert dropped(findings) == [6, 7, 8]


def test_of_rows_that_nothing_tells_apart_the_first_leads_as_the_guard_says_and_none_is_dropped_as_a_fact(make_log):
    # given a packed sequence of an only epoch, whose first row that is not finite is the one with the NaN
    broken = [(*record, {"rank": 1}) for record in packed(41, 23, 0, 1, 4)]
    # when
    findings = rewind_log(make_log([*with_step(41), *broken]))
    # then
    assert findings.spikes[0].row == 23
    assert findings.blame.rows == (23, 0, 1, 4)
    assert headline(findings)[-1] == (
        "Inspect each of rows 23, 0, 1, 4 before you drop any: in a packed sequence a NaN goes through all rows behind "
        "the one that carries it."
    )


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
    said = says_inspect(findings)
    assert said == findings.first_row_is_cause
    assert not said or findings.rows[0].row in dropped(findings)
