"""The engine: what an evaluation looks at and finds, the precision of a preset, and the clock of the schedule."""

from dataclasses import replace

import pytest
import torch

from recipes.twin_moe.engine import Engine
from recipes.twin_moe.tests.small_twin import engine_with, saved, small
from recipes.twin_moe.train import train

HALF = replace(small(num_steps=16), precision="bfloat16")


# Evaluation.


def test_an_evaluation_finds_what_a_loop_over_tokens_finds():
    # given: routers that are not even, the first of which sends every token to 0 and 2, or else to 1 and 3
    config = small()
    with Engine(config, out=None) as engine, torch.no_grad():
        for router in engine.model.routers:
            router.linear.weight.mul_(30)
        weight = engine.model.routers[0].linear.weight
        for expert, scale in enumerate([1.0, -1.0, 0.9, -0.9, 0.0, 0.0, 0.0, 0.0]):
            weight[expert] = scale * weight[0]
        # when
        found = engine.evaluate()
        losses, zs, of_first, chosen = [], [], [0, 0], [set(), set()]
        for batch in engine._held_out:
            output = engine.model(batch.input_ids)
            for row in range(batch.labels.shape[0]):
                for place, label in enumerate(batch.labels[row].tolist()):
                    losses.append(-output.logits[row, place].double().log_softmax(-1)[label].item())
            for layer, logits in enumerate(output.router_logits):
                for token in logits.flatten(0, 1).double().tolist():
                    zs.append(torch.tensor(token, dtype=torch.float64).exp().sum().log().item() ** 2)
                    best = sorted(range(8), key=lambda expert: -token[expert])[:2]
                    of_first[layer] += sum(expert < 4 for expert in best)
                    chosen[layer].update(best)
    # then: population 0 is experts 0 to 3
    num_tokens = len(losses)
    assert found.ce == pytest.approx(sum(losses) / num_tokens, rel=1e-5)
    assert found.z == pytest.approx(sum(zs) / len(zs), rel=1e-5)
    first = sum(count / (2 * num_tokens) for count in of_first) / 2
    assert found.population_shares == pytest.approx([first, 1 - first], rel=1e-6)
    assert 0.6 < first < 0.9
    assert found.dead_fraction == pytest.approx(sum(8 - len(experts) for experts in chosen) / 16)
    assert found.dead_fraction >= 0.25


@pytest.mark.parametrize(("num_tokens", "is_known"), [(47, False), (49, True)])
def test_where_so_few_tokens_prove_nothing_the_dead_fraction_is_not_known(num_tokens, is_known):
    # given: 2 of 8 experts are chosen, and 0.75 ** 48 is 1.0e-6
    config = small()
    config = replace(config, data=replace(config.data, batch_size=1, num_tokens=num_tokens, num_eval_batches=1))
    with Engine(config, out=None) as engine:
        assert (engine.evaluate().dead_fraction is not None) == is_known


# The schedule.


def test_the_schedule_goes_on_with_a_step_that_the_optimizer_did_not_take():
    # given: a warm-up of 10 steps from a tenth of 3e-3, in equal stages
    def spoil(module, inputs, logits):
        return logits * torch.nan if engine.step == 1 else logits

    with Engine(small(), out=None) as engine:
        engine.model.head.register_forward_hook(spoil)
        # when
        outcomes = [engine.train_step().outcome for _ in range(4)]
    # then
    assert [outcome.reason for outcome in outcomes] == ["stepped", "all_skipped", "stepped", "stepped"]
    stage = (3e-3 - 3e-4) / 10
    assert [outcomes[step].lr for step in (0, 2, 3)] == pytest.approx([3e-4, 3e-4 + 2 * stage, 3e-4 + 3 * stage])


# Precision.


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
def test_a_preset_of_half_precision_computes_in_it_and_routes_and_keeps_weights_in_full(precision):
    # given
    seen = []

    def look(module, inputs, output):
        experts = module.blocks[0].experts
        seen.append((module.training, output.logits.dtype, {logits.dtype for logits in output.router_logits}))
        assert experts.gate_up.dtype == torch.float32

    def look_inside(module, inputs, output):
        seen.append((module.training, output.dtype, {inputs[1].dtype}))

    with Engine(replace(small(), precision=precision), out=None) as engine:
        engine.model.register_forward_hook(look)
        engine.model.blocks[1].experts.register_forward_hook(look_inside)
        # when
        engine.train_step()
        engine.evaluate()
        gradients = {parameter.grad.dtype for parameter in engine.model.parameters() if parameter.grad is not None}
    # then: of each forward, the experts with their routers' weights, and the logits of bytes and of routers
    computed = getattr(torch, precision)
    assert all((kind, routed) == (computed, {torch.float32}) for _, kind, routed in seen)
    assert {is_training for is_training, _, _ in seen} == {True, False}
    assert gradients <= {torch.float32}


def test_half_precision_learns_and_a_resume_is_the_same_to_the_last_bit(tmp_path):
    # given
    losses = []
    watch = engine_with(lambda engine: losses.append(engine.loss))
    train(HALF, out=tmp_path / "whole", tell=lambda line: None, make_engine=watch)
    assert losses[-1] < losses[0] - 0.2
    # when
    train(HALF, out=tmp_path / "parts", stop_at=7, tell=lambda line: None)
    ended = train(HALF, out=tmp_path / "parts", tell=lambda line: None)
    # then
    assert ended.round_trip.same
    whole, parts = (saved(tmp_path / name / "segment_1" / "step_16") for name in ("whole", "parts"))
    for part in ("weights", "moments"):
        assert repr(_plain(whole[part])) == repr(_plain(parts[part]))
    assert whole["data"] == parts["data"]


def _plain(tree):
    """Tensors as lists: their repr is the whole of them, and a NaN is one."""
    if isinstance(tree, torch.Tensor):
        return tree.tolist()
    if isinstance(tree, dict):
        return {name: _plain(value) for name, value in tree.items()}
    return [_plain(value) for value in tree] if isinstance(tree, list | tuple) else tree
