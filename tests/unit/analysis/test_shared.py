"""What several runs have in common."""

import pytest

from trimtab.analysis.shared import find_shared
from trimtab.findings import Findings, Spike


def findings_of(run_id, *spikes):
    """`spikes`: (step, row), and where given a severity."""
    return Findings(
        run_id=run_id,
        source=f"path/{run_id}",
        rule="robust",
        num_steps=100,
        step=None,
        step_reason=None,
        spikes=tuple(
            Spike(
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


def test_the_same_row_at_the_same_step_is_shared():
    runs = [findings_of("a", (946, 17), (50, 1)), findings_of("b", (946, 17)), findings_of("c", (946, 99))]
    (shared,) = find_shared(runs)
    assert shared.to_dict() == {"step": 946, "rows": [17], "runs": ["a", "b", "c"]}


def test_the_same_step_at_other_rows_is_shared_without_rows():
    (shared,) = find_shared([findings_of("a", (946, 17)), findings_of("b", (946, 18))])
    assert (shared.step, shared.rows, shared.rows_known) == (946, (), True)


def test_the_same_step_of_logs_without_rows_is_shared_with_rows_unknown():
    (shared,) = find_shared([findings_of("a", (946, None)), findings_of("b", (946, None))])
    assert (shared.step, shared.rows, shared.rows_known) == (946, (), False)


def test_the_same_row_at_different_steps_is_shared_without_a_step():
    (shared,) = find_shared([findings_of("a", (946, 17)), findings_of("b", (12, 17))])
    assert (shared.step, shared.rows, shared.runs) == (None, (17,), ("a", "b"))


def test_what_most_runs_share_comes_first():
    runs = [findings_of("a", (5, 1), (9, 2)), findings_of("b", (5, 1), (9, 2)), findings_of("c", (9, 2))]
    assert [(shared.step, len(shared.runs)) for shared in find_shared(runs)] == [(9, 3), (5, 2)]


def test_a_notice_is_nothing_to_share():
    runs = [findings_of("a", (5, 1, "notice")), findings_of("b", (5, 1, "notice"))]
    assert find_shared(runs) == ()


@pytest.mark.parametrize("run_id", [None])
def test_a_run_without_an_id_goes_by_its_path(run_id):
    runs = [findings_of(run_id, (5, 1)), findings_of("b", (5, 1))]
    assert find_shared(runs)[0].runs == ("path/None", "b")
