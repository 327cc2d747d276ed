"""A watch on a Trainer's mixture-of-experts model: what it counts, that it changes nothing, and whom it tells."""

import copy
import math
import warnings
from pathlib import Path

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, Trainer, TrainerCallback

import trimtab
from trimtab import UsageError
from trimtab.moe import RouterWatch
from trimtab.rules.watch_config import WatchConfig

K, E = 2, 4  # of the tiny Mixtral
EVERY_2 = WatchConfig(report_every=2, host_memory_floor_bytes=1)  # whatever else runs on this machine
TWICE = dict(gradient_accumulation_steps=2, num_train_epochs=2)  # 13 rows in batches of two: 4 + 4 steps


def router_of(model):
    return next(module for name, module in model.named_modules() if name.endswith(("mlp.gate", "mlp.router")))


class Zeroes(TrainerCallback):
    """A router whose weights are 0 from a step on: each logit is 0, and the first experts get all tokens."""

    def __init__(self, trainer, *, at, until=math.inf):
        self.at, self.until = at, until
        self.router = router_of(trainer.model)
        trainer.add_callback(self)

    def on_step_begin(self, args, state, control, **_):
        if self.at <= state.global_step + 1 < self.until:
            with torch.no_grad():
                for weight in self.router.parameters():
                    weight.zero_()


class Oracle:
    """Counts by hand: tokens of each expert by optimizer step, of an unwatched training, padding left out."""

    def __init__(self, trainer):
        self.counts = {}  # step -> (E,)
        self.trainer = trainer
        self.mask = None
        trainer.model.register_forward_pre_hook(self._see_mask, with_kwargs=True)
        router_of(trainer.model).register_forward_hook(self._count)

    def _see_mask(self, model, args, kwargs):
        self.mask = kwargs["attention_mask"].bool().flatten()

    def _count(self, gate, args, output):
        if not self.trainer.model.training:
            return
        logits = output[0].detach()[self.mask]
        chosen = [sorted(range(E), key=lambda e: -row[e])[:K] for row in logits.tolist()]
        of_step = self.counts.setdefault(self.trainer.state.global_step + 1, [0] * E)
        for experts in chosen:
            for e in experts:
                of_step[e] += 1


def reports(run):
    """Facts of the router events by their last step."""
    return {event.step: event.facts for event in trimtab.open_log(run.folder).event_list() if event.kind == "router"}


def findings(run):
    events = trimtab.open_log(run.folder).event_list()
    return [(event.facts["kind"], event.step) for event in events if event.kind == "finding"]


def same_weights(one, other):
    return all(torch.equal(value, other.weights[name]) for name, value in one.weights.items())


def gpt_oss():
    """A model that transformers saves as it is; those of Mixtral and others a Trainer does not load back."""
    torch.manual_seed(0)
    config = GptOssConfig(
        vocab_size=128, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2, head_dim=8,
        num_key_value_heads=2, num_local_experts=E, num_experts_per_tok=K, pad_token_id=0,
    )  # fmt: skip
    return GptOssForCausalLM(config)


def lora_mixtral(bench):
    import peft

    config = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_dropout=0.0, target_modules=["q_proj", "v_proj"])
    with warnings.catch_warnings(action="ignore", category=FutureWarning):  # peft reads an old name of transformers
        return peft.get_peft_model(bench.make_model("mixtral"), config)


# ---------------------------------------------------------------------------------------------------- what is counted


def test_each_report_counts_the_real_tokens_of_its_steps_and_no_evaluation(bench):
    # given an unwatched training, and its tokens by step: those of the rows, as the model saw them
    setting = dict(model="mixtral", evaluate=True, args=TWICE)
    trainer = bench.trainer(setting)
    oracle = Oracle(trainer)
    trainer.train()
    # when
    watched = bench.train(setting, attach=dict(watch=EVERY_2))
    # then
    found = reports(watched.run)
    assert list(found) == [2, 4, 6, 8]
    lengths = [len(row["input_ids"]) for row in bench.rows()]
    for step, facts in found.items():
        steps = (step - 1, step)
        assert (facts["first_step"], facts["step"]) == steps
        rows = [row for one in steps for micro in watched.probe.rows[one] for row in micro]
        assert facts["expected_tokens"] == sum(lengths[row] for row in rows)
        assert facts["layers"]["num_tokens"] == [facts["expected_tokens"]]
        [counts] = facts["layers"]["counts"]
        assert counts == [sum(of) for of in zip(*(oracle.counts[one] for one in steps), strict=True)]
        assert sum(counts) == K * facts["expected_tokens"]


def test_gradients_that_are_computed_again_count_once(bench):
    setting = dict(model="mixtral", args=TWICE | dict(activation_checkpointing=True))
    watched = bench.train(setting, attach=dict(watch=EVERY_2))
    for facts in reports(watched.run).values():
        assert sum(facts["layers"]["counts"][0]) == K * facts["expected_tokens"]


@pytest.mark.parametrize("kind", ["plain", "lora", "checkpointed", "guarded"])
def test_weights_are_those_without_a_watch_bit_for_bit(bench, kind):
    # given
    args = TWICE | (dict(activation_checkpointing=True) if kind == "checkpointed" else {})
    setting = dict(model="mixtral", args=args)
    initial = lora_mixtral(bench) if kind == "lora" else bench.make_model("mixtral")
    guard = trimtab.GuardConfig(rule="robust") if kind == "guarded" else None
    # when
    plain = bench.train(setting, model=copy.deepcopy(initial))
    watched = bench.train(setting, model=copy.deepcopy(initial), attach=dict(watch=EVERY_2, guard=guard))
    # then
    assert same_weights(watched, plain)
    assert watched.logged == plain.logged
    assert list(reports(watched.run)) == [2, 4, 6, 8]


class Hooks(TrainerCallback):
    """Counts the hooks of Trimtab's on a model, at the end of each step."""

    def __init__(self, trainer):
        self.model, self.counts = trainer.model, []
        trainer.add_callback(self)

    def count(self):
        modules = list(self.model.modules())
        hooks = [hook for module in modules for hook in module._forward_pre_hooks.values()]
        hooks += [hook for module in modules for hook in module._forward_hooks.values()]
        return sum(str(getattr(hook, "__module__", "")).startswith("trimtab") for hook in hooks)

    def on_step_end(self, *_, **__):
        self.counts.append(self.count())


def test_a_model_is_left_without_a_hook(bench):
    trainer = bench.trainer(dict(model="mixtral"))
    trimtab.attach(trainer, watch=True)
    hooks = Hooks(trainer)
    trainer.train()
    assert min(hooks.counts) > 0
    assert hooks.count() == 0


# --------------------------------------------------------------------------------------------------- what is watched


def test_one_line_says_what_is_watched(bench, said):
    bench.train(dict(model="mixtral"), attach=dict(watch=True))
    [line] = [line for line in said() if "watches" in line]
    assert line == "Trimtab watches the run's health and 1 router (MixtralTopKRouter), and reports every 50 steps."


def test_a_model_without_routers_is_watched_for_its_health_alone(bench, said):
    run = bench.train(attach=dict(watch=EVERY_2)).run
    [line] = [line for line in said() if "watches" in line]
    assert line == "Trimtab watches the run's health, and reports every 2 steps."
    assert reports(run) == {}
    assert [event.kind for event in trimtab.open_log(run.folder).event_list()].count("vitals") >= 3


def test_a_watch_of_the_users_own_is_used_and_stays(bench):
    # given
    model = bench.make_model("mixtral")
    own = RouterWatch(model, config=EVERY_2)
    # when
    run = bench.train(dict(model="mixtral", args=TWICE), model=model, attach=dict(watch=own)).run
    # then
    assert list(reports(run)) == [2, 4, 6, 8]
    model.train()
    model(input_ids=torch.tensor([[1, 2, 3]]))
    [layer] = own.report().layers
    assert sum(layer.counts) == 3 * K


@pytest.mark.parametrize("watch", ["all", 3])
def test_what_is_no_watch_is_refused_before_anything_is_touched(bench, watch):
    trainer = bench.trainer(dict(model="mixtral"))
    with pytest.raises(UsageError, match="watch must be True"):
        trimtab.attach(trainer, watch=watch)
    assert "train" not in vars(trainer)


def test_switched_off_nothing_is_watched(bench, monkeypatch, said):
    monkeypatch.setenv("TRIMTAB", "off")
    trained = bench.train(dict(model="mixtral"), attach=dict(watch=True, on_finding=print))
    assert trained.run.folder is None
    assert not any("watches" in line for line in said())


# -------------------------------------------------------------------------------------------------- what is found


def train_with_trouble(bench, *, at=3, until=math.inf, attach, args=None, **more):
    trainer = bench.trainer(dict(model="mixtral", args=TWICE | (args or {})), **more)
    run = trimtab.attach(trainer, **attach)
    Zeroes(trainer, at=at, until=until)
    trainer.train()
    return trainer, run


def test_a_router_that_sends_all_tokens_to_the_same_experts_is_told_once_with_its_figures(bench, said):
    # when
    told = []
    _, run = train_with_trouble(bench, attach=dict(watch=EVERY_2, on_finding=told.append))
    # then: said at the first report in which no token went elsewhere
    collapses = [finding for finding in told if finding.kind == "collapse"]
    assert [finding.step for finding in collapses] == [4]
    assert [layer.endswith("mlp.gate") for layer in collapses[0].layers] == [True]
    assert findings(run).count(("collapse", 4)) == 1
    assert len([line for line in said() if line.startswith("Trimtab, step 4: critical: collapse: ")]) == 1


def test_a_callback_may_end_the_training(bench):
    # given
    stopped = []

    def stop(finding):
        stopped.append(finding.kind)
        trainer.control.should_training_stop = True

    trainer = bench.trainer(dict(model="mixtral", args=dict(num_train_epochs=200)))
    trimtab.attach(trainer, watch=EVERY_2, on_finding=stop)
    Zeroes(trainer, at=1)
    # when
    trainer.train()
    # then it ends as soon as the finding has come from the thread that judges, and long before its own end
    assert "collapse" in stopped
    assert 2 <= trainer.state.global_step < 1400


def test_a_callback_that_fails_ends_nothing(bench, said):
    def fail(finding):
        raise ValueError("mine")

    trainer, _ = train_with_trouble(bench, attach=dict(watch=EVERY_2, on_finding=fail))
    assert trainer.state.global_step == 8
    assert len([line for line in said() if "on_finding failed: ValueError: mine" in line]) == 1


# ----------------------------------------------------------------------------------------- several trainings, resuming


def test_a_second_training_is_watched_anew(bench):
    # given
    told = []
    trainer, first = bench.trainer(dict(model="mixtral", args=TWICE)), None
    run = trimtab.attach(trainer, watch=EVERY_2, on_finding=told.append)
    trouble = Zeroes(trainer, at=3)
    trainer.train()
    first = run.folder
    # when
    trainer.train()
    # then the same trouble is told again, in the log of the second
    assert run.folder != first
    assert [finding.step for finding in told if finding.kind == "collapse"] == [4, 4]
    assert list(reports(run)) == [2, 4, 6, 8]
    assert trouble.at == 3


def test_a_resumed_training_is_watched_on_and_nothing_is_told_twice(bench, tmp_path):
    # given a training that was not interrupted
    out = dict(save_strategy="steps", save_steps=4, output_dir=str(tmp_path / "out"))
    whole = []
    train_with_trouble(bench, attach=dict(watch=EVERY_2, on_finding=whole.append), model=gpt_oss())
    # when another one ends after its checkpoint
    parts = []

    class Ends(TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 4:
                raise KeyboardInterrupt

    trainer = bench.trainer(dict(args=TWICE | out), model=gpt_oss())
    trimtab.attach(trainer, watch=EVERY_2, on_finding=parts.append)
    Zeroes(trainer, at=3)
    trainer.add_callback(Ends())
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    resumed = bench.trainer(dict(args=TWICE | out), model=gpt_oss())
    run = trimtab.attach(resumed, watch=EVERY_2, on_finding=parts.append)
    Zeroes(resumed, at=3)
    resumed.train(resume_from_checkpoint=str(Path(out["output_dir"], "checkpoint-4")))
    # then
    assert [(one.kind, one.step, one.text) for one in parts] == [(one.kind, one.step, one.text) for one in whole]
    assert list(reports(run)) == [2, 4, 6, 8]


class OwnTrainer(Trainer):
    """A user's subclass with a loss of its own."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(**inputs)
        return (outputs.loss, outputs) if return_outputs else outputs.loss


def test_a_trainer_of_the_users_own_class_is_watched_alike(bench):
    _, run = train_with_trouble(bench, attach=dict(watch=EVERY_2), cls=OwnTrainer)
    assert ("collapse", 4) in findings(run)
