"""A run that is stopped, killed or gone on with by another call ends where one in one go ends: to the last bit."""

import hashlib
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.tests.small_twin import engine_with, history, logs, saved, small, trained
from recipes.twin_moe.train import train
from trimtab.analysis.same_bits import compare_bits
from trimtab.checkpoint import Checkpointer, CheckpointError
from trimtab.gates.judging import judge_chunk

ROOT = Path(__file__).parents[3]


def same(one, other):
    """Whether two trees of plain values and tensors are the same to the last bit, NaN included."""
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and repr(one) == repr(other)


def checksums(folder):
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def steps_of(folder):
    return sorted(int(path.name.removeprefix("step_")) for path in folder.glob("step_*"))


def quietly(config, out, **settings):
    return train(config, out=out, tell=lambda line: None, **settings)


def assert_same_training(out, expected):
    here, there = saved(out / "segment_1" / "step_120"), saved(expected / "segment_1" / "step_120")
    assert here.keys() == there.keys()
    for part in here:
        assert same(here[part], there[part]), part
    assert trained(out, "step") == trained(expected, "step")
    assert trained(out, "eval") == trained(expected, "eval")
    [log], [other] = logs(out), logs(expected)
    found = compare_bits(log, other)
    assert found.first is None, found.first
    assert found.num_steps == 120
    assert {"loss", "grad_norm", "lr", "row"} <= {name.rpartition(".")[2] for name in found.columns}


# Stopped and killed.


def test_60_steps_and_a_resume_to_120_are_120_in_one_go(whole, halfway):
    assert [row["step"] for row in history(halfway, "step")] == list(range(1, 61))
    quietly(small(), halfway)
    assert_same_training(halfway, whole[0])
    assert [row["step"] for row in history(halfway, "step")] == list(range(1, 121))


@pytest.mark.long
def test_a_run_killed_between_two_evaluations_goes_on_from_its_newest_checkpoint_as_if_it_had_not_been(whole, tmp_path):
    # given
    program = [sys.executable, "-m", "recipes.twin_moe.tests.small_twin", str(tmp_path), "--kill-at", "73"]
    killed = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert killed.returncode == -9, killed.stderr
    before = (tmp_path / "history.jsonl").read_bytes()
    # when
    lines = []
    train(small(), out=tmp_path, tell=lines.append)
    # then
    assert_same_training(tmp_path, whole[0])
    assert (tmp_path / "history.jsonl").read_bytes().startswith(before)
    [line] = [line for line in lines if line.startswith("resumes ")]
    assert f"{tmp_path / 'segment_1' / 'step_60'}: step 60, best eval loss " in line
    assert [row["step"] for row in history(tmp_path, "step")][-60:] == list(range(61, 121))


def test_resuming_tells_the_file_the_step_and_the_best_evaluation(whole, halfway):
    lines = []
    train(small(), out=halfway, stop_at=61, tell=lines.append)
    at_60 = next(row for row in history(whole[0], "eval") if row["step"] == 60)
    assert lines[0] == (
        f"resumes {halfway / 'segment_1' / 'step_60'}: step 60, best eval loss {at_60['best_eval']:.4f} at step "
        f"{at_60['best_eval_step']}, streak {at_60['regress_streak']}"
    )


def test_an_early_end_is_evaluated_saved_and_round_tripped_and_the_schedule_stays_what_it_is(whole, tmp_path):
    ended = quietly(small(), tmp_path, stop_at=7)
    assert steps_of(tmp_path / "segment_1") == [7]
    assert [row["step"] for row in history(tmp_path, "eval")] == [7]
    assert ended.round_trip.same
    rates = [[row["lr"] for row in history(out, "step")][:7] for out in (tmp_path, whole[0])]
    assert rates[0] == rates[1]


def test_what_is_behind_is_not_trained_again(halfway):
    before, lines = checksums(halfway), []
    for stop_at in (60, 30):
        ended = train(small(), out=halfway, stop_at=stop_at, tell=lines.append)
        assert (ended.step, ended.num_steps) == (60, 0)
    newest = halfway / "segment_1" / "step_60"
    assert lines == [
        f"nothing to train: {newest} is behind step 60, and --stop-at is 60",
        f"nothing to train: {newest} is behind step 60, and --stop-at is 30",
    ]
    assert checksums(halfway) == before


def test_the_newest_five_checkpoints_are_kept(tmp_path):
    quietly(replace(small(), save_every=1), tmp_path, stop_at=7)
    assert steps_of(tmp_path / "segment_1") == [3, 4, 5, 6, 7]


# Other settings.


def rate(step, *, lr, num_steps=120, warmup=10):
    """What the schedule asks of a step, by hand: a line from lr / warmup to lr, then half a cosine to zero."""
    k = step - 1
    if k < warmup:
        return lr * (1 / warmup + (1 - 1 / warmup) * k / warmup)
    return lr * 0.5 * (1 + math.cos(math.pi * (k - warmup) / (num_steps - warmup)))


def test_a_new_rate_on_a_resume_is_the_same_schedule_at_that_rate(halfway):
    lines = []
    train(small(), out=halfway, asked={"lr": 1e-3}, stop_at=90, tell=lines.append)
    # then
    rates = {row["step"]: row["lr"] for row in history(halfway, "step")}
    expected = {step: rate(step, lr=3e-3 if step <= 60 else 1e-3) for step in range(1, 91)}
    assert rates == pytest.approx(expected, rel=1e-9)
    assert any("optim.lr is 0.001 from here on; up to the checkpoint it was 0.003" in line for line in lines)
    # and: the gate compares them with what was asked for
    [log] = logs(halfway)
    report = judge_chunk(log, checkpoints=halfway / "segment_1")
    gates = {gate.name: gate for gate in report.gates}
    assert (report.chunk.first_step, report.chunk.last_step) == (61, 90)
    assert gates["learning_rate"].status == "passed", gates["learning_rate"].text
    assert gates["round_trip"].status == "passed", gates["round_trip"].text
    # and: without a word the new rate is kept
    lines.clear()
    train(small(), out=halfway, stop_at=100, tell=lines.append)
    assert history(halfway, "step")[-1]["lr"] == pytest.approx(rate(100, lr=1e-3), rel=1e-9)
    assert any("optim.lr stays 0.001" in line and "--lr 0.003" in line for line in lines)


def test_the_weight_of_z_is_kept_on_a_resume_and_changed_by_name(tmp_path):
    def weights():
        rows = trained(tmp_path, "step")
        return {row["step"]: row["z_weighted"] / row["z"] for row in rows}

    quietly(small(), tmp_path, asked={"z_weight": 2e-3}, stop_at=5)
    lines = []
    train(small(), out=tmp_path, stop_at=8, tell=lines.append)
    assert weights() == pytest.approx(dict.fromkeys(range(1, 9), 2e-3))
    assert any("optim.z_weight stays 0.002" in line and "the preset has 0.0001" in line for line in lines)
    quietly(small(), tmp_path, asked={"z_weight": 0.5}, stop_at=10)
    assert weights() == pytest.approx(dict.fromkeys(range(1, 9), 2e-3) | {9: 0.5, 10: 0.5})
    last = trained(tmp_path, "step")[-1]
    terms = last["lbl_weighted"] + last["z_weighted"] + last["xpop_weighted"]
    assert last["loss"] == pytest.approx(last["ce"] + terms)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda config: replace(config, preset="local140a50"), "preset"),
        (lambda config: replace(config, seed=1), "seed"),
        (lambda config: replace(config, model=replace(config.model, num_layers=3)), r"model\.num_layers"),
        (lambda config: replace(config, data=replace(config.data, num_tokens=16)), r"data\.num_tokens"),
        (lambda config: replace(config, num_steps=240), "num_steps"),
    ],
    ids=["preset", "seed", "model", "data", "schedule"],
)
def test_other_settings_than_the_folders_are_refused_by_name_and_nothing_is_touched(halfway, change, named):
    before = checksums(halfway)
    with pytest.raises(ConfigError, match=rf"other settings: {named} \(.* --fresh"):
        quietly(change(small()), halfway)
    assert checksums(halfway) == before


# Unhealthy checkpoints.


def dead_router(engine):
    """From step 41 on the second router tells no token from another: its weights are zero."""
    if engine.step > 40:
        with torch.no_grad():
            engine.model.routers[1].linear.weight.zero_()


@pytest.fixture(scope="session")
def collapsed(tmp_path_factory):
    out = tmp_path_factory.mktemp("collapsed")
    quietly(small(), out, stop_at=60, make_engine=engine_with(dead_router))
    return out


def test_a_plain_resume_after_a_collapse_is_refused_and_names_the_last_healthy_checkpoint(collapsed):
    before = checksums(collapsed)
    with pytest.raises(CheckpointError) as refused:
        quietly(small(), collapsed)
    said = str(refused.value)
    newest, healthy = (collapsed / "segment_1" / f"step_{step}" for step in (60, 30))
    # what to do comes first: reasons are long
    assert said.startswith(f"{newest}, the newest checkpoint, is not healthy. The last healthy one is {healthy}: ")
    assert "blocks.1.router" in said
    assert checksums(collapsed) == before


def test_the_gates_fail_after_a_collapse_on_what_was_measured(collapsed):
    [log] = logs(collapsed)
    report = judge_chunk(log, checkpoints=collapsed / "segment_1")
    failed = {gate.name: gate.text for gate in report.with_status("failed")}
    assert {"router_load", "checkpoint_healthy"} <= failed.keys()
    assert "blocks.1.router" in failed["router_load"]
    assert {"finished", "nonfinite_steps", "learning_rate", "checkpoint_whole", "round_trip"} <= {
        gate.name for gate in report.with_status("passed")
    }
    # and: so says the command
    command = [Path(sys.executable).with_name("trimtab"), "gate", log]
    assert subprocess.run(command, capture_output=True, timeout=300).returncode == 3


@pytest.mark.parametrize("step", [30, 60], ids=["the healthy one", "the newest all the same"])
def test_either_checkpoint_is_gone_on_from_where_it_is_named(collapsed, copied, step):
    # given
    out = copied(collapsed)
    checkpoint = out / "segment_1" / f"step_{step}"
    # when
    ended = quietly(small(), out, resume_from=checkpoint, stop_at=step + 2)
    # then
    assert (ended.step, ended.num_steps, ended.segment) == (step + 2, 2, 1)
    assert [row["step"] for row in history(out, "step")][-2:] == [step + 1, step + 2]
    assert history(out, "segment")[-1]["resumed_from"] == str(checkpoint)


def test_what_goes_on_from_the_healthy_checkpoint_is_the_training_that_never_collapsed(collapsed, copied, whole):
    out = copied(collapsed)
    quietly(small(), out, resume_from=out / "segment_1" / "step_30", stop_at=44)
    steps = {row["step"]: row for row in history(out, "step")}  # of what was trained twice the later one
    assert [steps[step]["loss"] for step in range(1, 45)] == [row["loss"] for row in history(whole[0], "step")][:44]
    # and: a plain call goes on there, and not from what was left behind
    ended = quietly(small(), out, stop_at=46)
    assert (ended.step, ended.num_steps) == (46, 2)
    assert trained(out, "step")[:46] == trained(whole[0], "step")[:46]


# Ended before the first save.


def ended_before_it_saved(out, *, num_steps=3, **settings):
    """A call that is ended after some steps; it would save at the end of the schedule alone."""

    def end(engine):
        if len(steps) == num_steps:
            raise KeyboardInterrupt
        steps.append(engine.step)

    steps = []
    with pytest.raises(KeyboardInterrupt):
        quietly(replace(small(), save_every=120), out, make_engine=engine_with(end), **settings)


def lines_of(out, **settings):
    lines = []
    return train(small(), out=out, tell=lines.append, **settings), lines


@pytest.mark.parametrize("stop_at", [62, 60], ids=["training goes on", "nothing to train"])
def test_a_rewind_that_was_ended_before_it_saved_is_said_with_both_ways_on(halfway, stop_at):
    # given
    older = halfway / "segment_1" / "step_30"
    ended_before_it_saved(halfway, resume_from=older)
    # when
    ended, lines = lines_of(halfway, stop_at=stop_at)
    # then
    assert ended.step == stop_at
    assert lines[0] == (
        f"the last call here went back to {older} and was ended before it saved: this one goes on from step_60; "
        f"--resume-from {older} does that again"
    )
    # and: once training goes on the other way, no more
    if stop_at == 62:
        assert not any("went back" in line for line in lines_of(halfway, stop_at=63)[1])


def test_a_rewind_that_saved_is_gone_on_with_and_nothing_is_said(halfway):
    # given
    older = halfway / "segment_1" / "step_30"
    quietly(small(), halfway, resume_from=older, stop_at=40)
    # then
    ended, lines = lines_of(halfway, stop_at=41)
    assert (ended.num_steps, [line for line in lines if "went back" in line]) == (1, [])


def test_a_second_rewind_to_the_same_step_that_did_not_save_is_told_from_the_first_one_that_did(halfway):
    # given
    older = halfway / "segment_1" / "step_30"
    quietly(small(), halfway, resume_from=older, stop_at=40)
    ended_before_it_saved(halfway, resume_from=older)
    # then
    _, lines = lines_of(halfway, stop_at=41)
    assert f"this one goes on from step_40; --resume-from {older} does that again" in lines[0]


def test_a_rewind_that_trained_beyond_what_it_left_behind_and_did_not_save_is_said_too(halfway):
    older = halfway / "segment_1" / "step_30"
    ended_before_it_saved(halfway, num_steps=33, resume_from=older)
    _, lines = lines_of(halfway, stop_at=61)
    assert f"this one goes on from step_60; --resume-from {older} does that again" in lines[0]


def test_a_plain_call_that_was_ended_before_it_saved_leaves_nothing_behind(halfway, whole):
    ended_before_it_saved(halfway)
    ended, lines = lines_of(halfway, stop_at=61)
    assert (ended.num_steps, lines[0].partition(" ")[0]) == (1, "resumes")


def test_a_fresh_segment_that_was_ended_before_it_saved_is_begun_again(halfway):
    ended_before_it_saved(halfway, fresh=True)
    ended, lines = lines_of(halfway, stop_at=2)
    assert (ended.segment, ended.num_steps) == (2, 2)
    assert lines[0].startswith("begins segment 2 in ")


@pytest.mark.parametrize("option", ["resume_from", "base_checkpoint"])
def test_a_branch_that_was_ended_before_it_saved_is_said_where_a_plain_call_begins_anew(halfway, tmp_path, option):
    # given
    out, source = tmp_path / "branch", halfway / "segment_1" / "step_60"
    ended_before_it_saved(out, **{option: source})
    # when
    ended, lines = lines_of(out, stop_at=2)
    # then
    spelled = {"resume_from": "--resume-from", "base_checkpoint": "--base-ckpt"}[option]
    assert (ended.step, ended.num_steps) == (2, 2)
    assert lines[0] == (
        f"the last call here began from {source} and was ended before it saved: this one begins anew; "
        f"{spelled} {source} does that again"
    )


# Segments.


def test_a_fresh_start_begins_the_next_segment_and_touches_nothing_of_the_first(halfway, whole):
    # given
    before = checksums(halfway)
    told = (halfway / "history.jsonl").read_bytes()
    # when
    ended = quietly(small(), halfway, fresh=True, stop_at=10)
    # then
    assert (ended.segment, ended.num_steps) == (2, 10)
    after = checksums(halfway)
    history_file = Path("history.jsonl")
    assert {name: after.get(name) for name in before if name != history_file} == {
        name: checksum for name, checksum in before.items() if name != history_file
    }
    assert (halfway / "history.jsonl").read_bytes().startswith(told)
    assert {row["segment"] for row in history(halfway)} == {1, 2}
    assert len(logs(halfway)) == 2
    # and: it is the same training again
    again = [row for row in history(halfway, "step") if row["segment"] == 2]
    assert [row["loss"] for row in again] == [row["loss"] for row in history(whole[0], "step")][:10]
    # and: a plain call goes on with the newest segment
    assert quietly(small(), halfway, stop_at=11).segment == 2


def test_the_weights_of_a_checkpoint_begin_a_schedule_anew(halfway, tmp_path):
    # when
    lines, base = [], halfway / "segment_1" / "step_60"
    ended = train(small(), out=tmp_path / "other", base_checkpoint=base, stop_at=3, tell=lines.append)
    # then
    assert (ended.step, ended.segment) == (3, 1)
    rows = history(tmp_path / "other", "step")
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [row["lr"] for row in rows] == pytest.approx([rate(step, lr=3e-3) for step in (1, 2, 3)], rel=1e-9)
    assert rows[0]["loss"] < history(halfway, "step")[0]["loss"] - 1
    assert any(re.search(r"from the weights of .*step_60: the schedule begins anew", line) for line in lines)
    # and: where a run has begun already, only with --fresh
    with pytest.raises(ConfigError, match="has checkpoints of one already: add --fresh"):
        quietly(small(), halfway, base_checkpoint=base)
    assert quietly(small(), halfway, base_checkpoint=base, fresh=True, stop_at=1).segment == 2


def test_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(halfway, whole):
    model = halfway / "segment_1" / "step_60" / "model.pt"
    damaged = bytearray(model.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    model.write_bytes(damaged)
    ended = quietly(small(), halfway, stop_at=33)
    assert ended.num_steps == 3
    assert trained(halfway, "step")[:33] == trained(whole[0], "step")[:33]
    assert Checkpointer(halfway / "segment_1").pick().step == 33
