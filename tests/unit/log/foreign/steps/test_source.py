"""A log at step level as a source."""

import numpy as np
import pytest

from trimtab.errors import LogError
from trimtab.log.foreign.steps.records import StepRecords
from trimtab.log.foreign.steps.source import Metrics, StepSource
from trimtab.log.reader import Log
from trimtab.values import STEP_REASONS, Event


@pytest.fixture
def source(tmp_path):
    """A source of given steps; entry i stands in line i + 1."""

    def make(steps, **columns):
        path = tmp_path / "log"
        path.write_text("x" * 10)
        given = {"loss": [float(step) for step in steps], **columns}
        records = StepRecords.of(steps, place=np.arange(2, len(steps) + 2), **given)
        return StepSource(
            path,
            format_name="metrics_csv",
            read=lambda _: Metrics(records, [Event("evaluation", 3, 0.0)], ["said by the format"]),
        )

    return make


def test_steps_come_out_attempt_by_attempt_without_rows(source):
    log = Log(source([1, 2, 3, 2, 3, 4, 1, 2]))
    columns = log.step_columns()
    assert columns.attempt.tolist() == [1, 1, 1, 2, 2, 2, 3, 3]
    assert columns.step.tolist() == [1, 2, 3, 2, 3, 4, 1, 2]
    assert (log.restarts(), log.has_rows, list(log.row_blocks())) == ((3,), False, [])
    assert log.id_columns().row.size == 0
    assert log.event_list() == [Event("evaluation", 3, 0.0)]


def test_runs_attempts_and_doubles_are_said_with_their_lines(source):
    said = source([1, 2, 3, 2, 3, 4, 1, 2, 2, 2]).notices()
    assert said == [
        "2 runs in one file, each judged by itself: steps 1 to 4 from line 2 on; steps 1 to 2 from line 8 on",
        "the run was resumed at step 2 (line 5): the steps go back there",
        "2 losses were left out whose step stands again, the first step 2 again in line 10: the last counts",
        "said by the format",
    ]
    assert source([5, 5, 6]).notices()[0] == "a step stands twice, step 5 again in line 3: the last counts"
    assert source([1, 2]).notices() == ["said by the format"]


def test_many_runs_are_not_all_named(source):
    said = source([1, 2] * 9).notices()[0]
    assert said.count("from line") == 5
    assert said.endswith("; and 4 more")


def test_a_step_without_a_loss_has_no_tokens_and_one_whose_tokens_were_counted_keeps_them(source):
    columns = source(
        [1, 2, 3], loss=[2.0, 3.0, 4.0], has_loss=[True, False, True], num_tokens=[-1, 50, 60]
    ).step_columns()
    assert columns.num_tokens.tolist() == [-1, 0, 60]
    assert np.isnan(columns.loss).tolist() == [False, True, False]


def test_tokens_that_nobody_counted_are_missing_in_the_table_and_not_none(source):
    table = Log(source([1, 2], num_tokens=[-1, 60])).steps()
    assert table.numpy()["num_tokens"].tolist() == [-1, 60]
    assert table.native.project("num_tokens").fetchall() == [(None,), (60,)]


def test_what_became_of_a_step_is_told_where_the_log_tells_it(source):
    log = Log(source([1, 2, 3], reason=[0, STEP_REASONS.index("scaler_overflow"), len(STEP_REASONS)]))
    table = log.steps().numpy()
    assert table["stepped"].tolist() == [1, 0, -1]
    assert table["reason"].tolist() == ["stepped", "scaler_overflow", ""]


def test_a_file_that_is_gone_is_an_error_that_names_it(tmp_path):
    with pytest.raises(LogError, match=r"gone: cannot be read \(No such file"):
        StepSource(tmp_path / "gone", format_name="metrics_csv", read=lambda _: None)
    path = tmp_path / "log"
    path.write_text("x")

    def read(_):
        raise OSError(5, "Input/output error")

    with pytest.raises(LogError, match=r"log: reading failed \(Input/output error\)\. Copy the file"):
        StepSource(path, format_name="metrics_csv", read=read).step_columns()
