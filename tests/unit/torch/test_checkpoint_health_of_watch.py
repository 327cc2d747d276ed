"""A checkpoint that is saved while a watch calls the model unhealthy says so, and which one to go on from is told."""

import json
import math

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from trimtab import Run
from trimtab.checkpoint import Checkpointer
from trimtab.cli import main
from trimtab.errors import CheckpointError
from trimtab.resume.manifest import read_manifest
from trimtab.torch.watch_in_saves import payload_bytes

COLLAPSED = "layer 0.gate sends all of 4,096 tokens to expert 1"


class Watched:
    """Stands for a run whose watch has judged what the test says, once its state was taken."""

    run_id = "a"

    def __init__(self, *standing, since=None):
        self.standing = standing
        self.since = since
        self.asked = []

    def state_dict(self):
        self.asked.append("state")
        return {"version": 1}

    def unhealthy_because(self):
        self.asked.append("health")
        return self.standing

    def unhealthy_since(self):
        return self.since

    def before_save(self, needed_bytes):
        self.asked.append(needed_bytes)


@pytest.fixture
def parts():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return {"model": model, "optimizer": optimizer}


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpointer(tmp_path)


def answer(*arguments):
    done = CliRunner().invoke(main, ["ckpt", *arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_a_standing_finding_makes_a_checkpoint_unhealthy_and_is_its_reason(parts, checkpoints, caplog):
    info = checkpoints.save(1, **parts, run=Watched(COLLAPSED))
    assert info.healthy is False
    assert read_manifest(info.path).unhealthy_because == (COLLAPSED,)
    assert f"step_1 is saved and not healthy: {COLLAPSED}" in caplog.text


def test_a_watch_that_has_nothing_to_say_leaves_it_healthy(parts, checkpoints):
    assert checkpoints.save(1, **parts, run=Watched()).healthy is True


def test_what_the_watch_says_stands_beside_what_is_not_finite(parts, checkpoints):
    # given
    checkpoints.save(1, **parts, run=Watched())
    with torch.no_grad():
        parts["model"].weight[0, 0] = math.nan
    # when
    info = checkpoints.save(2, **parts, run=Watched(COLLAPSED))
    # then
    weight, watched = read_manifest(info.path).unhealthy_because
    assert weight.startswith("model's weight: 1 entry is NaN")
    assert watched == COLLAPSED


@pytest.mark.parametrize(("said", "because"), [(True, ()), (False, ("the caller said so (healthy=False)", COLLAPSED))])
def test_what_the_caller_says_of_the_health_rules(parts, checkpoints, said, because):
    info = checkpoints.save(1, **parts, run=Watched(COLLAPSED), healthy=said)
    assert info.healthy is said
    assert read_manifest(info.path).unhealthy_because == because


def test_the_watch_is_asked_after_it_has_judged_all_there_is_and_looked_at_the_memory(parts, checkpoints):
    # given 8 weights of 4 bytes, two moments of each, and the step count of both tensors
    run = Watched()
    # when
    checkpoints.save(1, **parts, run=run)
    # then
    assert run.asked == [3 * 8 * 4 + 2 * 4, "state", "health"]


def test_a_kit_or_a_guard_has_no_watch_and_needs_none(parts, checkpoints):
    class Guard:
        def state_dict(self):
            return {"version": 1}

    assert checkpoints.save(1, **parts, run=Guard()).healthy is True


def test_a_tied_weight_is_needed_once_and_one_without_memory_not_at_all():
    tied = nn.ModuleDict({"embedding": nn.Embedding(4, 3), "head": nn.Linear(3, 4, bias=False)})
    tied["head"].weight = tied["embedding"].weight
    tied["later"] = nn.Linear(5, 5, device="meta")
    optimizer = torch.optim.SGD(tied["embedding"].parameters(), lr=0.1)
    assert payload_bytes(tied, optimizer) == 4 * 3 * 4


def test_a_plain_resume_refuses_it_and_names_the_last_healthy_one(parts, checkpoints, tmp_path):
    # given
    checkpoints.save(1, **parts, run=Watched())
    checkpoints.save(2, **parts, run=Watched(COLLAPSED))
    # then
    with pytest.raises(CheckpointError, match="step_1") as refused:
        checkpoints.load(checkpoints.pick(), **parts)
    assert COLLAPSED in str(refused.value)
    assert checkpoints.pick(healthy=True).step == 1
    # and on the command line
    [folder] = json.loads(answer("ls", "--json", "-", str(tmp_path)))["folders"]
    assert {one["step"]: one["healthy"] for one in folder["checkpoints"]} == {1: True, 2: False}
    assert answer("pick", "--healthy", str(tmp_path)).strip().endswith("step_1")


def test_the_last_healthy_one_outlives_a_rotation_of_what_the_watch_calls_unhealthy(parts, tmp_path):
    checkpoints = Checkpointer(tmp_path, keep=1)
    for step, standing in enumerate([(), (COLLAPSED,), (COLLAPSED,), (COLLAPSED,)], start=1):
        checkpoints.save(step, **parts, run=Watched(*standing))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step_1", "step_4"]


def test_what_was_saved_since_all_was_known_to_be_well_is_not_gone_on_from(parts, tmp_path):
    # given a finding at step 4 that may have begun after step 1, and a rotation that keeps three
    checkpoints = Checkpointer(tmp_path, keep=3)
    for step in (1, 2, 3):
        checkpoints.save(step, **parts, run=Watched())
    # when
    info = checkpoints.save(4, **parts, run=Watched(COLLAPSED, since=1))
    # then the last one before it stays, is picked, and is named where the newest is refused
    assert (read_manifest(info.path).unhealthy_since, info.unhealthy_since) == (1, 1)
    assert checkpoints.pick(healthy=True).step == 1
    with pytest.raises(CheckpointError, match="step_1: use pick"):
        checkpoints.load(checkpoints.pick(), **parts)


def test_a_checkpoint_that_the_caller_calls_healthy_throws_no_doubt_on_others(parts, checkpoints):
    checkpoints.save(1, **parts, run=Watched())
    checkpoints.save(2, **parts, run=Watched())
    assert checkpoints.save(3, **parts, run=Watched(COLLAPSED, since=1), healthy=True).unhealthy_since is None
    assert checkpoints.pick(healthy=True).step == 3


def test_a_long_reason_is_said_in_full_once(parts, checkpoints, caplog):
    text = (
        "in layer 0.gate the load has collapsed: nearly all tokens go to few experts (8 experts: load entropy 0.6931)"
    )
    for step in (1, 2, 3):
        when = "at step 1" if step == 1 else f"since step 1, last seen at step {step}"
        checkpoints.save(step, **parts, run=Watched(f"collapse in 0.gate {when}: {text}"))
    assert caplog.text.count(text) == 1
    assert "step_3 is saved and not healthy: collapse in 0.gate since step 1, last seen at step 3" in caplog.text


def test_a_loop_whose_evaluations_get_worse_goes_on_from_its_best(tmp_path):
    # given evaluations behind every fourth step, each worse than the one before
    checkpoints = Checkpointer(tmp_path / "checkpoints")

    def begin():
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = Run(tmp_path, model=model, optimizer=optimizer, watch=True)
        return {"model": model, "optimizer": optimizer, "run": run}

    def train(steps, losses, *, model, optimizer, run):
        for step in steps:
            run.micro_batch(model(torch.ones(4, 3)).square().mean(dim=1), per="sample", rows=range(4)).backward()
            run.step()
            if step % 4 == 0:
                run.evaluation(losses[step])
                checkpoints.save(step, model=model, optimizer=optimizer, run=run)

    first = begin()
    with first["run"]:
        train(range(1, 17), {4: 3.57, 8: 3.94, 12: 4.54, 16: 4.99}, **first)
    # then the checkpoint to go on from is the best, not the last one before the finding
    info = checkpoints.pick(healthy=True)
    assert info.step == 4
    assert "eval_regression at step 16" in info.refused[0].reason
    # and what goes on from there begins without a streak: two evaluations that are worse by a little are two
    second = begin()
    with second["run"]:
        checkpoints.load(info, **second)
        train(range(5, 13), {8: 3.58, 12: 3.59}, **second)
        assert second["run"].unhealthy_because() == ()
    assert checkpoints.pick(healthy=True).step == 12
