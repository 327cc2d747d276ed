"""A loop of one's own whose routers are watched: what is found, told, written down and gone on with."""

import gc
import importlib.util
import logging
import math
import sys
import weakref
from pathlib import Path

import pytest
import torch

from trimtab import GuardConfig, Run, UsageError, WatchConfig
from trimtab import moe as moe_api
from trimtab.checkpoint import Checkpointer

_spec = importlib.util.spec_from_file_location("moe_of_a_run", Path(__file__).with_name("moe_of_a_run.py"))
moe = importlib.util.module_from_spec(_spec)
sys.modules["moe_of_a_run"] = moe
_spec.loader.exec_module(moe)

EVALUATIONS = {40: 7.6066, 80: 7.6406, 140: 8.2422, 180: 8.2717}


def planted(model):
    """The router collapses before step 121."""
    return lambda step: moe.collapse(model) if step == 121 else None


def watched(out, found, *, model, optimizer, **settings):
    watch = moe.settings(model)
    return Run(out, model=model, optimizer=optimizer, max_grad_norm=1.0, on_finding=found, **(watch | settings))


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """200 steps with a collapse, and what was found in them; its folder and its weights."""
    model, optimizer = moe.new_training()
    found = moe.Found()
    with watched(tmp_path_factory.mktemp("whole"), found, model=model, optimizer=optimizer) as run:
        moe.train(run, model, range(1, 201), before=planted(model), evaluations=EVALUATIONS)
        because = run.unhealthy_because()
    return found, run, moe.weights(model), because


def test_a_collapse_is_found_in_the_report_after_it_and_told_in_the_training_thread(uninterrupted):
    found, _, _, because = uninterrupted

    assert ("collapse", 130) in found
    assert ("dead_experts", 130) in found
    assert ("eval_regression", 180) in found
    assert [step for kind, step in found if kind == "collapse"] == [130], "said once"
    assert min(step for _, step in found) == 130, "nothing is warned of while all is well"
    assert any("layer gate" in sentence for sentence in because)
    assert any("8.2717" in sentence for sentence in because)


def test_the_log_holds_settings_reports_vitals_and_findings(uninterrupted):
    found, run, _, _ = uninterrupted
    written = moe.events(run.folder)

    kinds = [kind for kind, _, _ in written]
    assert kinds[0] == "watch"
    assert kinds.count("watch") == 1
    reports = {step: facts for kind, step, facts in written if kind == "router"}
    assert sorted(reports) == list(range(10, 201, 10))
    for step, facts in reports.items():
        [counts] = facts["layers"]["counts"]
        assert sum(counts) == facts["expected_tokens"] == 10 * moe.NUM_TOKENS
        assert facts["first_step"] == step - 9
    assert reports[200]["layers"]["counts"] == [[640, 0, 0, 0]]
    assert [(facts["kind"], facts["step"]) for kind, _, facts in written if kind == "finding"] == found
    vitals = [facts for kind, _, facts in written if kind == "vitals"]
    assert [facts["step"] for facts in vitals] == list(range(0, 201, 10))
    assert all("gate.weight" in facts["update_ratio"] for facts in vitals[1:])
    assert written[0][2]["report_every"] == 10


def test_weights_are_bit_identical_with_and_without_a_watch(uninterrupted):
    model, optimizer = moe.new_training()
    with Run(None, record=False, model=model, optimizer=optimizer, max_grad_norm=1.0) as run:
        moe.train(run, model, range(1, 201), before=planted(model))

    assert moe.weights(model) == uninterrupted[2]


def test_without_a_log_the_same_is_found(uninterrupted):
    model, optimizer = moe.new_training()
    found = moe.Found()
    with watched(None, found, model=model, optimizer=optimizer, record=False) as run:
        moe.train(run, model, range(1, 201), before=planted(model), evaluations=EVALUATIONS)

    assert sorted(found) == sorted(uninterrupted[0])


@pytest.mark.parametrize("cut", [37, 120, 125, 130, 145])
def test_a_run_that_is_cut_anywhere_finds_what_an_uninterrupted_one_finds_and_nothing_twice(
    cut, uninterrupted, tmp_path
):
    # given
    model, optimizer = moe.new_training()
    found = moe.Found()
    with watched(tmp_path, found, model=model, optimizer=optimizer) as run:
        moe.train(run, model, range(1, cut + 1), before=planted(model), evaluations=EVALUATIONS)
        state = run.state_dict()
    # when another process goes on, which has nothing but the checkpoint
    again, other = moe.new_training(seed=1)
    again.load_state_dict(model.state_dict())
    other.load_state_dict(optimizer.state_dict())
    with watched(tmp_path, found, model=again, optimizer=other) as run:
        run.load_state_dict(state)
        moe.train(run, again, range(cut + 1, 201), before=planted(again), evaluations=EVALUATIONS)
    # then
    assert sorted(found) == sorted(uninterrupted[0])
    written = [(facts["kind"], facts["step"]) for kind, _, facts in moe.events(run.folder) if kind == "finding"]
    assert sorted(written) == sorted(found)
    assert [step for kind, step, _ in moe.events(run.folder) if kind == "watch"] == [1, cut + 1]


def test_a_callback_may_record_flush_save_and_end_the_run(tmp_path):
    # given a callback that does all a loop may do between two steps
    model, optimizer = moe.new_training()
    checkpointer = Checkpointer(tmp_path / "checkpoints")
    done = []

    def react(finding):
        run.event("reaction", to=finding.kind)
        assert run.flush()
        checkpointer.save(finding.step, model=model, optimizer=optimizer, run=run)
        done.append((finding.kind, run.unhealthy_because()))
        run.close()

    with watched(tmp_path, react, model=model, optimizer=optimizer) as run:
        moe.train(run, model, range(1, 141), before=planted(model))
    # then
    assert {kind for kind, _ in done} >= {"collapse"}
    assert all(because for _, because in done)
    assert checkpointer.pick().healthy is False


def test_all_micro_batches_of_a_window_count_also_those_a_guard_skips(tmp_path):
    model, optimizer = moe.new_training()
    found = moe.Found()
    guard = GuardConfig(multiplier=3.0)
    run = watched(tmp_path, found, model=model, optimizer=optimizer, accumulation=4, guard=guard)
    with run:
        for step in range(1, 21):
            for micro in range(4):
                hidden = torch.randn(moe.NUM_TOKENS, 8, generator=torch.Generator().manual_seed(step * 10 + micro))
                losses = (model(hidden) - hidden[:, 0]) ** 2
                if step in (12, 15):
                    losses = losses * math.nan
                run.micro_batch(losses, per="token", rows=[step] * moe.NUM_TOKENS).backward()
            run.step()

    reports = [facts for kind, _, facts in moe.events(run.folder) if kind == "router"]
    assert [sum(facts["layers"]["counts"][0]) for facts in reports] == [10 * 4 * moe.NUM_TOKENS] * 2
    assert run.num_skipped == 8
    assert found == [], "what a guard has dealt with is no trouble of the run's health"


def test_a_run_that_is_thrown_away_is_collected_and_leaves_the_model_as_it_was(tmp_path):
    model, optimizer = moe.new_training()
    run = Run(tmp_path, model=model, optimizer=optimizer, watch=True)
    moe.train(run, model, range(1, 3))
    run.flush()
    alive = weakref.ref(run)

    del run
    gc.collect()

    assert alive() is None
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_a_state_of_a_run_without_a_watch_and_one_with_it_are_told_and_go_on(caplog):
    caplog.set_level(logging.INFO, logger="trimtab")
    model, optimizer = moe.new_training()
    parts = {"model": model, "optimizer": optimizer}
    with_watch = Run(None, record=False, watch=True, **parts)
    without = Run(None, record=False, **parts)

    with_watch.load_state_dict(without.state_dict())
    without.load_state_dict(with_watch.state_dict())

    assert [line for line in caplog.messages if "watches" not in line] == [
        "The checkpoint holds nothing that a watch has seen: the watch starts anew.",
        "The checkpoint holds what a watch has seen, but this run has none: it is left aside.",
    ]
    assert without.unhealthy_because() == ()
    without.before_save(1 << 40)


def test_a_damaged_state_of_a_watch_is_refused_before_anything_is_taken_over():
    model, optimizer = moe.new_training()
    run = Run(None, record=False, watch=True, model=model, optimizer=optimizer)
    state = run.state_dict() | {"step": 7}

    with pytest.raises(UsageError, match=r"version|damaged"):
        run.load_state_dict(state | {"watch": {"version": "odd"}})

    assert run.state_dict()["step"] == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param(
            {"watch": "yes"}, "watch must be True, a trimtab.WatchConfig or a trimtab.moe.RouterWatch", id="word"
        ),
        pytest.param({"watch": True, "on_finding": "print"}, "on_finding must be a function", id="no function"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UsageError, match=message):
        Run(None, record=False, **settings)


def test_a_callback_without_a_watch_is_warned_of():
    with pytest.warns(UserWarning, match="nothing is watched"):
        Run(None, record=False, on_finding=print)


def test_trimtab_off_watches_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("TRIMTAB", "off")
    model, optimizer = moe.new_training()
    found = moe.Found()

    with Run(tmp_path, model=model, optimizer=optimizer, watch=True, on_finding=found) as run:
        moe.train(run, model, range(1, 5))

    assert run.unhealthy_because() == ()
    assert run.folder is None
    assert not optimizer._optimizer_step_pre_hooks


# What is watched, and what cannot be.


def one_router(kind):
    """A model whose router is of a class of this name, all of whose tokens go to expert 0."""

    class Router(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(4, 8))

        def forward(self, x):
            return x @ self.weight.T + torch.tensor([100.0, 0.0, 0.0, 0.0])

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = type(kind, (Router,), {})()

        def forward(self, x):
            return self.gate(x).softmax(-1).sum(-1)

    return Model()


def train_one_router(model, steps=20, **settings):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Run(None, record=False, model=model, optimizer=optimizer, **settings) as run:
        for _ in range(steps):
            run.micro_batch(model(torch.randn(32, 8)), per="sample", rows=range(32)).backward()
            run.step()


def test_a_router_of_which_nobody_says_k_is_told_of_once_with_what_to_pass(caplog):
    caplog.set_level(logging.INFO, logger="trimtab")
    model = one_router("OwnRouter")
    watch = moe_api.RouterWatch(model, routers=lambda model: [model.gate], config=WatchConfig(report_every=5))

    train_one_router(model, watch=watch)

    [line] = [line for line in caplog.messages if "gate" in line and "pass top_k= to RouterWatch" in line]
    assert line.startswith("Trimtab, step 5: routers: gate: nobody says how many experts")


def test_a_model_whose_routers_cannot_be_read_is_told_of_when_the_run_begins(caplog):
    caplog.set_level(logging.INFO, logger="trimtab")

    train_one_router(one_router("Gemma4TextRouter"), steps=1, watch=True)

    first, second, *_ = [line for line in caplog.messages if "watches" in line]
    assert first == "Trimtab watches the run's health, and reports every 50 steps."
    assert second.startswith(
        "Trimtab watches no router of this model: gate (Gemma4TextRouter) is not read: it gives probabilities and no "
        "logits. Make watch=moe.RouterWatch(model, routers=...)"
    )


def test_one_line_says_what_is_watched(caplog):
    caplog.set_level(logging.INFO, logger="trimtab")
    model = one_router("MixtralTopKRouter")
    model.gate.top_k, model.gate.num_experts = 1, 4

    train_one_router(model, steps=1, watch=WatchConfig(report_every=1))

    [line] = [line for line in caplog.messages if "watches" in line]
    assert line == "Trimtab watches the run's health and 1 router (MixtralTopKRouter), and reports every step."
