"""Two processes save into one folder, and a disk is really full: nothing is lost, and what went wrong is said."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("checkpoint_savers_worker.py")


def run(verb, folder, *arguments):
    command = [sys.executable, WORKER, verb, folder, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_one_run_that_was_started_twice_loses_nothing_and_both_processes_save_all(tmp_path):
    told = run("race", tmp_path / "run", "a", "a", "0")

    for saver in told["savers"]:
        assert saver == {"saved": [1, 2, 3, 4, 5, 6] * 3, "error": None, "heard": []}
    assert told["found"] == {"a": dict.fromkeys("123456", True)}
    assert told["left"] == []


@pytest.mark.long
def test_one_run_that_was_started_twice_and_rotates_has_a_checkpoint_that_loads_at_the_end(tmp_path):
    told = run("race", tmp_path / "run", "a", "a", "2")

    for saver in told["savers"]:
        assert saver["error"] is None
        assert all("step_" in line for line in saver["heard"])  # another process removed what was just written
    assert told["found"]["a"]["6"]
    assert all(told["found"]["a"].values())
    assert told["left"] == []


def test_another_run_in_the_same_folder_is_told_so_at_its_first_save_and_takes_nothing(tmp_path):
    told = run("race", tmp_path / "run", "a", "b", "0")

    # Which of the two was first is chance; from its second round on it goes over its own steps.
    first, second = sorted(told["savers"], key=lambda saver: len(saver["saved"]), reverse=True)
    assert first["error"] is None or "nothing was overwritten" in first["error"] or "not overwritten" in first["error"]
    assert "overwritten" in (second["error"] or " ".join(second["heard"]))
    assert all(all(exact.values()) for exact in told["found"].values())
    assert sum(map(len, told["found"].values())) == 6
    assert told["left"] == []


def check_full(told):
    assert told["found"]["exact"]
    assert told["found"]["goes_on"]
    assert told["left"] == []
    assert told["saved_then"]


def test_a_disk_that_is_really_full_ends_no_training_and_nothing_that_was_saved_is_lost(tmp_path):
    # given
    command = ["mount", "-t", "tmpfs", "-o", "size=200k", "trimtab-test", tmp_path]
    if subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("only root may mount a file system of its own")

    # when
    try:
        told = run("full", tmp_path / "run")
    finally:
        subprocess.run(["umount", tmp_path], check=True)

    # then
    num_saved = told["saved"].index(False)
    assert num_saved > 1
    assert told["saved"] == [True] * num_saved + [False] * (20 - num_saved)
    assert told["found"]["step"] == num_saved
    assert "No space left on device" in told["heard"][0]
    check_full(told)


def test_a_file_that_may_not_grow_so_long_ends_no_training_and_leaves_nothing(tmp_path):
    told = run("limit", tmp_path / "run")

    assert not told["saved"]
    assert told["found"]["step"] == 1
    assert any("File too large" in line for line in told["heard"])
    check_full(told)
