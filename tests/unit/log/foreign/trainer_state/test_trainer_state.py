"""`trainer_state.json` of the Hugging Face trainer."""

import json
import math
import tracemalloc

import pytest

from trimtab.log.foreign.trainer_state import reader as module
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
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
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


@pytest.mark.parametrize("flipped", ['"', ":", "{", "}", ",", "1"])
def test_a_flipped_byte_costs_the_entry_it_is_in(tmp_path, flipped):
    # given: 20 entries, in the tenth of which a character is another
    path = write(tmp_path / "trainer_state.json", [{"loss": 1.0, "step": step} for step in range(1, 21)])
    text = path.read_text()
    begin = text.index('"step": 10\n') - 30
    at = text.index(flipped, text.rindex("{", 0, begin + 15) if flipped in "{,}" else begin + 10)
    path.write_text(text[:at] + "#" + text[at + 1 :])
    log = open_log(path)
    # then
    assert len(losses(log)) == 19
    (notice,) = log.notices()
    assert notice.startswith("1 entry not JSON was left out (entry ")


def test_a_flipped_byte_between_entries_costs_none(tmp_path):
    path = write(tmp_path / "trainer_state.json", [{"loss": 1.0, "step": step} for step in range(1, 6)])
    text = path.read_text()
    at = text.index("},", text.index('"step": 3')) + 1
    path.write_text(text[:at] + "#" + text[at + 1 :])
    log = open_log(path)
    assert sorted(losses(log)) == [1, 2, 3, 4, 5]
    assert log.notices() == ["1 entry not JSON was left out (entry 4)"]


def test_a_flipped_byte_in_the_last_entry_costs_no_other(tmp_path):
    path = write(tmp_path / "trainer_state.json", [{"loss": 1.0, "step": step} for step in range(1, 6)])
    path.write_text(path.read_text().replace('"step": 5', '"step# 5'))
    log = open_log(path)
    assert sorted(losses(log)) == [1, 2, 3, 4]
    assert log.notices() == ["1 entry not JSON was left out (entry 5)"]


def test_an_entry_that_is_too_long_is_left_out_and_what_follows_is_read(tmp_path, monkeypatch):
    # given
    monkeypatch.setattr(module, "MAX_ENTRY_CHARACTERS", 1_000)
    monkeypatch.setattr(module, "_KEPT_CHARACTERS", 100)
    entries = [{"loss": 1.0, "step": 1}, {"x": "y" * 100_000}, {"loss": 2.0, "step": 2}]
    path = write(tmp_path / "trainer_state.json", entries)
    for size in (77, 500):
        monkeypatch.setattr(module, "BLOCK_BYTES", size)
        log = open_log(path)
        # then
        assert losses(log) == {1: 1.0, 2: 2.0}
        assert log.notices() == ["1 entry not JSON was left out (entry 2)"]


@pytest.mark.parametrize("content", ["", "{", '{"log_history": []}', '{"log_history": [{"lo'])
def test_a_newest_checkpoint_that_holds_nothing_does_not_hide_the_run(tmp_path, content):
    # given: three checkpoints, the run was killed while it wrote the last
    write(tmp_path / "checkpoint-9" / "trainer_state.json", history(last=10))
    write(tmp_path / "checkpoint-10" / "trainer_state.json", history(last=40))
    (tmp_path / "checkpoint-100").mkdir()
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text(content)
    # when
    log = open_log(tmp_path)
    # then
    assert log.path == str(tmp_path / "checkpoint-10" / "trainer_state.json")
    assert len(losses(log)) == 4
    assert log.notices() == [
        "nothing could be read from trainer_state.json of checkpoint-100: checkpoint-10 was read, the newest before"
    ]


def test_where_no_checkpoint_holds_anything_the_newest_is_named(tmp_path):
    for number in (9, 10):
        (tmp_path / f"checkpoint-{number}").mkdir()
        (tmp_path / f"checkpoint-{number}" / "trainer_state.json").write_text("")
    assert open_log(tmp_path).path == str(tmp_path / "checkpoint-10" / "trainer_state.json")


def test_an_entry_without_an_end_costs_no_memory(tmp_path, monkeypatch):
    # given
    monkeypatch.setattr(module, "MAX_ENTRY_CHARACTERS", 1_000)
    monkeypatch.setattr(module, "BLOCK_BYTES", 500)
    path = tmp_path / "trainer_state.json"
    path.write_text('{"log_history": [{"loss": 1.0, "step": 1}, {"x": "' + "y" * 10_000_000)
    log = open_log(path)
    # when
    tracemalloc.start()
    found = losses(log)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # then
    assert found == {1: 1.0}
    assert log.notices() == ["the file is torn after entry 1: what stands before was read"]
    assert peak < 1_000_000
