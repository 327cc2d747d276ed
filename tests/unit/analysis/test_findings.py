"""From a log to findings: the step shown, leading rows, notices, errors."""

import json
import math
import re

import numpy as np
import pytest

import trimtab
from trimtab.analysis.findings import rewind, rewind_log
from trimtab.errors import LogError, UsageError


def flat(num_steps, *, first=1, loss=1.0):
    """One row a step: (step, row, loss sum, tokens)."""
    return [(step, 1000 + step, loss * 10, 10) for step in range(first, first + num_steps)]


@pytest.fixture
def log_file(tmp_path):
    """A rewind.jsonl of one step with row 7."""
    path = tmp_path / "rewind.jsonl"
    batch = {"kind": "batch", "step": 1, "micro": 0, "rows": [7], "row_loss": [1.5], "row_tokens": [10]}
    path.write_text('{"kind": "header", "version": 1, "backend": "mlx"}\n' + json.dumps(batch) + "\n")
    return path


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


def test_a_norm_that_jumped_names_the_row_of_the_step_where_it_began_as_everywhere_else(make_log):
    # given: the planted row is in the first step of the jump, another leads the step of its peak
    records = flat(60)
    records[49:52] = [(50, 1050, 77.0, 10), (50, 7, 10.0, 10), (51, 1051, 10.0, 10), (52, 1052, 10.0, 10)]
    log = make_log(records, steps=norms(60, s50=20.0, s51=90.0, s52=20.0))
    # when
    findings = rewind_log(log)
    # then: finding, rows and headline are about one step
    notice = next(spike for spike in findings.spikes if spike.kind == "grad_norm")
    assert (notice.first, notice.step) == (50, 51)
    assert (notice.row, notice.row_share) == (1050, pytest.approx(77 / 87))
    assert (findings.step, findings.rows[0].row) == (50, 1050)


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
    records = [*flat(31), (31, 5, 0.0, 0)]
    records += [(step, 7, 10.0, 10, {"attempt": 2}) for step in (28, 29)]
    findings = rewind_log(make_log(records), notices=["about the choice"])
    assert findings.notices == (
        "about the choice",
        "steps before 21 were judged by the median rule: fewer than 20 steps lie behind them",
        "2 steps from 28 to 29 left out: a later attempt of the run went over them again",
        "steps 30 to 31 are of attempt 1: attempt 2 has not reached them",
        "1 row record without supervised tokens, in 1 step: it has no loss",
        "a notice of the reader",
    )


def test_an_attempt_that_has_only_just_begun_does_not_hide_the_spike_it_was_started_for(make_log):
    # given: 61 steps with a spike at 41, resumed at 40, which is all there is of it yet
    records = flat(61)
    records[40] = (41, 13, 240.0, 10)
    records += [(40, 1040, 10.0, 10, {"attempt": 2})]
    # when
    findings = rewind_log(make_log(records))
    # then
    assert [spike.step for spike in findings.spikes] == [41]
    assert findings.num_steps == 61
    assert "step 40 left out: a later attempt of the run went over it again" in findings.notices
    assert "steps 41 to 61 are of attempt 1: attempt 2 has not reached them" in findings.notices


def test_steps_of_several_older_attempts_are_named_together_and_one_alone_in_the_singular(make_log):
    first, second = flat(10), [(step, 1, 10.0, 10, {"attempt": 2}) for step in range(4, 9)]
    third = [(2, 1, 10.0, 10, {"attempt": 3})]
    notices = rewind_log(make_log([*first, *second, *third])).notices
    assert "steps 3 to 10 are of attempts 1 to 2: attempt 3 has not reached them" in notices
    notices = rewind_log(make_log([*flat(3), (2, 1, 10.0, 10, {"attempt": 2})])).notices
    assert "step 3 is of attempt 1: attempt 2 has not reached it" in notices


def test_rows_without_tokens_are_counted_and_steps_without_a_loss_too(make_log):
    notices = rewind_log(make_log([*flat(3), (3, 5, 0.0, 0), (4, 6, 0.0, 0)])).notices
    assert "2 row records without supervised tokens, in 2 steps: they have no loss" in notices
    assert "1 step without a loss: skipped, and in no baseline" in notices
    assert "all 3 measured steps were judged by the median rule: robust needs 20 steps behind it" in notices


def test_shares_that_cannot_be_are_said(make_log):
    notices = rewind_log(make_log([(1, 5, -10.0, 10), (1, 6, 4.0, 5)]), step=1).notices
    assert any("do not add up to more than 0" in notice for notice in notices)
    # given: as parts of 1.0 these would be 600 % and -500 %
    notices = rewind_log(make_log([(1, 5, -5.0, 10), (1, 6, 6.0, 5)]), step=1).notices
    assert "the losses of step 1 have different signs, and are no parts of a whole: its rows have no shares" in notices


def test_where_a_dead_run_died_again_is_said(make_log):
    records = flat(70)
    for step in [*range(31, 41), *range(44, 56), *range(58, 71)]:
        records[step - 1] = (step, step, math.nan, 10)
    findings = rewind_log(make_log(records))
    assert [(spike.first, spike.last) for spike in findings.spikes] == [(31, 70)]
    assert any(
        notice.endswith("was not finite again from steps 44, 58 on: all of that is one finding")
        for notice in findings.notices
    )


def test_one_of_a_kind_is_spoken_of_in_the_singular(make_log):
    notices = rewind_log(make_log(flat(1)), step=1).notices
    assert "the only measured step was judged by the median rule: robust needs 20 steps behind it" in notices
    with pytest.raises(LogError, match="step 2 is not in the log; it holds step 1 alone"):
        rewind_log(make_log(flat(1)), step=2)


@pytest.mark.parametrize("others", [[], [(41, 14, 0.0, 0)]])
def test_a_finding_of_the_only_row_with_a_loss_says_so(make_log, others):
    # given: one row a step, or beside it one that has no loss
    records = flat(60)
    records[40] = (41, 13, 240.0, 10)
    (spike,) = rewind_log(make_log(records + others)).spikes
    assert (spike.row, spike.row_share, spike.blame.reason) == (13, 1.0, "only_row")
    # then: beside another row with a loss, it does not
    (spike,) = rewind_log(make_log([*records, (41, 14, 0.0, 5)])).spikes
    assert (spike.row, spike.blame.reason) == (13, "share")


def test_a_loss_beyond_float32_is_not_finite_in_the_finding_and_in_the_table(make_log):
    # given: a log of another's, which holds float64
    records = [*flat(60), (41, 13, 1e301, 10)]
    # when
    findings = rewind_log(make_log(records, dtype=np.float64))
    # then
    (spike,) = findings.spikes
    assert (spike.kind, spike.severity, spike.row, spike.row_share) == ("nonfinite", "critical", 13, 0.0)
    first, second = findings.rows
    assert (first.row, first.loss, first.finite, first.share, first.excess) == (13, 1e300, False, 0.0, None)
    assert (second.finite, second.share, findings.num_nonfinite_rows) == (True, 1.0, 1)


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
    with pytest.raises(LogError, match=r"no training step could be read: a notice of the reader\."):
        rewind_log(make_log([]))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("step;loss\n" + "1;2,5\n" * 40, "40 lines with a loss that is no number were left out (lines 2, 3"),
        ("step,loss\n" + '1,"2,500"\n' * 40, "40 lines with a loss that is no number were left out (lines 2, 3"),
        ("step,loss\n" + "1.5,2.5\n" * 40, "40 lines without a whole number as step were left out (lines 2, 3"),
        ("step,loss\n1,2.5", "the last line (2) has no line end and was left out"),
        ('{"step": 1, "eval_loss": 2.5}\n', "it holds 1 evaluation and no loss of a training step"),
        ("step,train_loss,val_loss\n1,,2.5\n2,,2.5\n", "it holds 2 evaluations and no loss of a training step"),
        ("iter 1: loss 2.5, time 1ms", "the last line (1) has no line end and was left out"),
        ("step,loss\n", "no training step was recorded. The run may have stopped before its first step"),
    ],
)
def test_of_a_log_that_was_left_out_whole_the_error_says_why(tmp_path, content, said):
    path = tmp_path / "log"
    path.write_text(content)
    with pytest.raises(LogError, match=re.escape(said)):
        rewind(path)


def test_a_log_that_is_passed_over_in_a_folder_is_named(tmp_path):
    (tmp_path / "metrics.csv").write_text("step,loss\n" + "".join(f"{step},2.0\n" for step in range(1, 41)))
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
    found = rewind(tmp_path)
    assert found.num_steps == 1
    assert "the folder holds metrics.csv too, which was not read" in found.notices


def test_a_second_dataset_in_a_file_hides_no_run(tmp_path):
    # given: two runs on other data, the first with a spike
    def lines(fingerprint, *, spike_at=None):
        yield {"kind": "header", "version": 1, "backend": "x", "dataset_fingerprint": fingerprint}
        for step in range(1, 41):
            loss = 50.0 if step == spike_at else 2.0
            yield {"kind": "batch", "step": step, "micro": 0, "rows": [step], "row_loss": [loss], "row_tokens": [10]}

    path = tmp_path / "rewind.jsonl"
    both = [*lines("a" * 64, spike_at=30), *lines("b" * 64)]
    path.write_text("".join(json.dumps(line) + "\n" for line in both))
    # when
    found = rewind(path)
    # then
    assert found.num_steps == 80
    assert [(spike.step, spike.segment, spike.row) for spike in found.spikes] == [(30, 1, 30)]


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"rule": "mean"}, "'mean'"),
        ({"top": 0}, "top=0"),
        ({"top": True}, "top=True is a bool"),
        ({"top": 1.5}, "top=1.5 is a float"),
        ({"step": "5"}, "step='5' is a str"),
        ({"step": 5.0}, "step=5.0 is a float"),
        ({"step": False}, "step=False is a bool"),
        ({"step": np.bool_(True)}, "is a bool"),
        ({"top": None}, "top=None is a NoneType"),
    ],
)
def test_settings_that_make_no_sense_are_refused_before_anything_is_read(settings, found, tmp_path):
    with pytest.raises(UsageError, match=found):
        rewind(tmp_path / "absent", **settings)


def test_numpy_integers_are_whole_numbers_and_leave_as_python_ones(log_file):
    findings = rewind(log_file, step=np.int64(1), top=np.int32(3))
    assert type(findings.step) is int
    assert json.loads(json.dumps(findings.to_dict()))["step"] == 1


@pytest.mark.parametrize("step", [2**63, -(2**63) - 1, 10**400])
def test_a_step_that_no_log_can_hold_is_not_in_the_log(log_file, step):
    with pytest.raises(LogError, match="is not in the log"):
        rewind(log_file, step=step)


class ARun:
    def __init__(self, folder):
        self.folder = folder


def test_a_run_of_this_process_is_read_from_its_folder(log_file):
    assert rewind(ARun(log_file), step=1).rows[0].row == 7


def test_a_run_that_recorded_nothing_is_an_error_that_says_so():
    with pytest.raises(LogError, match="nothing was recorded"):
        rewind(ARun(None))


@pytest.mark.parametrize("name", [5, b"runs/a", ["runs/a"], object()])
def test_what_names_no_log_is_refused_by_what_it_is(name):
    with pytest.raises(UsageError, match=type(name).__name__):
        rewind(name)


def test_progress_tells_bytes_done_and_bytes_in_all(make_log):
    seen = []
    rewind_log(make_log(flat(30)), progress=lambda done, size: seen.append((done, size)))
    assert seen
    assert all(size == 100 for _, size in seen)


def test_rewind_reads_a_file_by_its_path(log_file):
    findings = trimtab.rewind(log_file, step=1)
    assert (findings.run_id, findings.source, findings.rows[0].row) == (None, str(log_file), 7)


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


def test_a_log_of_nothing_but_spikes_is_read_like_any_other(make_log):
    # given a loss that triples with every step, and one in which every other step is not finite
    growing = [(step, step, 10.0 * 3.0**step, 10) for step in range(1, 31)]
    dying = [(step, step, math.nan if step % 2 else 10.0, 10) for step in range(1, 31)]
    # when
    climb, flicker = (rewind_log(make_log(records)) for records in (growing, dying))
    # then: 3 steps must lie behind; under the median rule each is a finding, under robust neighbours are one
    assert climb.spikes[0].last == 30
    assert {step for spike in climb.spikes for step in range(spike.first, spike.last + 1)} == set(range(4, 31))
    assert [spike.step for spike in flicker.spikes] == list(range(1, 31, 2))
    assert climb.rows[0].row == climb.step
