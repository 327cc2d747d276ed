"""From a log to findings: the step shown, leading rows, notices, errors."""

import json
import math

import pytest

import trimtab
from trimtab.analysis.findings import rewind, rewind_log
from trimtab.errors import LogError, UsageError


def flat(num_steps, *, first=1, loss=1.0):
    """One row a step: (step, row, loss sum, tokens)."""
    return [(step, 1000 + step, loss * 10, 10) for step in range(first, first + num_steps)]


def norms(num_steps, **jumps):
    return [{"step": step, "grad_norm": jumps.get(f"s{step}", 1.0)} for step in range(1, num_steps + 1)]


def test_the_worst_finding_is_shown_with_its_leading_row(make_log):
    # given
    records = flat(60)
    records[40] = (41, 13, 24_000.0, 3000)
    records += [(41, 10, 100.0, 100), (41, 11, 200.0, 200)]
    # when
    findings = rewind_log(make_log(records), rule="median")
    # then
    assert (findings.step, findings.step_reason, findings.num_steps) == (41, "worst", 60)
    assert [row.row for row in findings.rows] == [13, 11, 10]
    (spike,) = findings.spikes
    assert (spike.row, spike.row_share) == (13, pytest.approx(24_000 / 24_300))


def test_no_finding_shows_no_rows(make_log):
    findings = rewind_log(make_log(flat(30)))
    assert (findings.step, findings.step_reason, findings.spikes, findings.rows) == (None, None, (), ())
    assert json.loads(json.dumps(findings.to_dict(), allow_nan=False))["spikes"] == []


def test_a_step_asked_for_is_shown_whether_it_is_a_finding_or_not(make_log):
    findings = rewind_log(make_log(flat(30)), step=7)
    assert (findings.step, findings.step_reason, findings.rows[0].row) == (7, "asked", 1007)


def test_rows_are_cut_to_top_and_counted(make_log):
    records = [(1, row, float(row), 1) for row in range(1, 26)]
    findings = rewind_log(make_log(records), step=1, top=3)
    assert [row.row for row in findings.rows] == [25, 24, 23]
    assert findings.rows_left_out == 22


def test_the_rows_of_a_norm_that_jumped_just_before_the_loss_come_first(make_log):
    # given: as published: norm 12,952 -> 262,623 at one step, the loss jumps at the next
    records = flat(60)
    records[50] = (51, 1051, 77.0, 10)
    log = make_log(records, steps=norms(60, s50=20.0, s51=20.0))
    findings = rewind_log(log)
    assert (findings.step, findings.step_reason) == (50, "grad_norm_before")
    assert findings.spikes[0].step == 51
    assert findings.rows[0].row == 1050


@pytest.mark.parametrize(("norm_step", "expected"), [(41, (41, "grad_norm_before")), (40, (51, "worst"))])
def test_a_norm_moves_the_table_only_within_ten_steps(make_log, norm_step, expected):
    records = flat(60)
    records[50] = (51, 1051, 77.0, 10)
    findings = rewind_log(make_log(records, steps=norms(60, **{f"s{norm_step}": 20.0})))
    assert (findings.step, findings.step_reason) == expected


def test_a_norm_that_jumps_with_the_loss_or_after_it_moves_nothing(make_log):
    records = flat(60)
    records[50] = (51, 1051, 77.0, 10)
    findings = rewind_log(make_log(records, steps=norms(60, s51=20.0, s53=20.0)))
    assert (findings.step, findings.step_reason) == (51, "worst")


def test_without_a_loss_finding_the_first_norm_is_shown(make_log):
    findings = rewind_log(make_log(flat(60), steps=norms(60, s30=20.0, s50=90.0)))
    assert [spike.step for spike in findings.spikes] == [50, 30]
    assert (findings.step, findings.step_reason) == (30, "grad_norm_before")


def test_the_published_jump_of_a_norm_at_the_end_of_a_log_names_the_step_before_the_loss(make_log):
    # given: three steps are too few for a loss rule; the norm's own rule needs one
    records = [(11446, 1, 3.062589, 1), (11447, 2, 3.114286, 1), (11448, 3, 7.71234, 1)]
    steps = [
        {"step": step, "grad_norm": norm}
        for step, norm in ((11446, 12952.562), (11447, 262623.331), (11448, 254699.302))
    ]
    findings = rewind_log(make_log(records, steps=steps))
    assert (findings.step, findings.step_reason, findings.rows[0].row) == (11447, "grad_norm_before", 2)


def test_a_log_of_steps_alone_names_no_row_and_says_so(make_log):
    steps = [{"step": step, "loss": 1.0, "num_tokens": 10} for step in range(1, 30)]
    steps.append({"step": 30, "loss": 9.0, "num_tokens": 10})
    findings = rewind_log(make_log([], steps=steps))
    assert (findings.step, findings.rows, findings.spikes[0].row) == (30, (), None)
    assert any("no row can be named" in notice for notice in findings.notices)


def test_what_a_reader_should_know_is_said(make_log):
    records = [*flat(30), (30, 5, 0.0, 0), (31, 6, 0.0, 0)]
    records += [(29, 7, 10.0, 10, {"attempt": 2})]
    findings = rewind_log(make_log(records), notices=["about the choice"])
    assert findings.notices == (
        "about the choice",
        "steps before 21 were judged by the median rule: fewer than 20 steps lie behind them",
        "3 steps between 29 and 31 left out: a later attempt of the run went over them again",
        "a notice of the reader",
    )


def test_rows_without_tokens_are_counted_and_steps_without_a_loss_too(make_log):
    notices = rewind_log(make_log([*flat(3), (3, 5, 0.0, 0), (4, 6, 0.0, 0)])).notices
    assert "2 row records without supervised tokens, in 2 steps: they have no loss" in notices
    assert "1 step without a loss: skipped, and in no baseline" in notices
    assert "all 3 measured steps were judged by the median rule: robust needs 20 steps behind it" in notices


def test_shares_that_cannot_be_are_said(make_log):
    notices = rewind_log(make_log([(1, 5, -10.0, 10), (1, 6, 4.0, 5)]), step=1).notices
    assert any("do not add up to more than 0" in notice for notice in notices)


def test_the_number_of_rows_that_are_not_finite_counts_those_that_were_cut(make_log):
    records = [(1, row, math.nan, 5) for row in range(8)]
    findings = rewind_log(make_log(records), top=2)
    assert (findings.num_nonfinite_rows, len(findings.rows), findings.rows_left_out) == (8, 2, 6)


def test_leading_rows_are_looked_up_for_the_findings_that_are_listed(make_log):
    records = flat(200)
    for step in range(25, 195, 7):
        records[step] = (step + 1, 5000 + step, 500.0, 10)
    findings = rewind_log(make_log(records), rule="median", num_leading=3)
    assert [spike.row is not None for spike in findings.spikes] == [True] * 3 + [False] * (len(findings.spikes) - 3)


def test_an_unknown_step_is_an_error_that_names_the_ends(make_log):
    with pytest.raises(LogError, match="step 99 is not in the log; it holds steps 1 to 5"):
        rewind_log(make_log(flat(5)), step=99)


def test_a_log_without_steps_is_an_error(make_log):
    with pytest.raises(LogError, match="no training step was recorded"):
        rewind_log(make_log([]))


@pytest.mark.parametrize("settings", [{"rule": "mean"}, {"top": 0}, {"top": True}, {"top": 1.5}])
def test_settings_that_make_no_sense_are_refused_before_anything_is_read(settings, tmp_path):
    with pytest.raises(UsageError):
        rewind(tmp_path / "absent", **settings)


def test_progress_tells_bytes_done_and_bytes_in_all(make_log):
    seen = []
    rewind_log(make_log(flat(30)), progress=lambda done, size: seen.append((done, size)))
    assert seen
    assert all(size == 100 for _, size in seen)


def test_rewind_reads_a_file_by_its_path(tmp_path):
    # given
    path = tmp_path / "rewind.jsonl"
    batch = {"kind": "batch", "step": 1, "micro": 0, "rows": [7], "row_loss": [1.5], "row_tokens": [10]}
    path.write_text('{"kind": "header", "version": 1, "backend": "mlx"}\n' + json.dumps(batch) + "\n")
    # when
    findings = trimtab.rewind(path, step=1)
    # then
    assert (findings.run_id, findings.source, findings.rows[0].row) == (None, str(path), 7)


def test_rows_recorded_without_their_losses_leave_the_step_its_loss_and_blame_nobody(make_log):
    # given a host that says which rows were trained on, and what each step cost, but not what each row did
    records = [(step, 1000 + step, 0.0, 0) for step in range(1, 31)]
    steps = [{"step": step, "loss": 9.0 if step == 25 else 1.0, "num_tokens": 50} for step in range(1, 31)]
    # when
    findings = rewind_log(make_log(records, steps=steps))
    # then
    (spike,) = findings.spikes
    assert (spike.step, spike.loss, spike.row) == (25, 9.0, None)
    assert [(row.row, row.loss) for row in findings.rows] == [(1025, None)]
    assert not findings.row_losses_known


def test_rows_without_supervised_tokens_are_no_rows_without_losses(make_log):
    records = [*flat(30), (31, 5, 0.0, 0)]
    steps = [{"step": step, "loss": 1.0, "num_tokens": 10} for step in range(1, 31)] + [{"step": 31}]
    findings = rewind_log(make_log(records, steps=steps), step=31)
    assert findings.spikes == ()
    assert findings.row_losses_known
