"""`trimtab.convert`: one call, whatever the log is."""

import json

import numpy as np
import pytest

import trimtab
from trimtab.conversion.convert import convert_log, target_of
from trimtab.errors import LogError, UsageError
from trimtab.log.folder import create_run
from trimtab.log.reader import open_log
from trimtab.recorder import Recorder
from trimtab.values import Event, MicroBatch, RunHeader, StepRow


@pytest.fixture
def run(tmp_path):
    """The folder of a run of 3 steps, of two rows each, whose journal was not sealed."""
    folder = create_run(tmp_path / "out", RunHeader(run_id="run", backend="torch"))
    recorder = Recorder(folder, seal_bytes=None)
    for step in (1, 2, 3):
        recorder.put(MicroBatch(step, 0, [10 * step, 7], [4.0, 6.0], [2, 3]))
        recorder.put(StepRow(step, 2.0, 1.0, 1e-3))
    recorder.put(Event("end", 3, 0.0))
    recorder.close(30)
    return folder.path


@pytest.fixture
def metrics(tmp_path):
    """A metrics.csv of 4 steps."""
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "".join(f"{step},{step / 4}\n" for step in range(1, 5)))
    return path


def test_a_run_becomes_a_file_and_what_is_lost_is_counted(run, tmp_path):
    # when
    written = trimtab.convert(run, tmp_path / "a.jsonl")
    # then
    assert isinstance(written, trimtab.Conversion)
    assert (written.source, written.format, written.paths) == (str(run), "rewind.jsonl", (str(tmp_path / "a.jsonl"),))
    assert (written.num_attempts, written.num_micro_batches, written.num_rows) == (1, 3, 6)
    assert (written.num_steps, written.num_events) == (0, 0)
    assert "3 step records (loss, gradient norm, learning rate) are not kept" in written.notices
    assert trimtab.open_log(tmp_path / "a.jsonl").rows().numpy()["row"].tolist() == [10, 7, 20, 7, 30, 7]


@pytest.mark.parametrize("name", ["rank-00000.journal", "copy.bin"])
def test_a_journal_is_ours_under_any_name(run, tmp_path, name):
    journal = (run / "rank-00000.journal").rename(run / name)
    assert trimtab.convert(journal, tmp_path / "a.jsonl").format == "rewind.jsonl"


def test_a_log_of_another_tool_becomes_a_run_folder_and_back_it_comes_as_ours(run, metrics, tmp_path):
    # given
    lines = trimtab.convert(run, tmp_path / "a.jsonl").paths[0]
    for source in (lines, metrics):
        # when
        written = trimtab.convert(source, tmp_path / "runs")
        # then
        (path,) = written.paths
        assert (written.source, written.format) == (str(source), "run")
        assert open_log(path).format == "run"
        assert target_of(open_log(path), "runs") == "rewind.jsonl"
    assert (written.num_steps, written.num_rows) == (4, 0)
    np.testing.assert_array_equal(open_log(path).steps().numpy()["loss"], [0.25, 0.5, 0.75, 1.0])


def test_the_document_is_strict_json_of_every_field(metrics, tmp_path):
    written = trimtab.convert(metrics, tmp_path / "runs")
    document = json.loads(json.dumps(written.to_dict(), allow_nan=False))
    assert document.pop("version") == 1
    assert document == {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in ((name, getattr(written, name)) for name in written.__dataclass_fields__)
    }


def test_a_log_that_becomes_a_folder_is_not_written_to_a_file(run, metrics, tmp_path):
    lines = trimtab.convert(run, tmp_path / "a.jsonl").paths[0]
    for source, why in ((lines, "is a rewind.jsonl already"), (metrics, "holds steps and no rows")):
        with pytest.raises(UsageError, match=why):
            trimtab.convert(source, tmp_path / "b.jsonl")
    assert not (tmp_path / "b.jsonl").exists()


def test_what_stands_there_is_not_touched(run, tmp_path):
    # given: a file, a folder, and a link that leads nowhere
    file, folder, link = tmp_path / "a.jsonl", tmp_path / "folder", tmp_path / "link"
    file.write_text("mine")
    folder.mkdir()
    link.symlink_to(tmp_path / "elsewhere")
    # then
    for dest in (file, folder, link):
        with pytest.raises(UsageError, match="exists already; nothing was overwritten"):
            trimtab.convert(run, dest)
    assert file.read_text() == "mine"
    assert link.is_symlink()
    assert not list(folder.iterdir())


def test_a_failure_leaves_an_output_folder_as_it_was(tmp_path):
    # given: a log of nothing but its header
    path = tmp_path / "rewind.jsonl"
    path.write_text('{"kind": "header", "version": 1}\n')
    (tmp_path / "there").mkdir()
    # then
    for dest, exists in (("there", True), ("new", False)):
        with pytest.raises(LogError, match="neither rows nor steps"):
            trimtab.convert(path, tmp_path / dest)
        assert (tmp_path / dest).exists() is exists
    assert not list((tmp_path / "there").iterdir())


def test_several_logs_under_one_name_are_told_apart_by_the_caller(tmp_path):
    for name in ("rewind.jsonl", "rewind.jsonl.1"):
        (tmp_path / name).write_text('{"kind": "header", "version": 1}\n')
    with pytest.raises(UsageError, match=r"holds 2 logs: .*rewind\.jsonl, .*rewind\.jsonl\.1\. Name one of them"):
        trimtab.convert(tmp_path, tmp_path / "runs")


def test_notices_begin_with_the_choice_of_the_log_and_progress_is_heard_of_a_log_of_steps_too(metrics, tmp_path):
    said = []
    written = convert_log(
        open_log(metrics), tmp_path / "runs", notices=["chosen"], progress=lambda *what: said.append(what)
    )
    assert written.notices[0] == "chosen"
    assert said[-1] == ("copying the log", metrics.stat().st_size, metrics.stat().st_size)
