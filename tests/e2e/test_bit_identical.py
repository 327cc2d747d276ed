"""A training that was killed and went on is the one that was not: parameters, moments, losses, rows, random numbers."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

from trimtab.cli import main

WORKER = Path(__file__).with_name("bit_identical_worker.py")


@pytest.fixture(scope="module")
def worker():
    spec = importlib.util.spec_from_file_location("bit_identical_worker", WORKER)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def run(out, *, num_workers=0, guard="guard", dies_in=0, num_ranks=1):
    """Trains in processes of their own; the code each ended with."""
    command = [sys.executable, str(WORKER), str(out), str(num_workers), guard, str(dies_in)]
    port = free_port()
    environments = [
        {"RANK": str(rank), "WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        if num_ranks > 1
        else {}
        for rank in range(num_ranks)
    ]
    processes = [
        subprocess.Popen(command, env=os.environ | more, stderr=subprocess.PIPE, text=True) for more in environments
    ]
    said = [process.communicate(timeout=240)[1] for process in processes]
    codes = [process.returncode for process in processes]
    assert set(codes) <= {0, -signal.SIGKILL}, said
    return codes


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def compare(first, second):
    """What `trimtab compare` says."""
    command = ["compare", str(first / "log"), str(second / "log"), "--json", "-"]
    ended = CliRunner().invoke(main, command)
    assert ended.exit_code in (0, 3), ended.output
    return json.loads(ended.stdout)


def check_same(tmp_path, whole, resumed):
    assert whole == resumed
    answer = compare(tmp_path / "whole", tmp_path / "killed")
    assert (answer["same"], answer["first"], answer["num_steps"]) == (True, None, 24), answer


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_kill_inside_an_epoch_changes_no_bit(num_workers, worker, tmp_path):
    assert run(tmp_path / "killed", dies_in=13, num_workers=num_workers) == [-signal.SIGKILL]
    whole, resumed = (
        worker.train(worker.Settings(out=str(tmp_path / name), save_every=5, num_workers=num_workers))
        for name in ("whole", "killed")
    )
    check_same(tmp_path, whole, resumed)
    assert whole["num_skipped"] > 0  # the guard's history was needed


@pytest.mark.long
@pytest.mark.parametrize("dies_in", [8, 16, 24])
@pytest.mark.parametrize("guard", ["guard", "no guard"])
def test_a_kill_of_both_ranks_changes_no_bit(guard, dies_in, tmp_path):
    settings = {"guard": guard, "num_ranks": 2}
    assert run(tmp_path / "whole", **settings) == [0, 0]
    assert run(tmp_path / "killed", dies_in=dies_in, **settings) == [-signal.SIGKILL] * 2
    assert run(tmp_path / "killed", **settings) == [0, 0]
    whole, resumed = (
        [torch.load(tmp_path / name / f"result-{rank}.pt", weights_only=True) for rank in range(2)]
        for name in ("whole", "killed")
    )
    check_same(tmp_path, whole, resumed)
    first, second = whole
    assert first["bits"] == second["bits"]
    assert first["random"] != second["random"]


def test_at_each_of_the_first_steps_a_resume_changes_no_bit(worker, tmp_path):
    assert worker.at_every_step(str(tmp_path), num_steps=6) == [True] * 5


@pytest.mark.long
@pytest.mark.parametrize("guard", [True, False])
def test_at_every_step_a_resume_changes_no_bit(guard, worker, tmp_path):
    assert worker.at_every_step(str(tmp_path), num_steps=24, guard=guard) == [True] * 23


@pytest.mark.long
@pytest.mark.parametrize("save_every", [3, 7])
def test_at_every_step_with_workers_and_steps_that_are_trained_again(save_every, worker, tmp_path):
    same = worker.at_every_step(str(tmp_path), num_steps=16, num_workers=2, save_every=save_every)
    assert same == [True] * 15


@pytest.mark.long
def test_both_ranks_at_every_step(rank_pair, tmp_path):
    first, second = rank_pair(WORKER).call("at_every_step", out=str(tmp_path), num_steps=12)
    assert first == second == [True] * 11


def test_the_judge_sees_a_resume_that_goes_wrong(worker, tmp_path, monkeypatch):
    # The same, with a data position that is one batch off.
    whole = worker.train(worker.Settings(out=str(tmp_path / "whole"), save_every=5))
    with pytest.raises(worker.Killed):
        worker.train(worker.Settings(out=str(tmp_path / "killed"), save_every=5, dies_in=8))
    real = worker.batches
    monkeypatch.setattr(
        worker,
        "batches",
        lambda position, **more: real(position | {"batches": max(0, position["batches"] - 1)}, **more),
    )
    resumed = worker.train(worker.Settings(out=str(tmp_path / "killed"), save_every=5))
    assert resumed != whole
    answer = compare(tmp_path / "whole", tmp_path / "killed")
    assert not answer["same"]
    assert answer["first"]["step"] == 6
