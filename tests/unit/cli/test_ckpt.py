"""`trimtab ckpt`: the list, the check, the choice."""

import json
import os
import subprocess
import sys

import pytest
import torch

from trimtab.analysis.lookup import log_of_run
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.registry import register
from trimtab.resume import content
from trimtab.resume.manifest import ResumedFrom
from trimtab.values import RunHeader, StepRow

ESCAPE = "\x1b[31m"


def damage(folder):
    path = folder / "model.pt"
    data = bytearray(path.read_bytes())
    data[3] ^= 1
    path.write_bytes(data)


def documents(result):
    return json.loads(result.stdout)


# --------------------------------------------------------------------------------------------------------------- pick


def test_pick_prints_the_path_alone_and_the_reasons_beside_it(trimtab, checkpoint):
    checkpoint(900)
    checkpoint(9_000)
    damage(checkpoint(10_000))
    result = trimtab("ckpt", "pick", "runs/a")
    assert (result.exit_code, result.stdout) == (0, "runs/a/step_9000\n")
    assert "refused: step_10000: model.pt is not what was saved" in result.stderr


def test_pick_answers_a_program_on_standard_output_alone(trimtab, checkpoint, here):
    checkpoint(100, loss=1.5)
    damage(checkpoint(200))
    (here / "runs/a/step_300_backup").mkdir()
    result = trimtab("ckpt", "pick", "--json", "-", "runs/a")
    found = documents(result)
    assert (found["version"], found["path"], found["step"]) == (1, "runs/a/step_100", 100)
    assert (found["healthy"], found["run_id"], found["loss"]) == (True, "r", 1.5)
    assert [entry["path"] for entry in found["refused"]] == ["runs/a/step_200"]
    assert [entry["path"] for entry in found["ignored"]] == ["runs/a/step_300_backup"]
    assert result.stderr == ""


def test_pick_writes_its_answer_into_a_file_too(trimtab, checkpoint, here):
    checkpoint(100)
    result = trimtab("ckpt", "pick", "--json", "picked.json", "runs/a")
    assert result.stdout == "runs/a/step_100\n"
    assert "Wrote picked.json" in result.stderr
    assert json.loads((here / "picked.json").read_text())["step"] == 100


def test_pick_takes_the_run_that_was_asked_for(trimtab, checkpoint):
    checkpoint(1_000, run_id="old")
    checkpoint(10, run_id="new")
    assert trimtab("ckpt", "pick", "runs/a").stdout == "runs/a/step_10\n"
    assert trimtab("ckpt", "pick", "--run-id", "old", "runs/a").stdout == "runs/a/step_1000\n"
    result = trimtab("ckpt", "pick", "--run-id", "none", "runs/a")
    assert result.exit_code == 1
    assert "no checkpoint of run none" in result.stderr


def test_nothing_to_pick_is_an_error_that_says_why_and_what_to_do(trimtab, checkpoint):
    damage(checkpoint(100))
    result = trimtab("ckpt", "pick", "--json", "-", "runs/a")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("Error: runs/a: none of its checkpoints is one to resume from. Take another")
    assert "step_100: model.pt is not what was saved" in result.stderr


def test_pick_of_no_folder_is_an_error(trimtab):
    result = trimtab("ckpt", "pick", "nowhere")
    assert result.exit_code == 1
    assert "Name the folder that holds the checkpoints" in result.stderr


def test_pick_looks_one_level_below_where_that_is_clear(trimtab, checkpoint):
    checkpoint(100, out="runs/a")
    result = trimtab("ckpt", "pick", "runs")
    assert result.stdout == "runs/a/step_100\n"
    assert "note: runs holds no checkpoint itself: runs/a does" in result.stderr
    checkpoint(200, out="runs/b")
    result = trimtab("ckpt", "pick", "runs")
    assert result.exit_code == 1
    assert "2 folders in it do. Name one: runs/a, runs/b" in result.stderr


def test_pick_of_a_checkpoint_itself_names_what_to_do(trimtab, checkpoint):
    checkpoint(100)
    result = trimtab("ckpt", "pick", "runs/a/step_100")
    assert result.exit_code == 1
    assert "is a checkpoint itself" in result.stderr


# ------------------------------------------------------------------------------------------------------------ healthy


def test_pick_healthy_passes_over_a_model_that_was_not(trimtab, checkpoint):
    # the case of a finite step_900 beside a step_1000 with nan in its weights
    checkpoint(900)
    checkpoint(1_000, because="layer.weight holds nan")
    result = trimtab("ckpt", "pick", "--healthy", "runs/a")
    assert result.stdout == "runs/a/step_900\n"
    assert "refused: step_1000: not healthy: layer.weight holds nan" in result.stderr
    assert "no log of run r is at hand" in result.stderr
    assert "step 1000, not healthy: layer.weight holds nan" in trimtab("ckpt", "pick", "runs/a").stderr


@pytest.fixture
def record_trouble(here):
    """Records a run whose gradient norm leaves its line at step 147 and its loss at step 170.

    `is_well`: whether they stay; `is_listed`: whether the list of runs knows it.
    """

    def make(run_id="r", *, out="runs/a", is_well=False, is_listed=True):
        folder = create_run(here / out, RunHeader(run_id=run_id, backend="torch", created=1.0, out=str(here / out)))
        recorder = Recorder(folder)
        for step in range(1, 221):
            loss = 9.0 if step >= 170 and not is_well else 2.0 + 0.01 * (step % 7)
            recorder.put(StepRow(step, loss, 30.0 if step >= 147 and not is_well else 1.0, 1e-3))
        recorder.close(timeout_s=30)
        if is_listed:
            register(folder.header, folder.path)
        return folder.path

    return make


@pytest.mark.parametrize(("out", "is_listed"), [("runs/a", False), ("runs", False), ("elsewhere", True)])
def test_pick_healthy_goes_back_before_the_first_sign_in_the_runs_log(
    trimtab, checkpoint, record_trouble, out, is_listed
):
    # the case of a spike of the loss after a gradient that had long been out of line; the log lies in the folder of the
    # checkpoints, beside it, or where the list of runs knows
    record_trouble(out=out, is_listed=is_listed)
    for step in (100, 140, 150, 160, 200):
        checkpoint(step)
    result = trimtab("ckpt", "pick", "--healthy", "--json", "-", "runs/a")
    found = documents(result)
    assert found["step"] == 140
    assert {entry["reason"] for entry in found["refused"]} == {"not before step 147"}
    assert "the trouble began at step 147" in found["notices"][-1]
    assert "the gradient norm left its line at step 147 (30, 1 before)" in found["notices"][-1]
    # without --healthy the log has no say
    assert documents(trimtab("ckpt", "pick", "--json", "-", "runs/a"))["step"] == 200


def test_pick_healthy_reads_no_payload_that_the_log_rules_out(trimtab, checkpoint, record_trouble, monkeypatch):
    read = []
    original = content.read_checksum
    monkeypatch.setattr(
        content, "read_checksum", lambda path, **more: (read.append(path.parent.name), original(path, **more))[1]
    )
    record_trouble()
    for step in (140, 160, 200):
        checkpoint(step)
    assert trimtab("ckpt", "pick", "--healthy", "runs/a").stdout == "runs/a/step_140\n"
    assert read == ["step_140"]


def test_ls_marks_what_the_run_was_taken_back_behind(trimtab, checkpoint):
    checkpoint(500)
    checkpoint(1_000)
    checkpoint(600, resumed_from=ResumedFrom(step=500, serial=2))
    (folder,) = documents(trimtab("ckpt", "ls", "--json", "-", "runs/a"))["folders"]
    assert [(entry["step"], entry["abandoned"]) for entry in folder["checkpoints"]] == [
        (1_000, True),
        (600, False),
        (500, False),
    ]
    assert "left aside: its run was taken back to an earlier step since" in trimtab("ckpt", "ls", "runs/a").stdout
    assert trimtab("ckpt", "pick", "runs/a").stdout == "runs/a/step_600\n"


def test_pick_healthy_says_where_the_log_shows_no_trouble(trimtab, checkpoint, record_trouble):
    record_trouble(is_well=True)
    checkpoint(200)
    result = trimtab("ckpt", "pick", "--healthy", "runs/a")
    assert result.stdout == "runs/a/step_200\n"
    assert "shows no trouble that it did not come back from" in result.stderr


def test_pick_healthy_with_nothing_before_the_trouble_says_what_the_log_said(trimtab, checkpoint, record_trouble):
    record_trouble()
    checkpoint(200)
    result = trimtab("ckpt", "pick", "--healthy", "runs/a")
    assert result.exit_code == 1
    assert "before step 147" in result.stderr
    assert "The trouble began at step 147, says the run's log" in result.stderr


def test_the_log_of_another_run_has_no_say(trimtab, checkpoint, record_trouble):
    record_trouble("another")
    checkpoint(200)
    assert trimtab("ckpt", "pick", "--healthy", "runs/a").stdout == "runs/a/step_200\n"


def test_a_log_that_cannot_be_read_changes_nothing_and_is_said(trimtab, checkpoint, record_trouble):
    folder = record_trouble()
    for file in folder.rglob("*"):
        if file.is_file() and file.name != "run.json":
            file.unlink()
    checkpoint(200)
    result = trimtab("ckpt", "pick", "--healthy", "runs/a")
    assert result.stdout == "runs/a/step_200\n"
    assert "the run's log was not looked at" in result.stderr


@pytest.mark.parametrize("run_id", ["../r", "a/../r", "/r", "", "r\0", ".."])
def test_a_run_id_that_climbs_leads_to_no_log(record_trouble, here, run_id):
    record_trouble()
    assert log_of_run("r", beside=here / "runs/a") is not None
    assert log_of_run(run_id, beside=here / "runs/a") is None


# ------------------------------------------------------------------------------------------------------------- verify


def test_verify_says_of_each_checkpoint_whether_it_is_whole(trimtab, checkpoint):
    checkpoint(100)
    assert trimtab("ckpt", "verify", "runs/a/step_100").exit_code == 0
    damage(checkpoint(200))
    result = trimtab("ckpt", "verify", "runs/a")
    assert result.exit_code == 3
    assert "ok       runs/a/step_100: every byte is what was saved (1 file" in result.stdout
    assert "damaged  runs/a/step_200" in result.stdout
    assert "2 checkpoints, 1 damaged" in result.stdout
    found = documents(trimtab("ckpt", "verify", "--json", "-", "runs/a"))
    assert (found["version"], found["ok"]) == (1, False)
    assert [(entry["step"], entry["ok"]) for entry in found["checkpoints"]] == [(200, False), (100, True)]


def test_what_a_resume_lacks_is_no_damage(trimtab, checkpoint):
    checkpoint(100, parts=("model", "step"))
    result = trimtab("ckpt", "verify", "runs/a")
    assert result.exit_code == 0
    assert "lacks optimizer, rng, which a resume needs" in result.stdout


@pytest.mark.parametrize(("path", "words"), [("nowhere", "nothing is there"), (".", "holds no checkpoint")])
def test_verify_of_nothing_is_an_error(trimtab, path, words):
    result = trimtab("ckpt", "verify", path)
    assert result.exit_code == 1
    assert words in result.stderr


def test_verify_takes_a_single_file(trimtab, here):
    torch.save({"model": {}, "optimizer": {}, "rng": [], "step": 300}, here / "step_300.pt")
    result = trimtab("ckpt", "verify", "step_300.pt")
    assert result.exit_code == 0
    assert "its structure is sound" in result.stdout


# ----------------------------------------------------------------------------------------------------------------- ls


def test_ls_lists_the_newest_first_and_what_is_ignored(trimtab, checkpoint, here):
    checkpoint(900, loss=1.25)
    checkpoint(10_000, because="layer.weight holds nan")
    (here / "runs/a/step_1000_backup").mkdir()
    result = trimtab("ckpt", "ls", "runs/a")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == "runs/a: 2 checkpoints"
    assert lines[3].split() == ["10000", "r", "no", "yes", "16", "B", "-", "step_10000"]
    assert lines[4] == "    not healthy: layer.weight holds nan"
    assert lines[5].split() == ["900", "r", "yes", "yes", "14", "B", "1.25", "step_900"]
    assert lines[6].startswith("ignored: step_1000_backup: not the whole name of a checkpoint")


def test_ls_of_a_folder_above_lists_those_one_level_below(trimtab, checkpoint):
    checkpoint(100, out="runs/a")
    checkpoint(200, out="runs/b")
    result = trimtab("ckpt", "ls", "runs")
    assert "runs/a: 1 checkpoint\n" in result.stdout
    assert "runs/b: 1 checkpoint\n" in result.stdout
    found = documents(trimtab("ckpt", "ls", "--json", "-", "runs"))
    assert [(folder["path"], [entry["step"] for entry in folder["checkpoints"]]) for folder in found["folders"]] == [
        ("runs/a", [100]),
        ("runs/b", [200]),
    ]


def test_ls_tells_a_truncated_file_without_reading_any(trimtab, checkpoint):
    folder = checkpoint(100)
    (folder / "model.pt").write_bytes(b"short")
    assert "model.pt is truncated" in trimtab("ckpt", "ls", "runs/a").stdout


def test_ls_of_an_empty_folder_is_an_answer(trimtab, here):
    result = trimtab("ckpt", "ls", ".")
    assert (result.exit_code, result.stdout) == (
        0,
        ". holds no checkpoint: none is called step_500, checkpoint-500 or step_500.pt\n",
    )


def test_ls_of_a_checkpoint_itself_says_what_to_do(trimtab, checkpoint):
    checkpoint(100)
    result = trimtab("ckpt", "ls", "runs/a/step_100")
    assert result.exit_code == 1
    assert "List the folder that holds it" in result.stderr


# ----------------------------------------------------------------------------------------------------------------- all


@pytest.mark.parametrize("verb", ["ls", "pick", "verify"])
def test_no_name_of_a_file_acts_on_a_terminal(trimtab, checkpoint, here, verb):
    folder = checkpoint(100, out=f"runs/{ESCAPE}a", because=f"weight{ESCAPE}")
    (folder.parent / f"step_{ESCAPE}\u202e").mkdir()
    (folder / f"more{ESCAPE}").touch()
    result = trimtab("ckpt", verb, folder.parent)
    assert result.exit_code == 0
    # the path that is picked is for a program, byte for byte; on a terminal it is escaped as well
    for text in (result.stdout if verb != "pick" else "", result.stderr):
        assert text.isascii()
        assert "\x1b" not in text


@pytest.mark.skipif(os.geteuid() == 0, reason="root may list any folder")
def test_a_folder_that_may_not_be_listed_hides_no_other(trimtab, checkpoint, here):
    checkpoint(100)
    (here / "runs/closed").mkdir(mode=0)
    assert "runs/a: 1 checkpoint" in trimtab("ckpt", "ls", "runs").stdout


@pytest.mark.parametrize("arguments", [[], ["pick"], ["pic", "runs"], ["ls", "--nothing", "runs"]])
def test_a_call_that_makes_no_sense_is_a_usage_error(trimtab, arguments):
    assert trimtab("ckpt", *arguments).exit_code == 2


def test_no_verb_of_it_imports_torch(checkpoint, here):
    checkpoint(100)
    torch.save({"model": {}, "optimizer": {}, "rng": [], "step": 300}, here / "runs/a/step_300.pt")
    code = (
        "import sys\n"
        "from trimtab.cli import main\n"
        "for verb in (['ls'], ['verify'], ['pick'], ['pick', '--healthy']):\n"
        "    try: main(['ckpt', *verb, 'runs/a'])\n"
        "    except SystemExit as error: assert not error.code, error.code\n"
        "assert not {'torch', 'transformers', 'safetensors'} & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=here)
    assert done.returncode == 0, done.stderr
