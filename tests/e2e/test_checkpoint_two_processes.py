"""Two real processes save and load as one: they agree on which checkpoint, and each knows what the other could not."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from trimtab.checkpoint import Checkpointer, verify

WORKER = Path(__file__).with_name("checkpoint_ranks_worker.py")


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(WORKER)


@pytest.mark.parametrize("wait", [True, False])
def test_both_ranks_go_on_with_the_same_bits(wait, pair, tmp_path):
    first, second = pair.call("go_on", folder=str(tmp_path), wait=wait)
    assert first["same"] == second["same"] == [True, True]
    assert first["losses"] != second["losses"]  # each on rows and with dropout of its own
    assert first["info"] == second["info"]
    assert first["run_id"] == second["run_id"]
    assert first["result"] == [3, 0.5, {"rows": 10}, [{"rows": 10}, {"rows": 11}], []]
    assert second["result"] == [3, 0.5, {"rows": 11}, [{"rows": 10}, {"rows": 11}], []]
    report = verify(tmp_path / "step_3")
    assert report.ok
    assert sorted(path.name for path in report.path.iterdir()) == [
        "model.pt",
        "optimizer.pt",
        "rank_0.pt",
        "rank_1.pt",
        "run.pt",
        "trimtab_manifest.json",
    ]


def test_one_process_loads_what_two_have_saved_and_says_what_it_cannot_put_back(pair, tmp_path):
    pair.call("go_on", folder=str(tmp_path), wait=True)
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    checkpoints = Checkpointer(tmp_path)
    resumed = checkpoints.load(checkpoints.pick(), model=model, optimizer=optimizer, scheduler=scheduler)
    assert resumed.data is None
    assert resumed.data_of_ranks == ({"rows": 10}, {"rows": 11})
    assert resumed.remarks == (
        "saved on 2 ranks and loaded on 1: the random numbers of ranks from 1 on are left aside",
        "the ranks had different data positions, and other ranks split the data otherwise: none was put back; see "
        "Resumed.data_of_ranks",
    )


def test_two_processes_load_what_one_has_saved(pair, tmp_path):
    model = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    Checkpointer(tmp_path).save(3, model=model, optimizer=optimizer, scheduler=scheduler)
    first, second = pair.call("pick_and_load", folder=str(tmp_path))
    assert first == second == [True, [str(tmp_path / "step_3"), 3], [str(tmp_path / "step_3"), 3]]


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize("full", [0, 1])
def test_a_rank_without_room_makes_both_say_the_same(full, wait, pair, tmp_path):
    for on_failure in ("continue", "raise"):
        folder = tmp_path / on_failure
        folder.mkdir()
        first, second = pair.call(
            "save_on_a_full_disk", folder=str(folder), full=full, on_failure=on_failure, wait=wait
        )
        assert first[1] == []
        assert first[2:] == second[2:] == [[str(folder / "step_2"), 2]] * 2
        expected = f"CheckpointError: the checkpoint of step 1 was not saved: rank {full}: No space left on device"
        assert first[0] == second[0] == (expected if on_failure == "raise" else None)
    assert f"was not saved: rank {full}: No space left on device; what was saved" in pair.said()[0]
    assert "; what was saved" not in pair.said()[1]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("step", "The ranks save different things: for step rank 1 has 4, and rank 0 3."),
        (
            "parts",
            "The ranks save different things: for parts rank 1 has ['extra', 'scheduler'], and rank 0 ['scheduler']",
        ),
        ("opaque", "rank 1: extra is a builtins.object, which only a pickle could bring back"),
    ],
)
def test_ranks_that_save_different_things_are_refused_alike(what, message, pair, tmp_path):
    first, second = pair.call("save_what_differs", folder=str(tmp_path), what=what)
    assert first == second
    assert first[0].startswith(f"UsageError: {message}")
    assert first[1] == [str(tmp_path / "step_9"), 9]


def test_rank_0_decides_where_the_other_sees_nothing(pair, tmp_path):
    nothing_first, nothing_second = pair.call("pick_and_load", folder=str(tmp_path))
    assert nothing_first == nothing_second
    assert nothing_first[0] is False
    assert nothing_first[1].startswith("CheckpointError: ")

    pair.call("go_on", folder=str(tmp_path), wait=True)
    first, second = pair.call("pick_and_load", folder=str(tmp_path), seen_by=0)
    assert first == second
    assert first[1] == [str(tmp_path / "step_3"), 3]
    first, second = pair.call("pick_and_load", folder=str(tmp_path), seen_by=1)
    assert first == second
    assert first[1].startswith("CheckpointError: ")


def test_one_rank_with_another_model_keeps_both_from_loading(pair, tmp_path):
    pair.call("go_on", folder=str(tmp_path), wait=True)
    first, second = pair.call("load_with_a_rank_of_another_model", folder=str(tmp_path))
    assert first[0] == second[0]
    assert first[0].startswith("CheckpointError: rank 1: ")
    assert first[1] is second[1] is True


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("path", "for the checkpoint rank 1 has '{folder}/step_3', and rank 0 '{folder}/step_4'."),
        ("optimizer", "for what is loaded rank 1 has 'model', and rank 0 'model, optimizer and scheduler'."),
        ("lr", "for lr rank 1 has None, and rank 0 0.005."),
    ],
)
def test_ranks_that_load_different_things_are_refused_alike_and_stay_as_they_were(what, message, pair, tmp_path):
    first, second = pair.call("load_what_differs", folder=str(tmp_path), what=what, timeout_s=60)
    assert first == second
    assert first[0].startswith(f"UsageError: The ranks load different things: {message.format(folder=tmp_path)}")
    assert first[1] is True


def test_a_rate_that_is_none_on_one_rank_is_refused_on_both(pair, tmp_path):
    first, second = pair.call("load_what_differs", folder=str(tmp_path), what="rate", timeout_s=60)
    assert first == second
    assert first[0].startswith("UsageError: rank 1: lr=-1.0")


@pytest.mark.parametrize("what", ["optimizer", "model", "run"])
def test_what_one_rank_refuses_is_put_back_on_both(what, pair, tmp_path):
    first, second = pair.call("load_what_one_rank_refuses", folder=str(tmp_path), what=what, timeout_s=60)
    assert first == second
    assert first[0] == (
        f"CheckpointError: rank 1: {tmp_path / 'step_2'}: its state was refused: RuntimeError: planted. Nothing was "
        "loaded. There is no other in its folder that a run can go on from."
    )
    assert first[1] is True


def test_a_loader_that_one_rank_refuses_is_named_on_both(pair, tmp_path):
    first, second = pair.call("load_what_one_rank_refuses", folder=str(tmp_path), what="data", timeout_s=60)
    assert first == second
    assert "planted. data may be half loaded: make them anew before you go on. " in first[0]
    assert first[1] is True


def test_ranks_of_other_groups_save_for_themselves(pair, tmp_path):
    first, second = pair.call("save_in_groups_of_one", folder=str(tmp_path))
    assert [first, second] == [[[str(tmp_path / str(rank) / f"step_{rank}"), rank]] for rank in range(2)]


def test_a_process_does_not_end_before_its_thread_has_saved(tmp_path):
    ended = subprocess.run([sys.executable, WORKER, tmp_path], capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    assert verify(tmp_path / "step_1").ok
    assert json.loads((tmp_path / "step_1" / "trimtab_manifest.json").read_text())["manifest"]["step"] == 1
