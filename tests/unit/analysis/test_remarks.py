"""What is said beside the findings."""

import dataclasses
import math

import pytest

from trimtab.analysis import remarks
from trimtab.analysis.attempts import read_runs
from trimtab.analysis.findings import rewind_log
from trimtab.findings import Spike
from trimtab.values import Event

NAN = math.nan
LEFT_OUT = {"keep": False, "micro": 1}
SPIKE = Spike(
    step=20, first=20, last=20, num_steps=1, kind="spike", signal="loss", severity="warning", rule="robust",
    value=9.0, loss=9.0, baseline=1.0, score=50.0,
)  # fmt: skip


def flat(num_steps):
    return [(step, 1000 + step, 10.0, 10) for step in range(1, num_steps + 1)]


def notices_of(log, word):
    return [notice for notice in rewind_log(log).notices if word in notice]


def test_steps_of_which_the_guard_left_something_out_are_named_though_they_are_no_findings(make_log):
    records = [*flat(30), (7, 5, 30.0, 10, LEFT_OUT), (9, 5, 30.0, 10, LEFT_OUT)]
    assert notices_of(make_log(records), "guard") == [
        "the guard left out micro-batches in 2 steps that are no findings of the loss: 7, 9. It judges micro-batches, "
        "rewind whole steps; --step 7 shows the rows"
    ]
    assert notices_of(make_log(flat(30)), "guard") == []


def test_findings_of_the_loss_that_the_guard_left_out_come_after_the_steps_that_are_none(make_log):
    records = [*flat(60), (51, 5, 900.0, 10, LEFT_OUT), (9, 5, 10.0, 10, LEFT_OUT)]
    quiet, loud = notices_of(make_log(records), "the guard left out micro-batches")
    assert quiet.startswith("the guard left out micro-batches in 1 step that is no finding of the loss: 9. ")
    assert loud == "the guard left out micro-batches in 1 step that is a finding of the loss: 51"


def test_ten_steps_are_named_and_the_rest_counted(make_log):
    (notice,) = notices_of(make_log([(step, 5, 10.0, 10, LEFT_OUT) for step in range(1, 14)]), "no findings")
    assert "13 steps that are no findings of the loss: 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 3 more. " in notice


def test_a_stretch_counts_as_a_finding_from_its_first_step_to_its_last(make_log):
    series = read_runs(make_log([(step, 5, 10.0, 10, LEFT_OUT) for step in (18, 19, 22, 23)]))[0].series
    quiet, loud = remarks.on_guard(series, [dataclasses.replace(SPIKE, first=19, last=22)])
    assert ": 18, 23. " in quiet
    assert loud.endswith(": 19, 22")
    (quiet,) = remarks.on_guard(series, [dataclasses.replace(SPIKE, first=19, last=22, severity="notice")])
    assert ": 18, 19, 22, 23. " in quiet


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([(1, 3, 10.0, 10), (1, 5, 30.0, 10, LEFT_OUT)], "row 5 of step 1 was"),
        ([(1, 3, 10.0, 10), (1, 4, 90.0, 10, LEFT_OUT), (1, 5, 30.0, 10, LEFT_OUT)], "rows 4, 5 of step 1 were"),
        ([(1, 4, 90.0, 10, LEFT_OUT), (1, 5, 30.0, 10, LEFT_OUT)], "every row of step 1 was"),
        ([(1, 3, 10.0, 10), (1, 3, 10.0, 10, LEFT_OUT), (1, 4, 1.0, 10)], "row 3 of step 1 was"),
    ],
)
def test_rows_of_the_listed_step_that_were_left_out_are_marked(make_log, records, expected):
    findings = rewind_log(make_log([*records, (2, 9, 10.0, 10)]), step=1)
    assert f"{expected} in a micro-batch that the guard left out of the update" in findings.notices
    kept = rewind_log(make_log([*records, (2, 9, 10.0, 10)]), step=2)
    assert not any("of the update" in notice for notice in kept.notices)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([7, 7, 7, 8, None], ["row 7 leads 3 of the 4 loss findings whose rows were looked up"]),
        ([7, 7], ["row 7 leads 2 of 2 loss findings"]),
        ([7, 7, 8], []),
        ([7], []),
        ([None, None], []),
    ],
)
def test_a_row_that_leads_several_findings_is_said(rows, expected):
    assert remarks.on_leaders([dataclasses.replace(SPIKE, row=row) for row in rows]) == expected


def test_a_row_that_leads_notices_alone_is_not_said():
    assert remarks.on_leaders([dataclasses.replace(SPIKE, row=7, severity="notice")] * 4) == []


@pytest.mark.parametrize(
    ("kinds", "has_ended"),
    [
        ([], False),
        (["evaluation"], False),
        (["end"], True),
        (["end", "evaluation"], True),
        (["end", "resume"], False),
        (["resume"], False),
        (["resume", "checkpoint", "end"], True),
    ],
)
def test_a_run_has_ended_where_its_last_attempt_says_so(make_log, kinds, has_ended):
    reading = read_runs(make_log([*flat(9), (4, 1, 1.0, 1, {"attempt": 2})]))[0]
    events = [Event(kind, step=0, time=float(i)) for i, kind in enumerate(kinds)]
    said = ["the run has not ended: it is still going on, or was killed after step 4"]
    assert remarks.on_end(reading, events=events) == ([] if has_ended else said)


@pytest.mark.parametrize(
    ("kinds", "is_told"),
    [
        (["converted"], True),
        (["evaluation", "converted"], True),
        (["resume", "converted"], True),
        (["end", "converted"], False),
        (["converted", "resume", "end"], False),
    ],
)
def test_of_a_run_that_was_converted_nothing_tells_the_end_unless_its_source_did(make_log, kinds, is_told):
    reading = read_runs(make_log(flat(9)))[0]
    events = [Event(kind, step=0, time=float(i)) for i, kind in enumerate(kinds)]
    said = ["this run was converted from the log of another tool, and nothing tells whether it has ended"]
    assert remarks.on_end(reading, events=events) == (said if is_told else [])


def test_a_run_that_was_converted_and_goes_on_has_not_ended(make_log):
    reading = read_runs(make_log(flat(9)))[0]
    events = [Event("end", 0, 0.0), Event("converted", 0, 1.0), Event("resume", 9, 2.0)]
    assert remarks.on_end(reading, events=events) == [
        "the run has not ended: it is still going on, or was killed after step 9"
    ]


def test_nothing_is_said_of_the_end_of_a_log_of_another_tool(make_log):
    assert notices_of(make_log(flat(9)), "ended") == []


# Losses of exactly 0 with a norm that is not finite.


def records_of(*values, first=1):
    """Step records from (loss, norm) pairs, one a step."""
    return [
        {"step": first + at, "loss": loss, "grad_norm": norm, "num_tokens": -1}
        for at, (loss, norm) in enumerate(values)
    ]


def test_a_loss_of_0_with_a_norm_that_is_not_finite_is_an_artefact_and_no_improvement(make_log):
    # given: a known case, a loss that is still a number, then zeros
    log = make_log([], steps=records_of((0.2051, NAN), (0.0, NAN), (0.0, NAN)))
    # when
    found = rewind_log(log)
    # then: one finding from the first line on
    assert [(spike.severity, spike.kind, spike.signal, spike.first, spike.last) for spike in found.spikes] == [
        ("critical", "nonfinite", "grad_norm", 1, 3)
    ]
    assert notices_of(log, "artefact") == [
        "loss is exactly 0.0 with a gradient norm that is not finite from step 2 on, 2 times: a logging artefact, no "
        "improvement, and in no baseline; no step is finite"
    ]


def test_the_zeros_of_an_artefact_are_in_no_baseline_and_the_last_finite_step_is_named(make_log):
    # given: 30 losses of 2, 200 zeros, then losses of 2 again
    sound, zeros = [(2.0, 1.0)] * 30, [(0.0, NAN)] * 200
    log = make_log([], steps=records_of(*sound, *zeros, *sound))
    # then
    assert [(spike.signal, spike.first, spike.last) for spike in rewind_log(log).spikes] == [("grad_norm", 31, 230)]
    (said,) = notices_of(log, "artefact")
    assert said.endswith("; last finite step 260")


def test_a_loss_of_0_with_a_finite_norm_or_none_is_a_loss(make_log):
    log = make_log([], steps=[*records_of((1.0, 1.0), (0.0, 0.0)), {"step": 3, "loss": 0.0, "num_tokens": -1}])
    assert notices_of(log, "artefact") == []


# What happened before a finding.


def flat_with(loss, *, at, **more):
    return [
        {"step": step, "loss": loss if step == at else 2.0, "num_tokens": -1, **more}
        for step in range(at - 150, at + 1)
    ]


def test_a_resume_shortly_before_a_finding_is_said(make_log):
    log = make_log(
        [], steps=flat_with(NAN, at=22_900), events=[Event("resume", 22_800, 0.0), Event("resume", 22_750, 0.0)]
    )
    assert notices_of(log, "resumed") == ["step 22900: the run resumed 100 steps earlier, at step 22800"]


@pytest.mark.parametrize(("resumed", "said"), [(22_799, []), (22_901, []), (22_899, ["1 step earlier, at step 22899"])])
def test_a_resume_long_before_a_finding_or_after_it_is_not_its_context(make_log, resumed, said):
    log = make_log([], steps=flat_with(NAN, at=22_900), events=[Event("resume", resumed, 0.0)])
    assert [notice.partition("resumed ")[2] for notice in notices_of(log, "resumed")] == said


def test_where_no_event_tells_the_first_step_of_an_attempt_does(make_log):
    records = [*flat_with(2.0, at=200), {"step": 201, "loss": NAN, "num_tokens": -1, "attempt": 2}]
    assert notices_of(make_log([], steps=records), "resumed") == ["step 201: the run resumed at that very step"]


def test_a_log_without_rows_says_so_and_what_it_holds_of_the_step_asked_for(make_log):
    log = make_log([], steps=records_of((2.0, 1.5), (3.0, NAN)))
    assert "this log holds no rows, only steps: no row can be named. Attach Trimtab to a run to record them" in (
        rewind_log(log).notices
    )
    assert "step 1: loss 2, gradient norm 1.5" in rewind_log(log, step=1).notices


# Several ranks.


def of_ranks(**ends):
    """Step records of one attempt: `r0=9` has rank 0 end at step 9."""
    return [
        {"rank": int(rank[1:]), "step": step, "loss": 1.0, "num_tokens": 10}
        for rank, last in ends.items()
        for step in range(1, last + 1)
    ]


def ends(*ranks, at=1.0):
    return [Event("end", 0, at + rank, ranks=(rank,)) for rank in ranks]


def test_of_ranks_that_end_at_one_step_nothing_is_said(make_log):
    log = make_log(flat(9), steps=of_ranks(r0=9, r1=9))
    assert notices_of(log, "rank") == []


@pytest.mark.parametrize(
    ("last", "expected"),
    [
        (8, "of rank 1 nothing is recorded after step 8: step 9 is judged by the rows of the other ranks"),
        (4, "of rank 1 nothing is recorded after step 4: steps 5 to 9 are judged by the rows of the other ranks"),
    ],
)
def test_steps_that_a_rank_is_missing_from_are_named(make_log, last, expected):
    assert notices_of(make_log(flat(9), steps=of_ranks(r0=9, r1=last)), "rank") == [expected]


def test_of_many_ranks_that_end_early_some_are_named(make_log):
    log = make_log(flat(9), steps=of_ranks(r0=9, **{f"r{rank}": 5 for rank in range(1, 9)}))
    said = notices_of(log, "rank")
    assert len(said) == remarks.MAX_NAMED + 1
    assert said[-1] == "of 3 ranks more the last steps are missing likewise"


def test_a_rank_that_an_attempt_lost_altogether_is_named(make_log):
    again = [{**record, "attempt": 2} for record in of_ranks(r0=9)]
    log = make_log([*flat(9), (9, 5, 10.0, 10, {"attempt": 2})], steps=[*of_ranks(r0=9, r1=9), *again])
    assert notices_of(log, "attempt 2 holds") == ["attempt 2 holds no step of rank 1, of which an earlier attempt does"]


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        (ends(0, 1), []),
        ([Event("end", 0, 1.0, ranks=(0, 1))], []),
        ([Event("end", 0, 1.0)], []),
        (ends(0), ["rank 1 has not ended: it is still going on, or was killed after step 8"]),
        (ends(1), ["rank 0 has not ended: it is still going on, or was killed after step 9"]),
        ([], ["the run has not ended: it is still going on, or was killed after step 9"]),
        # an end of an attempt before says nothing of this one
        (
            [*ends(0, 1), Event("resume", 0, 5.0, ranks=(0,)), *ends(0, at=6.0)],
            ["rank 1 has not ended: it is still going on, or was killed after step 8"],
        ),
    ],
)
def test_a_run_has_ended_where_each_of_its_ranks_has(make_log, events, expected):
    reading = read_runs(make_log(flat(9), steps=of_ranks(r0=9, r1=8)))[0]
    assert remarks.on_end(reading, events=events) == expected


def test_of_several_ranks_that_have_not_ended_the_numbers_are_said(make_log):
    reading = read_runs(make_log(flat(9), steps=of_ranks(r0=9, r1=8, r2=9)))[0]
    assert remarks.on_end(reading, events=ends(1)) == [
        "ranks 0, 2 have not ended: they are still going on, or were killed"
    ]
