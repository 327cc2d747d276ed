"""The stage `sft` trains, at a small size, for real: its loss falls, a planted bad micro-batch is left out, and what
was interrupted goes on. That a skip is exact is for the proof to show.
"""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import recipes.sft.train
from recipes.sft.config import ConfigError, ModelConfig, read_stage
from recipes.sft.data import IGNORED, MicroBatches, make_batch, read_rows
from recipes.sft.engine import Engine
from recipes.sft.model import ByteModel
from recipes.sft.train import main, train
from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError, UsageError

ROOT = Path(__file__).parents[3]


def small(stage="sft", *, num_steps=16):
    config = read_stage(stage)
    return replace(
        config,
        num_steps=num_steps,
        accumulation=2,
        data=replace(config.data, package="email", batch_size=4),
        model=ModelConfig(dim=32, num_layers=1, num_heads=2, max_tokens=160),
        optim=replace(config.optim, lr=1e-2, warmup_steps=2),
    )


def prepared(config):
    torch.manual_seed(0)
    engine = Engine(config, ByteModel(config.model))
    engine.prepare_optimizer()
    return engine


def windows(config, *, num):
    batches = MicroBatches(config.data, max_tokens=config.model.max_tokens, seed=0)
    return [[batches[2 * window + micro] for micro in range(2)] for window in range(num)]


def run(engine, windows):
    results = []
    for window in windows:
        for batch in window:
            engine.backward_step(*engine.forward_step(batch))
        results.append(engine.optimizer_step())
    return results


def garbage(batch):
    """The same rows as somebody would have decoded them wrongly: bytes that no text in ASCII has."""
    garbled = {name: torch.where(values > 255, values, values % 128 + 128) for name, values in batch.items()}
    return garbled | {"labels": torch.where(batch["labels"] == IGNORED, IGNORED, garbled["labels"])}


def weights(engine):
    return torch.cat([parameter.detach().flatten() for parameter in engine.model.parameters()])


def test_a_short_stage_trains_and_its_loss_falls():
    # when
    lines = []
    engine = train(small(), tell=lines.append)
    # then
    first, *_, last = (float(line.split()[3]) for line in lines)
    assert last < first - 1.0
    assert engine.step == 16
    assert engine.num_skipped == 0
    assert engine.optimizer.param_groups[0]["lr"] < 1e-6


def test_a_planted_bad_micro_batch_is_left_out_and_training_goes_on():
    # given: a window near the end of a run, with a bad micro-batch in it
    config = small()
    planted = windows(config, num=16)
    planted[14][1] = garbage(planted[14][1])
    engine = prepared(config)
    # when
    results = run(engine, planted)
    # then
    assert [result.num_skipped_micros for result in results] == [0] * 14 + [1, 0]
    assert results[14].num_skipped_tokens == int((planted[14][1]["labels"][:, 1:] != IGNORED).sum())
    assert results[14].loss < 1.2 * results[13].loss
    assert engine.num_skipped == 1
    assert all(result.stepped for result in results)


def test_where_the_stage_sets_no_multiplier_the_same_micro_batch_is_trained_on():
    config = replace(small("pretrain"), data=small().data)
    planted = windows(config, num=16)
    planted[14][1] = garbage(planted[14][1])
    results = run(prepared(config), planted)
    assert [result.num_skipped_micros for result in results] == [0] * 16
    assert results[14].loss > 1.5 * results[13].loss


def test_a_window_that_is_not_finite_moves_nothing():
    # given
    config = small()
    engine = prepared(config)
    run(engine, windows(config, num=4))
    before = weights(engine)
    # when: every logit of one window is not a number
    hook = engine.model.register_forward_hook(lambda module, arguments, logits: logits * torch.nan)
    (result,) = run(engine, windows(config, num=1))
    hook.remove()
    # then
    assert (result.reason, result.num_skipped_micros) == ("all_skipped", 2)
    assert torch.equal(weights(engine), before)
    assert engine.scheduler.last_epoch == 5


def lines_of(config, **settings):
    lines = []
    engine = train(config, tell=lines.append, **settings)
    return engine, lines


@pytest.fixture
def saves_every_step(monkeypatch):
    monkeypatch.setattr(recipes.sft.train, "SAVE_EVERY", 1)
    monkeypatch.setattr(recipes.sft.train, "KEEP", 0)


def moments(engine):
    state = engine.optimizer.state_dict()["state"]
    return [value for held in state.values() for value in held.values()]


@pytest.mark.parametrize("step", [1, 6, 7, 11, 15])
def test_a_stage_that_was_interrupted_at_any_step_goes_on_as_if_it_had_not_been(tmp_path, saves_every_step, step):
    # given a stage whose guard leaves something out, in the middle
    config = small()
    whole = train(config, out=tmp_path, tell=lambda line: None)
    # when
    resumed = train(config, resume=tmp_path / "sft" / f"step_{step}", tell=lambda line: None)
    # then
    assert torch.equal(weights(resumed), weights(whole))
    assert all(torch.equal(one, other) for one, other in zip(moments(resumed), moments(whole), strict=True))
    assert resumed.scheduler.state_dict() == whole.scheduler.state_dict()
    assert resumed.num_skipped == whole.num_skipped


def test_the_guards_history_goes_on_with_it(tmp_path):
    # given: a run without an interruption, with a bad micro-batch right after where the other one is interrupted
    config = small()
    planted = windows(config, num=16)
    planted[12][0] = garbage(planted[12][0])
    whole = prepared(config)
    expected = run(whole, planted)
    # when
    interrupted = prepared(config)
    loss = float(run(interrupted, planted[:12])[-1].loss)
    interrupted.save(Checkpointer(tmp_path), loss=loss)
    resumed = prepared(config)
    resumed.resume(Checkpointer(tmp_path), tmp_path / "step_12")
    rest = run(resumed, planted[12:])
    # then
    assert rest[0].num_skipped_micros == 1
    assert [result.loss for result in rest] == [result.loss for result in expected[12:]]
    assert torch.equal(weights(resumed), weights(whole))
    assert resumed.num_skipped == whole.num_skipped == 1
    assert Checkpointer(tmp_path).pick().loss == loss


def test_resume_without_a_path_takes_the_newest_that_is_whole_and_saves_on_as_the_same_run(tmp_path, saves_every_step):
    # given
    config = small()
    whole = train(config, out=tmp_path, tell=lambda line: None)
    run_id = Checkpointer(tmp_path / "sft").pick().run_id
    for step in range(12, 17):
        model = tmp_path / "sft" / f"step_{step}" / "model.pt"
        model.write_bytes(model.read_bytes()[:-100])
    # when
    resumed = train(config, out=tmp_path, resume=True, tell=lambda line: None)
    # then
    assert torch.equal(weights(resumed), weights(whole))
    newest = Checkpointer(tmp_path / "sft").pick()
    assert (newest.step, newest.run_id) == (16, run_id)


def test_another_rate_on_resume_is_that_of_a_stage_that_had_it_from_the_start(tmp_path, saves_every_step):
    # given
    config = small()
    train(config, out=tmp_path, tell=lambda line: None)
    _, expected = lines_of(config, lr=2e-3)
    # when
    _, lines = lines_of(config, lr=2e-3, resume=tmp_path / "sft" / "step_5")
    # then
    [rate] = [line.split("next lr ")[1] for line in lines if line.startswith("step  10")]
    assert rate == next(line.split("next lr ")[1] for line in expected if line.startswith("step  10"))


def test_a_stage_begins_from_another_ones_weights_and_resumes_only_its_own(tmp_path):
    # given
    train(small("pretrain", num_steps=4), out=tmp_path, tell=lambda line: None)
    # when
    _, lines = lines_of(small(num_steps=1), init=tmp_path / "pretrain")
    # then
    assert float(lines[0].split()[3]) < 5.0
    with pytest.raises(ConfigError, match=r"is of stage 'pretrain', not 'sft'; did you mean --init\?"):
        train(small(), resume=tmp_path / "pretrain" / "step_4")


def test_what_cannot_be_resumed_is_refused_with_what_to_do(tmp_path):
    train(small(num_steps=2), out=tmp_path, tell=lambda line: None)
    with pytest.raises(UsageError, match="step_2"):  # a fresh run over the same steps
        train(small(num_steps=2), out=tmp_path, tell=lambda line: None)
    model = tmp_path / "sft" / "step_2" / "model.pt"
    model.write_bytes(model.read_bytes()[:-100])
    for which in (True, model.parent):
        with pytest.raises(CheckpointError, match=r"model\.pt"):
            train(small(), out=tmp_path, resume=which)
    with pytest.raises(ConfigError, match="--out, which was not given"):
        train(small(), resume=True)


def test_a_window_that_is_not_full_cannot_be_stepped():
    engine = prepared(small())
    engine.backward_step(*engine.forward_step(windows(small(), num=1)[0][0]))
    with pytest.raises(RuntimeError, match="after 1 of 2 micro-batches of step 0"):
        engine.optimizer_step()


def test_only_the_answer_is_supervised_and_rows_are_shared_out():
    # given
    rows = read_rows("email")[:2]
    batch = make_batch(rows, supervise="answer", max_tokens=500)
    # then
    for row, labels in zip(rows, batch["labels"], strict=True):
        supervised = labels[labels != IGNORED].tolist()
        assert bytes(supervised[:-1]).decode() == row.answer
    # and: two ranks see each row of an epoch once
    config = replace(small().data, batch_size=1)
    seen = []
    for rank in range(2):
        batches = MicroBatches(config, max_tokens=500, seed=0, rank=rank, world_size=2)
        seen += [
            bytes(t for t in batches[n]["input_ids"][0].tolist() if t < 256)
            for n in range(len(read_rows("email")) // 2)
        ]
    assert len(set(seen)) == len(seen)


def test_the_command_line_names_the_stages_that_there_are(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--stage", "dpo"])
    assert left.value.code == 2
    assert "choose from" in capsys.readouterr().err


def on_two_ranks(*program):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", *program]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_two_ranks_train_the_stage_together(tmp_path):
    told = on_two_ranks("-m", "recipes.sft.train", "--stage", "anneal", "--out", str(tmp_path))
    lines = [line for line in told.splitlines() if line.startswith("step")]
    assert [line.split()[1] for line in lines] == ["1", "10", "15"]  # rank 0 alone talks
    assert (tmp_path / "anneal" / "step_15").is_dir()


@pytest.mark.long
def test_two_ranks_go_on_as_if_they_had_not_been_interrupted(tmp_path):
    told = on_two_ranks("-m", "recipes.sft.tests.two_ranks_that_resume", str(tmp_path))
    assert sorted(line for line in told.splitlines() if "same" in line) == [
        f"rank {rank}: step {step} same" for rank in range(2) for step in (3, 7)
    ]


@pytest.mark.long
def test_the_readmes_command_trains_in_a_minute():
    command = [sys.executable, "-m", "recipes.sft.train", "--stage", "sft"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    losses = [float(line.split()[3]) for line in done.stdout.splitlines()]
    assert losses[0] > 5.0
    assert losses[-1] < 3.5


@pytest.mark.long
def test_the_proof_of_the_wiring_holds():
    proof = "recipes/sft/tests/skills/loss-spike-guard/asserts.py"
    ended = subprocess.run([sys.executable, "-m", "pytest", "-q", proof], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout
