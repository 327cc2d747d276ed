"""What several runs have in common."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.analysis.shared import find_shared
from trimtab.findings import Findings, Spike


def findings_of(run_id, *spikes):
    """`spikes`: (step, row), and where given a severity; or with `stretch`, from its first step to its last."""
    return Findings(
        run_id=run_id,
        source=f"path/{run_id}",
        rule="robust",
        num_steps=100,
        step=None,
        step_reason=None,
        spikes=tuple(
            spike
            if isinstance(spike, Spike)
            else Spike(
                step=spike[0],
                first=spike[0],
                last=spike[0],
                num_steps=1,
                kind="spike",
                signal="loss",
                severity=spike[2] if len(spike) > 2 else "warning",
                rule="robust",
                value=9.0,
                loss=9.0,
                baseline=1.0,
                score=20.0,
                row=spike[1],
                row_share=None if spike[1] is None else 0.9,
            )
            for spike in spikes
        ),
        spikes_left_out=0,
        rows=(),
        rows_left_out=0,
        notices=(),
    )


def stretch(first, last, peak, row=None, *, kind="spike", segment=None):
    (spike,) = findings_of("x", (peak, row)).spikes
    return dataclasses.replace(spike, first=first, last=last, kind=kind, segment=segment)


def shared_by(runs):
    return find_shared(runs, names=[findings.run_id or findings.source for findings in runs])


def told(*runs):
    return [(shared.step, shared.last, shared.rows, shared.runs, shared.rows_known) for shared in shared_by(runs)]


def test_the_same_row_at_the_same_step_is_shared():
    runs = [findings_of("a", (946, 17), (50, 1)), findings_of("b", (946, 17)), findings_of("c", (946, 99))]
    (shared,) = shared_by(runs)
    assert shared.to_dict() == {"step": 946, "rows": [17], "runs": ["a", "b", "c"]}


def test_the_same_step_at_other_rows_is_shared_without_rows():
    (shared,) = shared_by([findings_of("a", (946, 17)), findings_of("b", (946, 18))])
    assert (shared.step, shared.rows, shared.rows_known) == (946, (), True)


def test_the_same_step_of_logs_without_rows_is_shared_with_rows_unknown():
    (shared,) = shared_by([findings_of("a", (946, None)), findings_of("b", (946, None))])
    assert (shared.step, shared.rows, shared.rows_known) == (946, (), False)


def test_the_same_row_at_different_steps_is_shared_without_a_step():
    (shared,) = shared_by([findings_of("a", (946, 17)), findings_of("b", (12, 17))])
    assert (shared.step, shared.rows, shared.runs) == (None, (17,), ("a", "b"))


def test_what_most_runs_share_comes_first():
    runs = [findings_of("a", (5, 1), (9, 2)), findings_of("b", (5, 1), (9, 2)), findings_of("c", (9, 2))]
    assert [(shared.step, len(shared.runs)) for shared in shared_by(runs)] == [(9, 3), (5, 2)]


def test_a_notice_is_nothing_to_share():
    runs = [findings_of("a", (5, 1, "notice")), findings_of("b", (5, 1, "notice"))]
    assert shared_by(runs) == ()


@pytest.mark.parametrize("run_id", [None])
def test_a_run_without_an_id_goes_by_its_path(run_id):
    runs = [findings_of(run_id, (5, 1)), findings_of("b", (5, 1))]
    assert shared_by(runs)[0].runs == ("path/None", "b")


# Stretches that overlap.


def test_stretches_of_one_kind_that_overlap_share_the_steps_they_have_in_common_wherever_they_peak():
    # given: one is worse at 31, one at 30; and two that are not finite from different steps to one
    spikes = [findings_of("a", stretch(30, 31, 31)), findings_of("b", stretch(30, 31, 30))]
    tails = [findings_of(run, stretch(first, 60, first, kind="nonfinite")) for run, first in (("a", 30), ("b", 33))]
    # then
    assert told(*spikes) == [(30, 31, (), ("a", "b"), False)]
    assert told(*tails) == [(33, 60, (), ("a", "b"), False)]


def test_stretches_of_different_kinds_that_overlap_share_their_peak_or_nothing():
    shift = findings_of("a", stretch(30, 60, 30, kind="nonfinite"))
    assert told(shift, findings_of("b", (40, None))) == []
    assert told(shift, findings_of("b", (30, None))) == [(30, None, (), ("a", "b"), False)]


def test_stretches_that_peak_at_one_step_are_told_once_and_by_that_step():
    runs = [findings_of("a", stretch(28, 31, 30, 7)), findings_of("b", stretch(30, 33, 30, 7))]
    assert told(*runs) == [(30, None, (7,), ("a", "b"), True)]


def test_a_row_that_leads_stretches_which_overlap_is_told_with_them_and_not_again():
    runs = [findings_of("a", stretch(30, 31, 31, 7)), findings_of("b", stretch(30, 31, 30, 7))]
    assert told(*runs) == [(30, 31, (7,), ("a", "b"), True)]
    # and where it also leads elsewhere, in a run that is not among them
    assert told(*runs, findings_of("c", (90, 7)))[1] == (None, None, (7,), ("a", "b", "c"), True)


def test_a_row_that_leads_in_two_runs_at_one_step_and_in_a_third_elsewhere_is_told_for_all_three():
    runs = [findings_of("a", (946, 17)), findings_of("b", (946, 17)), findings_of("c", (946, 99), (12, 17))]
    assert told(*runs) == [
        (946, None, (17,), ("a", "b", "c"), True),
        (None, None, (17,), ("a", "b", "c"), True),
    ]


def test_a_chain_of_stretches_shares_what_each_pair_has_in_common_and_nothing_with_the_ends():
    runs = [
        findings_of("a", stretch(10, 20, 11)),
        findings_of("b", stretch(18, 40, 30)),
        findings_of("c", stretch(35, 50, 36)),
        findings_of("d", stretch(51, 60, 52)),
    ]
    assert told(*runs) == [(18, 20, (), ("a", "b"), False), (35, 40, (), ("b", "c"), False)]


def test_most_runs_that_overlap_come_first_beside_those_of_them_that_peak_at_one_step():
    runs = [
        findings_of(run, stretch(first, 99, first, kind="nonfinite")) for run, first in (("a", 5), ("b", 5), ("c", 50))
    ]
    assert told(*runs) == [(50, 99, (), ("a", "b", "c"), False), (5, None, (), ("a", "b"), False)]


def test_two_runs_of_one_file_that_overlap_share_nothing():
    assert told(findings_of("a", stretch(3, 9, 4, segment=1), stretch(5, 7, 6, segment=2))) == []


@given(
    runs=st.lists(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 5)), min_size=1, max_size=4), min_size=1, max_size=4
    )
)
def test_every_two_stretches_that_overlap_are_in_something_shared(runs):
    spans = [(str(run), first, first + length) for run, stretches in enumerate(runs) for first, length in stretches]
    found = [
        findings_of(str(run), *(stretch(first, first + length, first) for first, length in stretches))
        for run, stretches in enumerate(runs)
    ]
    shared = told(*found)
    for run, first, last in spans:
        for other, other_first, other_last in spans:
            if run != other and max(first, other_first) <= min(last, other_last):
                assert any({run, other} <= set(names) for _, _, _, names, _ in shared)
    # and nothing is shared that does not overlap
    for step, last, _, names, _ in shared:
        for name in names:
            assert any(run == name and begin <= step and (last or step) <= end for run, begin, end in spans)


def test_of_two_logs_of_one_run_the_one_that_knows_its_rows_speaks_for_it():
    runs = [findings_of("a", (946, None)), findings_of("twin", (946, 17)), findings_of("b", (946, 17))]
    assert find_shared(runs[:2], names=["a", "a"]) == ()
    (shared,) = find_shared(runs, names=["a", "a", "b"])
    assert (shared.rows, shared.runs) == ((17,), ("a", "b"))
