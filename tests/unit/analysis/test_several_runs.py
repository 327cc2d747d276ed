"""Several runs in one log: each judged by itself, all listed together."""

import pytest

from trimtab.analysis.attempts import read_runs
from trimtab.analysis.findings import rewind_log
from trimtab.errors import LogError


def steps(losses, *, attempt=1, first=1, norms=None):
    """Step records of one attempt, one a loss."""
    records = [
        {"attempt": attempt, "step": first + index, "loss": loss, "num_tokens": -1} for index, loss in enumerate(losses)
    ]
    for record, norm in zip(records, norms or (), strict=False):
        record["grad_norm"] = norm
    return records


@pytest.fixture
def several(make_log):
    """Run 1 ends at 0.5; run 2 begins at 9 and spikes at step 26; run 3 is resumed at 20, and ends in NaN."""
    records = [
        *steps([2.0] * 20 + [0.5] * 20),
        *steps([9.0] * 25 + [30.0, 9.0], attempt=2),
        *steps([4.0] * 30, attempt=3),
        *steps([3.0] * 10 + [float("nan")] * 2, attempt=4, first=20),
    ]
    return make_log([], steps=records, restarts=(2, 3))


def test_each_run_is_read_by_itself_and_only_its_own_attempts_supersede(several):
    runs = read_runs(several)
    assert [run.series.num_steps for run in runs] == [40, 27, 31]
    assert [run.num_superseded for run in runs] == [0, 0, 11]
    assert runs[2].series.loss[18:20].tolist() == [4.0, 3.0]


def test_findings_of_all_runs_stand_in_one_list_with_the_run_they_are_of(several):
    # when
    found = rewind_log(several)
    # then: the first loss of run 2, 18 x the last of run 1, is none
    assert [(spike.segment, spike.step, spike.severity) for spike in found.spikes] == [
        (3, 30, "critical"),
        (2, 26, "warning"),
    ]
    assert found.num_steps == 98
    assert (found.step, found.step_reason) == (30, "worst")
    assert found.to_dict()["spikes"][0]["segment"] == 3


def test_what_is_said_of_one_run_names_it_and_what_holds_of_all_is_said_once(several):
    said = rewind_log(several).notices
    assert (
        "in each run: steps before 21 were judged by the median rule: fewer than 20 steps lie behind them" not in said
    )
    assert "run 3: 11 steps from 20 to 30 left out: a later attempt of the run went over them again" in said
    assert "run 3: step 30: the run resumed 10 steps earlier, at step 20" in said


def test_a_sentence_that_holds_of_every_run_stands_once(make_log):
    log = make_log([], steps=[*steps([2.0] * 30), *steps([3.0] * 30, attempt=2)], restarts=(2,))
    said = rewind_log(log).notices
    assert said[0] == "in each run: steps before 21 were judged by the median rule: fewer than 20 steps lie behind them"
    assert not any(notice.startswith("run ") for notice in said)


def test_a_step_of_several_runs_is_that_of_the_last_and_said(several):
    said = rewind_log(several, step=26).notices
    assert "step 26 stands in 3 of 3 runs: that of run 3 is shown" in said
    assert "step 26: loss 3, no gradient norm" in said
    assert not any("stands in" in notice for notice in rewind_log(several, step=35).notices)
    with pytest.raises(
        LogError, match=r"step 99 is not in the log; it holds steps 1 to 40, steps 1 to 27, steps 1 to 31 in 3"
    ):
        rewind_log(several, step=99)


def test_a_norm_of_one_run_does_not_announce_a_loss_of_the_next(make_log):
    # given: the norm jumps in run 1 at 25, the loss in run 2 at 27
    first = steps([2.0] * 30, norms=[1.0] * 24 + [50.0] + [1.0] * 5)
    second = steps([2.0] * 26 + [9.0], attempt=2, norms=[1.0] * 27)
    # when
    found = rewind_log(make_log([], steps=[*first, *second], restarts=(2,)))
    # then
    assert [(spike.segment, spike.step) for spike in found.spikes] == [(2, 27), (1, 25)]
    assert (found.step, found.step_reason) == (27, "worst")


def test_a_log_of_one_run_has_no_segments(make_log):
    found = rewind_log(make_log([], steps=steps([2.0] * 25 + [9.0])))
    assert [spike.segment for spike in found.spikes] == [None]
    assert not any("run 1" in notice for notice in found.notices)
