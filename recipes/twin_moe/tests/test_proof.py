"""The trainer's own step leaves no trace of a micro-batch that the guard leaves out, and weighs its terms as stated."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import trimtab
from recipes.twin_moe.data import Batch
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.losses import loss_terms
from recipes.twin_moe.proof import audit, build
from recipes.twin_moe.tests.small_twin import small

ROOT = Path(__file__).parents[3]


def weights(model):
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def trained(loop):
    loop.train(loop.windows)
    return weights(loop.model)


def test_the_factory_gives_the_same_loop_each_time_and_an_idle_guard_changes_nothing():
    without = trained(build(None))
    assert torch.equal(trained(build(None)), without)
    assert torch.equal(trained(build(trimtab.GuardConfig(rule="robust"))), without)


def test_a_micro_batch_of_nan_is_left_out_with_its_terms_and_one_that_is_left_out_whole_moves_nothing():
    # given: every micro-batch of the third window is spoiled, in a training whose xpop has its weight, too
    config = replace(small(), accumulation=3)
    engine = Engine(config, out=None)
    for _ in range(2):
        engine.train_step()
    before = weights(engine.model)
    # when
    spoiling = engine.model.register_forward_hook(
        lambda model, args, output: output._replace(logits=output.logits * torch.nan)
    )
    outcome = engine.train_step().outcome
    spoiling.remove()
    # then
    assert (outcome.reason, outcome.num_skipped_micros) == ("all_skipped", 3)
    assert torch.equal(weights(engine.model), before)
    assert engine.scheduler.last_epoch == 3  # the window is the schedule's clock
    engine.train_step()
    assert not torch.equal(weights(engine.model), before)
    engine.close()


def test_the_audit_finds_the_weights_that_the_preset_states():
    found = build(None).audit()
    assert found.is_sound, (found.findings, found.notes)
    assert {term.name: term.stated for term in found.weights} == {"z": 1e-4, "load_balance": 0.01}
    for term in found.weights:
        assert term.found == pytest.approx(term.stated, rel=0.1)


def test_the_audit_names_a_weight_that_is_ten_times_what_is_stated(monkeypatch):
    # given
    config = replace(small(), optim=replace(small().optim, xpop_weight=0.0))
    engine = Engine(config, out=None)
    batches = [Batch(*parts) for micros in build(None).windows for parts in micros]

    def louder(output, labels, *, optim, model):
        return loss_terms(output, labels, optim=replace(optim, z_weight=10 * optim.z_weight), model=model)

    monkeypatch.setattr("recipes.twin_moe.proof.loss_terms", louder)
    # when
    found = audit(engine, batches)
    # then
    [z] = [term for term in found.weights if term.name == "z"]
    assert z.found == pytest.approx(1e-3, rel=0.1)
    assert found.findings
    engine.close()


@pytest.mark.long
def test_the_proof_of_the_trainer_holds():
    command = [Path(sys.executable).with_name("trimtab"), "prove", "recipes.twin_moe.proof:build", "--processes", "1"]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proof:build: proven. 26 cases" in done.stdout
