"""What stands where in the recipe: the presets' numbers, and Trimtab around the loop as a training engine shows it."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import trimtab
from recipes.twin_moe.config import presets, read_preset
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.losses import loss_terms
from recipes.twin_moe.model import TwinMoe
from recipes.twin_moe.tests.small_twin import small
from trimtab.checkpoint import Checkpointer

RECIPE = Path(__file__).parents[1]

ADVICE = re.compile(
    r"\b(larger|bigger|looser|higher|raise|raised|increase|loosen|widen)( the| your| a)? (gradient )?clip"
    r"|\b(raise|increase|loosen) (the |your )?`?max_grad_norm"
    r"|\b(delete|drop|remove|leave out|switch off|disable)( the| a| its)? "
    r"(router z|z.?loss|load balanc|loss term|aux|xpop|lbl)"
    r"|\b(stack|combine|chain|multiply together)( the| several)? multipliers",
    re.IGNORECASE,
)
"""What no text of the recipe may tell a reader to do."""

A_REFUSAL = re.compile(r"\b(never|nobody|no|not|nor|neither|without|instead of)\b", re.IGNORECASE)


def test_local140a50_is_the_run_that_the_rules_of_the_watch_come_from():
    config = read_preset("local140a50")
    model, data, optim = config.model, config.data, config.optim
    assert (model.num_layers, model.num_experts, model.num_populations) == (14, 48, 2)
    assert (data.batch_size, data.num_tokens, config.accumulation) == (2, 512, 1)
    assert (config.num_steps, optim.warmup_steps, optim.max_grad_norm) == (10_000, 200, 1.0)
    assert (optim.lbl_weight, optim.z_weight, optim.xpop_weight) == (0.01, 1e-4, 0.01)
    assert (config.eval_every, config.save_every, config.keep) == (250, 500, 5)
    assert optim.lr == 3e-4
    assert optim.min_lr == 0


def test_local140a50_has_about_146_million_parameters_of_which_about_50_act_on_a_token():
    with torch.device("meta"):
        total, active = TwinMoe(read_preset("local140a50")).num_parameters()
    assert total == pytest.approx(146.5e6, rel=0.02)
    assert active == pytest.approx(50e6, rel=0.05)


def test_tiny_is_the_same_kind_of_model_in_the_same_loss_and_looks_more_often():
    tiny, local = read_preset("tiny"), read_preset("local140a50")
    assert (tiny.eval_every, tiny.save_every, tiny.report_every, tiny.keep) == (25, 50, 25, 5)
    assert tiny.model.num_populations == local.model.num_populations
    assert tiny.model.num_experts // tiny.model.top_k == local.model.num_experts // local.model.top_k
    for name in ("lbl_weight", "z_weight", "xpop_weight", "max_grad_norm"):
        assert getattr(tiny.optim, name) == getattr(local.optim, name)


@pytest.mark.parametrize("preset", presets())
def test_every_cadence_of_a_preset_meets_its_last_step(preset):
    config = read_preset(preset)
    for every in (config.eval_every, config.save_every, config.report_every, config.log_every):
        assert config.num_steps % every == 0


def test_a_step_is_that_of_the_stated_loss_clipped_once():
    # given the same weights, with and without Trimtab; a clip that cuts
    config = small()
    config = replace(config, optim=replace(config.optim, max_grad_norm=0.1, z_weight=0.05))
    bare = TwinMoe(config)
    with Engine(config, out=None) as engine:
        micro_batches = [engine._batches[number] for number in range(2)]

        # when
        measured = engine.train_step(micro_batches)
        for batch in micro_batches:
            terms = loss_terms(bare(batch.input_ids), batch.labels, optim=config.optim, model=bare)
            ((terms.token_losses.mean() + terms.aux) / 2).backward()
        norm = torch.nn.utils.clip_grad_norm_(bare.parameters(), 0.1)
        groups = [
            {"params": [part for part in bare.parameters() if part.dim() > 1]},
            {"params": [part for part in bare.parameters() if part.dim() == 1], "weight_decay": 0.0},
        ]
        lr = config.optim.lr / config.optim.warmup_steps  # of the first step
        torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), weight_decay=config.optim.weight_decay).step()

        # then
        assert norm > 0.1
        assert measured.outcome.grad_norm == pytest.approx(norm.item(), rel=1e-5)  # before clipping
        for name, parameter in engine.model.named_parameters():
            torch.testing.assert_close(parameter, bare.get_parameter(name), rtol=0, atol=1e-6, msg=name)


def test_a_broken_micro_batch_is_left_out_with_all_of_its_terms():
    # given weights of one byte that are not finite, and a micro-batch with that byte beside one without it
    with Engine(small(), out=None) as engine:
        broken, sound = engine._batches[0], engine._batches[1]
        broken.input_ids[0, 0], sound.input_ids[sound.input_ids == 255] = 255, 0
        with torch.no_grad():
            engine.model.embedding.weight[255] = torch.nan

        # when
        outcome = engine.train_step([broken, sound]).outcome

        # then: a router's z is not finite there either, and would reach every weight by the loss
        assert outcome.stepped
        assert outcome.num_skipped_micros == 1
        assert all(bool(part.isfinite().all()) for name, part in engine.model.named_parameters() if "embed" not in name)


def test_a_term_that_overflows_is_judged_with_the_losses_beside_it():
    # given a router so sure that the square of its logits is infinite, while every token's loss is an ordinary one
    with Engine(small(), out=None) as engine:
        with torch.no_grad():
            engine.model.routers[0].linear.weight.mul_(1e25)
        before = {name: part.clone() for name, part in engine.model.named_parameters()}

        # when
        measured = engine.train_step()

        # then
        assert measured.outcome.reason == "all_skipped"
        assert measured.outcome.num_skipped_micros == 2
        assert all(part.equal(before[name]) for name, part in engine.model.named_parameters())


def test_the_run_records_rows_and_evaluations_watches_all_routers_and_states_its_schedule(tmp_path):
    # when
    with Engine(small(), out=tmp_path) as engine:
        rows = [row for number in range(20) for row in engine._batches[number].rows.tolist()]
        for _ in range(10):
            engine.train_step()
        folder = engine.run.folder

    # then
    log = trimtab.open_log(folder)
    assert sorted(set(log.rows().numpy()["row"].tolist())) == sorted(set(rows))
    kinds = log.events().numpy()["kind"].tolist()
    assert {"watch", "schedule", "router", "end"} <= set(kinds)
    facts = log.events().numpy()["facts"].tolist()[kinds.index("router")]
    assert '"num_populations": 2' in facts
    for layer in range(2):
        assert f"blocks.{layer}.router" in facts
    assert "population_cosine" in facts
    assert folder == tmp_path / "trimtab" / log.header.run_id


def test_a_checkpoint_has_all_that_decides_how_training_goes_on(tmp_path):
    with Engine(small(), out=tmp_path) as engine:
        for _ in range(15):
            engine.train_step()
        engine.run.evaluation(engine.evaluate().ce)
        checkpoint = engine.save(Checkpointer(tmp_path / "segment_1"), best_eval=engine.best_eval())
    deciding = {"model", "optimizer", "step", "rng", "scheduler", "data", "guard", "watch"}
    assert deciding | {"loss", "best_eval", "config"} <= set(checkpoint.parts)
    assert checkpoint.missing == ()


@pytest.mark.parametrize("name", ["micro_batch", "backward", "train_step", "evaluation", "round_trip"])
def test_what_a_step_is_made_of_is_called_in_one_place(name):
    """A second backward, or a term that is added elsewhere, would be a loss that no test knows of."""
    outside = {"probe.py", "proof.py"}  # which train without a history
    places = [
        path.name
        for path in sorted(RECIPE.glob("*.py"))
        if path.name not in outside
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name
    ]
    assert len(places) == 1


def test_nothing_clips_beside_the_run():
    assert not [path.name for path in RECIPE.glob("*.py") if "clip_grad" in path.read_text()]


@pytest.mark.parametrize(
    "text",
    [
        "Use a larger clip.",
        "Try to raise max_grad_norm first.",
        "remove the z-loss",
        "You may drop the load balance",
        "stack multipliers",
    ],
)
def test_advice_that_harms_is_recognised(text):
    assert ADVICE.search(text)


def test_no_text_of_the_recipe_advises_a_larger_clip_deleting_a_term_or_stacking_multipliers():
    texts = [path for ending in ("py", "md", "yaml") for path in sorted(RECIPE.glob(f"**/*.{ending}"))]
    assert len(texts) > 10
    found = []
    for path in texts:
        if path == Path(__file__):
            continue
        sentences = re.split(r"(?<=[.:!?])\s|\n\s*\n", path.read_text(encoding="ascii"))
        found += [
            f"{path.name}: {sentence.strip()}"
            for sentence in sentences
            if ADVICE.search(" ".join(sentence.split())) and not A_REFUSAL.search(sentence)
        ]
    assert found == []
