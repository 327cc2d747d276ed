"""FSDP2 through accelerate, which ignores it on the CPU: a guard in a `Trainer` whose parameters are sharded.

It takes the GPUs there are, two at most.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trimtab

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).with_name("hf_fsdp2_of_a_rank.py")


@pytest.fixture
def train(tmp_path):
    def train(*how):
        out = tmp_path / "-".join(how)
        out.mkdir()
        ranks = min(torch.cuda.device_count(), 2)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        done = subprocess.run([*torchrun, PROGRAM, out, *how], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        told = json.loads((out / "told.json").read_text())
        return told | dict(weights=torch.load(out / "weights.pt"))

    return train


def same(found, expected):
    return all(torch.equal(found["weights"][name], value) for name, value in expected["weights"].items())


def test_a_guard_that_leaves_nothing_out_changes_nothing(train):
    plain, guarded = train("plain"), train("guarded")
    assert guarded["is_fsdp2"]
    assert same(guarded, plain)


def test_a_bad_micro_batch_is_left_out_as_if_it_had_never_been_there(train):
    guarded, oracle = train("guarded", "bad"), train("oracle", "bad")
    assert same(guarded, oracle)
    steps = trimtab.open_log(guarded["folder"]).step_columns()
    assert steps.num_skipped_micros.sum() > 0
    assert trimtab.rewind(guarded["folder"]).rows[0].row == guarded["bad"]
