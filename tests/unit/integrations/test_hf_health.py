"""A watch on any Trainer: its evaluations, its machine, and which of its checkpoints are not ones to go on from."""

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import Trainer

import trimtab
from trimtab.errors import CheckpointError
from trimtab.integrations.hf_evaluations import evaluation_facts
from trimtab.resume.manifest import read_manifest
from trimtab.resume.select import pick
from trimtab.rules.watch_config import WatchConfig

EVERY_2 = WatchConfig(report_every=2, host_memory_floor_bytes=1)  # whatever else runs on this machine
REGRESSES = [7.6066, 7.6406, 8.2422, 8.2717]  # after steps 2, 4, 6, 8
RECOVERS = [7.7371, 7.6486, 7.7053, 7.6502]
ROWS = [{"input_ids": [1, 70, 80, 90], "labels": [1, 70, 80, 90]}] * 2
ARGS = dict(gradient_accumulation_steps=2, num_train_epochs=2, eval_strategy="steps", eval_steps=2)
SAVES = dict(save_strategy="steps", save_steps=2)


def evaluates_to(**losses):
    """A trainer whose evaluations come to these losses, one after the other; by the prefix of their metrics."""
    left = {prefix: iter(values) for prefix, values in losses.items()}

    class Planned(Trainer):
        def evaluation_loop(self, *args, metric_key_prefix="eval", **more):
            output = super().evaluation_loop(*args, metric_key_prefix=metric_key_prefix, **more)
            output.metrics[f"{metric_key_prefix}_loss"] = next(left[metric_key_prefix])
            return output

    return Planned


@pytest.fixture
def watch(bench):
    """Trains with a watch; gives the training, and what was warned of: eight steps of a tiny model are bumpy."""

    def watch(args=None, config=EVERY_2, **more):
        warned = []

        def take(finding):
            if finding.severity != "notice":
                warned.append(finding)

        more.setdefault("eval_dataset", ROWS)
        trained = bench.train(dict(args=ARGS | (args or {})), attach=dict(watch=config, on_finding=take), **more)
        return trained, warned

    return watch


def events(trained, kind):
    return [event for event in trained.log.event_list() if event.kind == kind]


# ---------------------------------------------------------------------------------------------------------- evaluations


def test_evaluations_that_get_worse_are_told_once_at_the_last(watch):
    trained, told = watch(cls=evaluates_to(eval=REGRESSES))
    assert [(finding.kind, finding.step) for finding in told] == [("eval_regression", 8)]
    assert [event.facts["text"] for event in events(trained, "finding")].count(told[0].text) == 1


def test_evaluations_that_go_up_and_down_are_not_told(watch):
    _, told = watch(cls=evaluates_to(eval=RECOVERS))
    assert told == []


def test_each_of_several_datasets_is_judged_by_itself(watch):
    # given one that gets worse among two that go up and down, and an average that would hide it
    losses = dict(eval_code=RECOVERS, eval_wiki=REGRESSES, eval_news=[9.0, 8.0, 7.0, 6.0])
    datasets = {prefix.removeprefix("eval_"): ROWS for prefix in losses}
    # when
    trained, told = watch(cls=evaluates_to(**losses), eval_dataset=datasets)
    # then
    assert [(finding.kind, finding.step) for finding in told] == [("eval_regression", 8)]
    assert "wiki" in told[0].text
    last = [event.facts for event in events(trained, "evaluation")][-3:]
    assert [facts["loss"] for facts in last] == [7.6502, 8.2717, 6.0]
    assert last[1]["eval_wiki_loss"] == 8.2717


def test_an_evaluation_that_is_not_finite_is_told_and_becomes_no_best_one(watch):
    _, told = watch(cls=evaluates_to(eval=[2.0, math.nan, 1.9, 1.8]))
    assert [(finding.kind, finding.step) for finding in told] == [("eval_nonfinite", 4)]


def test_an_evaluation_without_a_loss_is_not_one_that_is_not_finite(watch):
    unlabelled = [{"input_ids": [1, 70, 80, 90]}] * 2

    class WithoutLabels(Trainer):
        def get_eval_dataloader(self, eval_dataset=None):
            return torch.utils.data.DataLoader(unlabelled, collate_fn=_stack)

    trained, told = watch(cls=WithoutLabels)
    assert told == []
    assert all("loss" not in event.facts for event in events(trained, "evaluation"))
    assert len(events(trained, "evaluation")) == 4


def _stack(rows):
    return {"input_ids": torch.tensor([row["input_ids"] for row in rows])}


@pytest.mark.parametrize(
    ("metrics", "facts"),
    [
        pytest.param({"eval_loss": 2.0, "eval_runtime": 1.0}, {"loss": 2.0, "eval_runtime": 1.0}, id="alone"),
        pytest.param(
            {"eval_wiki_loss": 2.0, "eval_wiki_runtime": 1.0},
            {"loss": 2.0, "eval_wiki_loss": 2.0, "eval_wiki_runtime": 1.0},
            id="of a name",
        ),
        pytest.param({"mine_loss": 2.0, "mine_runtime": 1.0}, {"mine_loss": 2.0, "mine_runtime": 1.0}, id="own prefix"),
        pytest.param({"eval_accuracy": 0.5}, {"eval_accuracy": 0.5}, id="no loss"),
        pytest.param({"eval_loss": 2.0}, {"loss": 2.0}, id="no time"),
        pytest.param(None, {}, id="nothing"),
    ],
)
def test_metrics_are_the_facts_of_an_event_as_they_are_named(metrics, facts):
    assert evaluation_facts(metrics) == facts


# ---------------------------------------------------------------------------------------------------------- checkpoints


def test_a_checkpoint_that_is_saved_while_a_finding_stands_is_not_healthy_and_says_why(watch, bench, said):
    # when
    trained, told = watch(args=SAVES, cls=evaluates_to(eval=REGRESSES))
    # then: the evaluation after step 8 came before its checkpoint
    out = Path(trained.trainer.args.output_dir)
    because = {step: read_manifest(out / f"checkpoint-{step}").unhealthy_because for step in (2, 4, 6, 8)}
    assert because == {2: (), 4: (), 6: (), 8: (f"eval_regression at step 8: {told[0].text}",)}
    # and the one to go on from is the best, not the last one before it was found
    assert read_manifest(out / "checkpoint-8").unhealthy_since == 2
    assert pick(out, healthy=True).step == 2
    assert read_manifest(out / "checkpoint-8").parts["watch"] == ("trimtab_state.json",)
    assert any("checkpoint-8 is not healthy" in line and told[0].text in line for line in said())
    # and a plain resume refuses it, naming the last healthy one
    resumed = bench.trainer(dict(args=ARGS | SAVES | dict(output_dir=str(out))), eval_dataset=ROWS)
    trimtab.attach(resumed, watch=EVERY_2)
    with pytest.raises(CheckpointError, match="The last healthy one is checkpoint-2"):
        resumed.train(resume_from_checkpoint=True)


def test_the_last_healthy_checkpoint_outlives_the_limit(watch):
    losses = [7.0, *REGRESSES[:3], 8.3, 8.4, 8.5, 8.6]
    args = SAVES | dict(save_total_limit=1, num_train_epochs=4)
    trained, _ = watch(args=args, cls=evaluates_to(eval=losses))
    left = sorted(path.name for path in Path(trained.trainer.args.output_dir).glob("checkpoint-*"))
    assert left == ["checkpoint-16", "checkpoint-6"]


def test_a_finding_that_is_over_leaves_later_checkpoints_healthy(watch):
    losses = [*REGRESSES, 7.0, 6.9, 6.8, 6.7]
    trained, _ = watch(args=SAVES | dict(num_train_epochs=4), cls=evaluates_to(eval=losses))
    out = Path(trained.trainer.args.output_dir)
    assert [read_manifest(out / f"checkpoint-{step}").healthy for step in (6, 8, 10)] == [True, False, True]


def test_a_state_with_what_is_not_finite_is_saved_and_gone_on_from(watch, bench):
    # given
    trained, _ = watch(args=SAVES, cls=evaluates_to(eval=[2.0, math.nan, math.inf, 1.9]))
    out = Path(trained.trainer.args.output_dir)
    # then the file is plain JSON
    state = json.loads((out / "checkpoint-6" / "trimtab_state.json").read_text(), parse_constant=pytest.fail)
    assert state["watch"] is not None
    # when
    resumed = bench.trainer(dict(args=ARGS | SAVES | dict(output_dir=str(out))), eval_dataset=ROWS)
    trimtab.attach(resumed, watch=EVERY_2)
    resumed.train(resume_from_checkpoint=str(out / "checkpoint-6"))
    # then
    assert resumed.state.global_step == 8


def test_a_checkpoint_of_a_training_without_a_watch_is_gone_on_from_with_one(bench):
    # given
    trained = bench.train(dict(args=ARGS | SAVES), attach={}, eval_dataset=ROWS)
    out = Path(trained.trainer.args.output_dir)
    assert "watch" not in read_manifest(out / "checkpoint-4").parts
    # when
    resumed = bench.trainer(dict(args=ARGS | SAVES | dict(output_dir=str(out))), eval_dataset=ROWS)
    run = trimtab.attach(resumed, watch=EVERY_2)
    resumed.train(resume_from_checkpoint=str(out / "checkpoint-4"))
    # then
    assert [event.step for event in trimtab.open_log(run.folder).event_list() if event.kind == "watch"] == [5]


@pytest.mark.parametrize("ids", [dict(run_id="mine"), {}], ids=["named", "not named"])
def test_a_training_after_one_that_could_not_begin_is_watched_like_any_other(bench, ids):
    # given a resume that is refused, which closes what was to record and watch it
    trainer = bench.trainer(dict(args=ARGS | SAVES), cls=evaluates_to(eval=REGRESSES), eval_dataset=ROWS)
    told = []
    run = trimtab.attach(trainer, watch=EVERY_2, on_finding=told.append, **ids)
    with pytest.raises((CheckpointError, ValueError, OSError)):
        trainer.train(resume_from_checkpoint="not-there/checkpoint-9")
    # when
    trainer.train()
    # then
    assert [finding.step for finding in told if finding.kind == "eval_regression"] == [8]
    kinds = [event.kind for event in trimtab.open_log(run.folder).event_list()]
    assert [kind for kind in kinds if kind in ("watch", "finding")].count("watch") == 1
    assert kinds.count("vitals") > 2
    assert not read_manifest(Path(trainer.args.output_dir, "checkpoint-8")).healthy
    assert run.run_id == ids.get("run_id", run.run_id)


def test_what_was_recorded_before_a_training_that_could_not_begin_does_not_end_the_next_log(bench):
    trainer = bench.trainer(dict(args=ARGS), eval_dataset=ROWS)
    run = trimtab.attach(trainer, watch=EVERY_2)
    run.event("note", text="before")
    before = run.folder
    with pytest.raises((CheckpointError, ValueError, OSError)):
        trainer.train(resume_from_checkpoint="not-there/checkpoint-9")
    trainer.train()
    assert run.folder != before
    assert list(trimtab.open_log(run.folder).step_columns().step) == list(range(1, 9))


# -------------------------------------------------------------------------------------------------------- the machine


def test_memory_is_looked_at_before_each_save_for_what_it_takes(watch):
    # when
    trained, _ = watch(args=SAVES | dict(save_steps=4))
    # then weights and moments, counted in the files
    needed = [event.facts.get("host_needed_bytes") for event in events(trained, "vitals")]
    weights = sum(value.numel() * value.element_size() for value in trained.trainer.model.state_dict().values())
    saved = torch.load(Path(trained.trainer.args.output_dir, "checkpoint-8", "optimizer.pt"), weights_only=True)
    moments = sum(value.numel() * value.element_size() for state in saved["state"].values() for value in state.values())
    assert [size for size in needed if size is not None] == [weights + moments] * 2


def test_too_little_memory_is_told_and_saves_all_the_same(watch):
    # given a floor that no machine has
    config = WatchConfig(report_every=2, host_memory_floor_bytes=1 << 60)
    # when
    trained, told = watch(args=SAVES, config=config, cls=evaluates_to(eval=RECOVERS))
    # then
    assert [finding.step for finding in told if finding.kind == "host_memory"] == [0]
    manifest = read_manifest(Path(trained.trainer.args.output_dir, "checkpoint-8"))
    assert (manifest.healthy, manifest.step) == (True, 8)


def test_how_far_a_step_moves_each_weight_is_measured_in_accelerates_optimizer(watch):
    trained, _ = watch()
    ratios = {event.step: event.facts.get("update_ratio") for event in events(trained, "vitals") if event.step}
    assert all(ratios[step] for step in (2, 4, 6, 8))
    assert all(0 < ratio < 1 for of_step in (ratios[2], ratios[8]) for ratio in of_step.values())


def test_an_optimizer_is_left_without_a_hook(watch):
    trained, _ = watch()
    optimizer = trained.trainer.optimizer.optimizer
    assert (dict(optimizer._optimizer_step_pre_hooks), dict(optimizer._optimizer_step_post_hooks)) == ({}, {})


def test_without_a_log_it_is_watched_all_the_same(bench):
    told = []
    setting = dict(args=ARGS)
    attach = dict(watch=EVERY_2, record=False, on_finding=told.append)
    bench.train(setting, attach=attach, cls=evaluates_to(eval=REGRESSES), eval_dataset=ROWS)
    assert [finding.step for finding in told if finding.kind == "eval_regression"] == [8]


def test_weights_are_those_without_a_watch_bit_for_bit(bench):
    plain = bench.train(dict(args=ARGS), eval_dataset=ROWS)
    watched = bench.train(dict(args=ARGS), attach=dict(watch=EVERY_2), eval_dataset=ROWS)
    assert all(torch.equal(value, watched.weights[name]) for name, value in plain.weights.items())
    assert watched.logged == plain.logged
