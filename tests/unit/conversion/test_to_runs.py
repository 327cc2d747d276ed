"""Logs of other tools become run folders of our own."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import trimtab.conversion.to_runs as module
from trimtab.conversion.to_runs import copy_to_runs
from trimtab.errors import LogError
from trimtab.log.foreign.steps.records import StepRecords
from trimtab.log.foreign.steps.source import Metrics, StepSource
from trimtab.log.reader import open_log
from trimtab.values import STEP_REASONS, Event


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def steps(tmp_path):
    """A log at step level of these steps, whose losses are a tenth of the step."""

    def make(*numbers, events=(), **columns):
        path = tmp_path / "metrics"
        path.write_bytes(b"x" * 10)
        loss = columns.pop("loss", [number / 10 for number in numbers])
        made = StepRecords.of(list(numbers), place=range(1, len(numbers) + 1), loss=loss, **columns)
        return StepSource(
            path,
            format_name="metrics_csv",
            read=lambda progress: Metrics(made, list(events), ["a notice"]),
            backend="nanogpt",
        )

    return make


@pytest.fixture
def rewind(tmp_path):
    """A rewind.jsonl of lines."""

    def make(*lines):
        path = tmp_path / "rewind.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return open_log(path)

    return make


def batch(step, rows, losses, tokens, micro=0):
    return {"kind": "batch", "step": step, "micro": micro, "rows": rows, "row_loss": losses, "row_tokens": tokens}


HEADER = {"kind": "header", "version": 1, "backend": "torch", "n_rows": 7, "created": 12.5, "dataset_fingerprint": "f"}


def test_the_steps_of_a_log_without_rows_are_kept_to_the_last_bit(steps, out):
    # given
    source = steps(
        1, 2, 3, 4,
        loss=[0.1, math.nan, math.inf, 1e300],
        has_loss=[True, True, True, True],
        grad_norm=[1.0, math.nan, 0.5, 0.0],
        has_grad_norm=[True, True, True, False],
        lr=[1e-3, 1e-3, math.nan, 0.1],
        loss_scale=[65536.0, math.nan, 1.0, 1.0],
        num_tokens=[100, -1, 5, -1],
        reason=[0, STEP_REASONS.index("scaler_overflow"), len(STEP_REASONS), 0],
    )  # fmt: skip
    # when
    written = copy_to_runs(source, out, version="9")
    # then
    log, expected = open_log(written.paths[0]), source.step_columns()
    found = log.step_columns()
    for name in expected._fields:
        if name != "reason":
            np.testing.assert_array_equal(getattr(found, name), getattr(expected, name), err_msg=name)
    assert found.reason.tolist() == [0, STEP_REASONS.index("scaler_overflow"), 0, 0]
    assert any("1 step is not known" in notice for notice in written.notices)
    assert (written.num_steps, written.num_rows, written.num_attempts) == (4, 0, 1)
    assert (log.header.backend, log.header.trimtab_version, log.header.out) == ("nanogpt", "9", str(out))
    assert log.notices() == []


def test_attempts_stay_attempts_and_runs_of_their_own_get_folders_of_their_own(steps, out):
    # given: a run to 10, resumed at 6; then another from the start, resumed at 3
    source = steps(*range(1, 11), *range(6, 13), *range(1, 6), *range(3, 8))
    assert source.restarts() == (3,)
    # when
    written = copy_to_runs(source, out, version="1")
    # then
    first, second = (open_log(path).step_columns() for path in written.paths)
    assert first.attempt.tolist() == [1] * 10 + [2] * 7
    assert first.step.tolist() == [*range(1, 11), *range(6, 13)]
    assert second.attempt.tolist() == [1] * 5 + [2] * 5
    assert any("2 runs" in notice for notice in written.notices)
    assert sorted((out / "trimtab").iterdir()) == sorted(map(Path, written.paths))


def test_events_go_with_the_one_run_and_are_left_out_of_several(steps, out):
    events = [Event("evaluation", 1, 0.0, {"loss": "nan"}), Event("evaluation", 2, 0.0, {"loss": 1.0})]
    source = steps(1, 2, events=events)
    written = copy_to_runs(source, out, version="1", clock=lambda: 7.0)
    mark = Event("converted", 0, 7.0, {"source": source.path})
    assert open_log(written.paths[0]).event_list() == [*events, mark]
    assert written.num_events == 2
    written = copy_to_runs(steps(1, 2, 3, 1, 2, 3, 2, 3, events=events), out, version="1", clock=lambda: 7.0)
    assert [open_log(path).event_list() for path in written.paths] == [[mark], [mark]]
    assert written.num_events == 0
    assert any("2 events are left out" in notice for notice in written.notices)


def test_rows_and_the_header_of_a_rewind_log_are_kept(rewind, out):
    # given
    log = rewind(
        HEADER,
        batch(1, [5, 6], [2.0, None], [10, 3]),
        batch(1, [5], [0.5], [4], micro=1),
        HEADER,
        batch(1, [7], [1.0], [2]),
    )
    # when
    written = copy_to_runs(log, out, version="1")
    # then
    copied = open_log(written.paths[0])
    rows = copied.rows().numpy()
    assert rows["attempt"].tolist() == [1, 1, 1, 2]
    assert rows["row"].tolist() == [5, 6, 5, 7]
    np.testing.assert_array_equal(rows["loss_sum"], np.array([20.0, math.nan, 2.0, 2.0], np.float32))
    assert rows["num_tokens"].tolist() == [10, 3, 4, 2]
    assert (copied.header.num_rows, copied.header.dataset_fingerprint, copied.header.created) == (7, "f", 12.5)
    assert (written.num_attempts, written.num_micro_batches, written.num_rows) == (2, 3, 4)


def test_a_loss_beyond_32_bits_is_infinite_and_counted(rewind, out):
    written = copy_to_runs(rewind(batch(1, [1, 2], [1e37, 1.0], [1000, 1])), out, version="1")
    assert open_log(written.paths[0]).rows().numpy()["loss_sum"].tolist() == [math.inf, 1.0]
    assert any("1 loss is beyond 32 bits" in notice for notice in written.notices)


def test_a_log_of_nothing_leaves_nothing(rewind, out):
    with pytest.raises(LogError, match="neither rows nor steps"):
        copy_to_runs(rewind(HEADER), out, version="1")
    assert not list(out.iterdir())


def test_a_failure_in_the_middle_leaves_nothing(rewind, out, monkeypatch):
    class Full(module.JournalWriter):
        def append(self, block):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "JournalWriter", Full)
    with pytest.raises(OSError, match="No space"):
        copy_to_runs(rewind(HEADER, batch(1, [1], [1.0], [1])), out, version="1")
    assert not list(out.iterdir())


def test_progress_ends_at_the_whole(rewind, out):
    said = []
    log = rewind(HEADER, batch(1, [1], [1.0], [1]))
    copy_to_runs(log, out, version="1", progress=lambda *what: said.append(what))
    assert said[-1] == ("copying the log", log.size_bytes, log.size_bytes)
