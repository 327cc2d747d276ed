"""A process that saves in a loop is killed at random moments: what was there, or newer, always loads bit-exact."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

WORKER = Path(__file__).with_name("checkpoint_crash_worker.py")


@pytest.mark.parametrize(("num_kills", "seed"), [(10, 1), pytest.param(100, 2, marks=pytest.mark.long)])
def test_a_run_that_is_killed_at_random_moments_never_loses_a_checkpoint_that_it_had(tmp_path, num_kills, seed):
    # when
    command = [sys.executable, WORKER, "loop", tmp_path / "run", str(num_kills), str(seed)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr[-4000:]
    told = json.loads(run.stdout.splitlines()[-1])

    # then
    had = 0
    for each in told["rounds"]:
        step = each["found"]["step"]
        had = max(had, *each["acknowledged"], 0)
        if had == 0 and step is None:
            continue  # killed before the first save was through
        assert step >= had, each
        assert each["found"]["exact"], each
        assert each["found"]["goes_on"], each
        had = step
    assert sum(len(each["acknowledged"]) for each in told["rounds"]) > num_kills
    assert told["left"] == []
    assert told["num_left"] == 2
