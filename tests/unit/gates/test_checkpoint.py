"""Which checkpoint a chunk ends with, and whether it is written, whole and healthy."""

import json
import shutil

import pytest
from checkpoints_of_a_chunk import ALL_PASSED, NOTHING_THERE, PARTS, judge, record, save, statuses, trip

from trimtab.errors import CheckpointError


def test_a_checkpoint_that_was_loaded_again_and_probed_passes_all_of_them(tmp_path):
    path, crc32 = save(tmp_path)
    num_read = []
    found = judge(record(tmp_path, events=[trip(crc32)]), tmp_path, progress=num_read.append)
    assert statuses(found) == ALL_PASSED
    assert found["path"] == str(path)
    # and every byte of it was read
    assert sum(num_read) == found["checkpoint_whole"].figures["size_bytes"] > 1000
    assert found["checkpoint_written"].figures["parts"] == ["model", "optimizer", "step", "rng"]
    assert found["round_trip"].figures["manifest_crc32"] == crc32
    assert "entropy 3.2 of at most 5.55 nats" in found["generation_probe"].text


# Which one.


def test_one_of_another_run_at_the_same_step_is_not_taken(tmp_path):
    _, crc32 = save(tmp_path, run_id="s-9")
    found = judge(record(tmp_path, events=[trip(crc32)]), tmp_path)
    assert statuses(found) == NOTHING_THERE
    assert "step_60 is of run s-9" in found["checkpoint_written"].text
    assert found["path"] is None


def test_the_newest_one_before_the_last_step_is_named(tmp_path):
    save(tmp_path, 20)
    save(tmp_path, 50)
    found = judge(record(tmp_path), tmp_path)
    assert statuses(found) == NOTHING_THERE
    assert "the newest of this run is step_50, 10 steps before it: save at the end" in found["checkpoint_written"].text


def test_a_folder_without_any_says_where_to_look(tmp_path):
    found = judge(record(tmp_path), tmp_path)
    assert statuses(found) == NOTHING_THERE
    assert "--checkpoints DIR" in found["checkpoint_written"].text
    with pytest.raises(CheckpointError, match="no folder that can be listed"):
        judge(record(tmp_path, run_id="r-2"), tmp_path / "nosuch")


def test_one_that_was_renamed_to_the_last_step_is_not_that_steps(tmp_path):
    _, crc32 = save(tmp_path, 50, name="step_60")
    found = judge(record(tmp_path, events=[trip(crc32)]), tmp_path)
    assert statuses(found)["checkpoint_written"] == "failed"
    assert "called step_60 and saved after step 50" in found["checkpoint_written"].text
    assert statuses(found)["checkpoint_whole"] == "failed"


def test_the_right_one_under_another_name_is_told(tmp_path):
    save(tmp_path, 60, name="step_99")
    found = judge(record(tmp_path), tmp_path)
    assert statuses(found) == NOTHING_THERE
    assert "called step_99 and saved after step 60" in found["checkpoint_written"].text


def test_a_save_that_has_not_ended_is_told(tmp_path):
    (tmp_path / "step_60.tmp-0123abcd").mkdir()
    found = judge(record(tmp_path), tmp_path)
    assert "the save of step 60 has not ended, or was killed" in found["checkpoint_written"].text


def test_one_that_lacks_a_part_is_none_to_resume_from(tmp_path):
    parts = {part: file for part, file in PARTS.items() if part != "rng"}
    found = judge(record(tmp_path), save(tmp_path, parts=parts)[0].parent)
    assert statuses(found)["checkpoint_written"] == "failed"
    assert "lacks rng" in found["checkpoint_written"].text


def test_one_that_its_run_was_taken_back_behind_is_left_aside(tmp_path):
    save(tmp_path, 40, serial=1)
    save(tmp_path, 60, serial=2)
    save(tmp_path, 50, serial=3, resumed_from={"step": 40, "serial": 2})
    found = judge(record(tmp_path), tmp_path)
    assert statuses(found)["checkpoint_written"] == "failed"
    assert "was left aside" in found["checkpoint_written"].text


def test_of_two_spellings_of_the_step_the_one_saved_last_is_looked_at(tmp_path):
    save(tmp_path, serial=5, name="step_060")
    path, _ = save(tmp_path, serial=6)
    assert judge(record(tmp_path), tmp_path)["path"] == str(path)


@pytest.mark.parametrize(
    ("written_to", "status"),
    [(".", "failed"), ("gone", "unknown"), ("x" * 5000, "unknown")],
    ids=["here", "gone", "long"],
)
def test_no_folder_at_all_fails_where_the_run_was_written_and_is_unknown_elsewhere(tmp_path, written_to, status):
    found = judge(record(tmp_path, header_out=tmp_path / written_to), None, looked_in=tmp_path)
    assert statuses(found) == {**NOTHING_THERE, "checkpoint_written": status}
    assert found["checkpoint_written"].text.startswith(f"no checkpoint of this run is in {tmp_path}")
    assert "--checkpoints DIR" in found["checkpoint_written"].text


def test_where_nobody_looked_for_one_nothing_is_known(tmp_path):
    assert statuses(judge(record(tmp_path), None)) == {**NOTHING_THERE, "checkpoint_written": "unknown"}


# Whole.


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: (path / "model.pt").write_bytes(b"\x01" + (path / "model.pt").read_bytes()[1:]), "model.pt"),
        (lambda path: (path / "rank_0.pt").write_bytes((path / "rank_0.pt").read_bytes()[:-1]), "rank_0.pt"),
        (lambda path: (path / "optimizer.pt").unlink(), "optimizer.pt"),
    ],
    ids=["a flipped byte", "cut short", "removed"],
)
def test_damage_is_found_whatever_the_round_trip_said(tmp_path, damage, said):
    path, crc32 = save(tmp_path)
    damage(path)
    found = judge(record(tmp_path, events=[trip(crc32)]), tmp_path)
    assert statuses(found)["checkpoint_whole"] == "failed"
    assert said in found["checkpoint_whole"].text


def test_a_manifest_that_cannot_be_read_fails_and_nothing_else_passes(tmp_path):
    path, crc32 = save(tmp_path)
    manifest = path / "trimtab_manifest.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"step":60', b'"step":61'))
    found = judge(record(tmp_path, events=[trip(crc32)]), tmp_path)
    assert statuses(found)["checkpoint_written"] == statuses(found)["checkpoint_whole"] == "failed"
    assert "passed" not in statuses(found).values()


def test_a_trainers_checkpoint_without_a_manifest_is_unknown_and_says_how_to_have_one(tmp_path):
    folder = tmp_path / "checkpoint-60"
    folder.mkdir()
    (folder / "trainer_state.json").write_text(json.dumps({"global_step": 60, "log_history": []}))
    found = judge(record(tmp_path), tmp_path)
    assert "passed" not in statuses(found).values()
    assert "trimtab.attach" in found["checkpoint_written"].text
    assert statuses(found)["checkpoint_healthy"] == "unknown"


def test_a_manifest_of_another_save_is_not_that_of_these_bytes(tmp_path):
    # given: that of another save of the step, and the event of its round trip
    path, _ = save(tmp_path)
    other, crc32 = save(tmp_path / "other", salt=b"other weights")
    shutil.copy(other / "trimtab_manifest.json", path)
    found = judge(record(tmp_path, events=[trip(crc32)]), tmp_path)
    assert statuses(found)["checkpoint_whole"] == "failed"
    # and that of another step
    shutil.copy(save(tmp_path / "before", 50)[0] / "trimtab_manifest.json", path)
    found = judge(record(tmp_path / "again"), tmp_path)
    assert statuses(found)["checkpoint_written"] == statuses(found)["checkpoint_whole"] == "failed"


def test_a_manifest_that_is_gone_fails_where_others_of_the_run_have_one(tmp_path):
    save(tmp_path, 50, name="checkpoint-50", saver="transformers")
    path, _ = save(tmp_path, name="checkpoint-60", saver="transformers")
    (path / "trimtab_manifest.json").unlink()
    (path / "trainer_state.json").write_text(json.dumps({"global_step": 60, "log_history": []}))
    found = judge(record(tmp_path), tmp_path)
    assert statuses(found)["checkpoint_written"] == "failed"
    assert "which a save writes last, and others of this run have one" in found["checkpoint_written"].text


def test_a_trainers_checkpoint_is_judged_but_for_the_round_trip_that_only_it_could_make(tmp_path):
    save(tmp_path, name="checkpoint-60", saver="transformers")
    found = judge(record(tmp_path), tmp_path)
    assert statuses(found) == {**ALL_PASSED, "round_trip": "unknown", "generation_probe": "unknown"}
    # and nothing is advised that would not make it known
    assert found["round_trip"].text.endswith("of this one it stays unknown")


def test_of_a_sharded_checkpoint_every_shard_is_read(tmp_path):
    path, crc32 = save(tmp_path, parts={**PARTS, "model": "sharded/rank_0.bin", "optimizer": "sharded/rank_1.bin"})
    run = record(tmp_path, events=[trip(crc32)])
    assert statuses(judge(run, tmp_path)) == ALL_PASSED
    (path / "sharded/rank_1.bin").write_bytes(b"x" * (path / "sharded/rank_1.bin").stat().st_size)
    gate = judge(run, tmp_path)["checkpoint_whole"]
    assert gate.status == "failed"
    assert "sharded/rank_1.bin" in gate.text


def test_all_gates_judge_the_save_that_was_read_though_another_one_takes_its_place_meanwhile(tmp_path):
    path, crc32 = save(tmp_path, salt=b"these weights")
    other, _ = save(tmp_path / "other", salt=b"other weights", healthy=False)
    run = record(tmp_path, events=[trip(crc32)])
    num_bytes = sum(file.stat().st_size for file in path.iterdir() if file.suffix == ".pt")
    num_read = 0

    def read(num_more):
        nonlocal num_read
        num_read += num_more
        if num_read >= num_bytes:
            shutil.copytree(other, path, dirs_exist_ok=True)

    assert statuses(judge(run, tmp_path, progress=read)) == ALL_PASSED
    # and the next time the other one
    expected = {**ALL_PASSED, "checkpoint_healthy": "failed", "round_trip": "failed", "generation_probe": "unknown"}
    assert statuses(judge(run, tmp_path)) == expected


def test_a_save_that_is_replaced_while_it_is_read_is_judged_as_what_it_became(tmp_path):
    path, _ = save(tmp_path, salt=b"w")
    other, crc32 = save(tmp_path / "other", salt=b"other weights", healthy=False)
    run = record(tmp_path, events=[trip(crc32)])
    found = judge(run, tmp_path, progress=lambda _: shutil.copytree(other, path, dirs_exist_ok=True))
    assert statuses(found) == {**ALL_PASSED, "checkpoint_healthy": "failed"}


# Healthy.


def test_one_that_says_itself_that_it_is_not_healthy_fails_and_the_last_healthy_one_is_named(tmp_path):
    save(tmp_path, 40)
    save(tmp_path, 50)
    save(tmp_path, 60, healthy=False, unhealthy_because=["collapse in moe at step 60: MaxVio 3"], unhealthy_since=45)
    gate = judge(record(tmp_path), tmp_path)["checkpoint_healthy"]
    assert gate.status == "failed"
    assert "not healthy: collapse in moe at step 60; the last healthy one is step_40" in gate.text
    assert gate.figures["last_healthy"].endswith("step_40")


def test_the_log_may_know_of_trouble_that_no_manifest_tells(tmp_path):
    # given: a divergence that the run never came back from
    save(tmp_path, 30)
    save(tmp_path, 60)
    run = record(tmp_path, losses={step: 2.0 + 3.0 * (step - 45) for step in range(46, 61)})
    gate = judge(run, tmp_path)["checkpoint_healthy"]
    assert gate.status == "failed"
    assert "the trouble began at step 46, says the log" in gate.text
    assert "the last healthy one is step_30" in gate.text


def test_a_finding_of_the_log_speaks_against_what_was_saved_as_healthy(tmp_path):
    # given: evaluations that get worse and worse, of a run without a watch
    save(tmp_path, 10)
    save(tmp_path, 60)
    run = record(tmp_path, evals={10: 3.57, 20: 3.94, 40: 4.54, 60: 4.99})
    gate = judge(run, tmp_path)["checkpoint_healthy"]
    assert gate.status == "failed"
    assert "after step 10, the last known to be well before eval_regression, found at step 60" in gate.text
    assert "the last healthy one is step_10" in gate.text


def test_where_no_healthy_one_is_left_that_is_said(tmp_path):
    save(tmp_path, 50, run_id="another")
    save(tmp_path, 60, healthy=False)
    gate = judge(record(tmp_path), tmp_path)["checkpoint_healthy"]
    assert gate.text.endswith("no earlier one of this run is known to be healthy: begin anew, or from one you name")
    assert gate.figures["last_healthy"] is None
