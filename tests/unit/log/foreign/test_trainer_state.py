"""`trainer_state.json` of the Hugging Face trainer."""

import json
import math

import pytest

from trimtab.log.foreign import state_reader
from trimtab.log.reader import open_log


def history(*, last=40, nan_at=None):
    """What a run of `last` steps logs every ten, with an evaluation and the summary."""
    entries = []
    for step in range(10, last + 1, 10):
        loss = math.nan if step == nan_at else 3 - step / 100
        entry = {"epoch": step / 20, "grad_norm": 0.5, "learning_rate": 1e-4, "loss": loss, "step": step}
        entries.append(entry)
        if step % 20 == 0:
            entries.append({"epoch": step / 20, "eval_loss": 2.0, "eval_runtime": 0.1, "step": step})
    return entries


def write(path, entries, **more):
    state = {
        "best_metric": None,
        "global_step": 40,
        "log_history": entries,
        "max_steps": 40,
        "trial_name": None,
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
    return path


def losses(log):
    columns = log.step_columns()
    return dict(zip(columns.step.tolist(), columns.loss.tolist(), strict=True))


def test_the_history_is_read_evaluations_apart_and_the_summary_left_aside(tmp_path):
    # given
    summary = {"epoch": 2.0, "step": 40, "train_loss": 2.75, "train_runtime": 1.0}
    log = open_log(write(tmp_path / "trainer_state.json", [*history(), summary]))
    # then
    assert log.header.backend == "transformers"
    assert losses(log) == {10: 2.9, 20: 2.8, 30: 2.7, 40: 2.6}
    assert log.step_columns().grad_norm.tolist() == [0.5] * 4
    assert [(event.step, event.facts["loss"]) for event in log.event_list()] == [(20, 2.0), (40, 2.0)]
    assert log.notices() == []


def test_a_bare_nan_keeps_its_kind(tmp_path):
    log = open_log(write(tmp_path / "trainer_state.json", history(nan_at=20)))
    assert math.isnan(losses(log)[20])


def test_of_a_torn_file_all_before_the_tear_is_read(tmp_path):
    # given
    path = write(tmp_path / "trainer_state.json", history())
    whole = path.read_bytes()
    entries = history()
    # when: cut at every byte behind the opening of the list
    for size in range(whole.index(b'"log_history"') + 16, whole.rindex(b"]"), 3):
        path.write_bytes(whole[:size])
        log = open_log(path)
        # then: the entries that end before the cut, and no other
        num_read = whole[:size].count(b"}")
        assert losses(log) == {entry["step"]: entry["loss"] for entry in entries[:num_read] if "loss" in entry}
        assert log.notices() == [f"the file is torn after entry {num_read}: what stands before was read"]


def test_parts_of_any_size_give_the_same(tmp_path, monkeypatch):
    path = write(tmp_path / "trainer_state.json", history(last=300), note="]" * 50)
    expected = losses(open_log(path))
    assert len(expected) == 30
    for size in (11, 100, 1_000):
        monkeypatch.setattr(state_reader, "BLOCK_BYTES", size)
        log = open_log(path)
        assert (losses(log), log.notices()) == (expected, [])


def test_a_list_of_entries_that_stands_alone_is_read(tmp_path):
    path = tmp_path / "history.json"
    path.write_text(json.dumps(history()))
    assert sorted(losses(open_log(path))) == [10, 20, 30, 40]


def test_of_an_output_folder_the_newest_checkpoint_is_read(tmp_path):
    # given: by its number, not by its name
    write(tmp_path / "checkpoint-9" / "trainer_state.json", history(last=10))
    write(tmp_path / "checkpoint-40" / "trainer_state.json", history())
    write(tmp_path / "checkpoint-old" / "trainer_state.json", history(last=100))
    # then
    assert open_log(tmp_path).path == str(tmp_path / "checkpoint-40" / "trainer_state.json")
    assert open_log(tmp_path / "checkpoint-9").path == str(tmp_path / "checkpoint-9" / "trainer_state.json")
    # and: its own file tells more
    write(tmp_path / "trainer_state.json", history())
    assert open_log(tmp_path).path == str(tmp_path / "trainer_state.json")


def test_an_entry_that_is_none_is_counted(tmp_path):
    log = open_log(write(tmp_path / "trainer_state.json", [*history(), 5, None]))
    assert log.notices() == ["2 entries not an object were left out (entries 7, 8)"]


@pytest.mark.parametrize(
    "content", ['{"log_history": [', '{"log_history": []}', '{"log_history": 5}', "{}", '{"log_history']
)
def test_a_file_without_entries_gives_no_steps(tmp_path, content):
    path = tmp_path / "trainer_state.json"
    path.write_text(content)
    assert open_log(path).step_columns().num_records == 0


def test_an_entry_without_an_end_is_not_read_to_the_end_of_a_large_file(tmp_path, monkeypatch):
    # given
    monkeypatch.setattr(state_reader, "MAX_ENTRY_CHARACTERS", 1_000)
    monkeypatch.setattr(state_reader, "BLOCK_BYTES", 500)
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [{"loss": 1.0, "step": 1}, {"x": "' + "y" * 100_000)
    done = []
    log = open_log(path)
    list(log.row_blocks(progress=done.append))
    # then
    assert losses(log) == {1: 1.0}
    assert max(done) < 3_000
