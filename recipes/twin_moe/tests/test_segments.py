"""Segments: which checkpoint a call goes on from, where it saves, and what it refuses."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.segments import choose_start, path_of, segments
from recipes.twin_moe.tests.small_twin import history, logs, small
from recipes.twin_moe.train import main, train
from trimtab.checkpoint import Checkpointer, CheckpointError, saved_config


def saved(folder, *steps, unhealthy=()):
    """Checkpoints of one run, of a model of five numbers."""
    checkpointer = Checkpointer(folder)
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in steps:
        assert checkpointer.save(step, model=model, optimizer=optimizer, healthy=step not in unhealthy)


def damage(checkpoint: Path) -> None:
    model = checkpoint / "model.pt"
    model.write_bytes(model.read_bytes()[:-100])


# Which names count.


def test_a_segments_name_counts_whole_and_as_a_number(tmp_path):
    # given
    for name in ("segment_2", "segment_10", "segment_1", "segment_03", "segment_4_old", "segment_", "segment_0"):
        (tmp_path / name).mkdir()
    (tmp_path / "segment_11").write_text("a file")
    # then
    assert [segment.number for segment in segments(tmp_path)] == [1, 2, 10]


def test_a_folder_that_is_not_there_has_no_segments_and_begins_the_first(tmp_path):
    start = choose_start(tmp_path / "none")
    assert (start.segment.number, start.segment.folder) == (1, tmp_path / "none" / "segment_1")
    assert (start.resume, start.weights) == (None, None)


# Which checkpoint.


def test_a_plain_call_goes_on_from_the_newest_checkpoint_of_the_newest_segment(tmp_path):
    # given
    saved(tmp_path / "segment_1", 9000)
    saved(tmp_path / "segment_2", 900, 1000)
    # then
    start = choose_start(tmp_path)
    assert (start.segment.number, path_of(start.resume).name) == (2, "step_1000")


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path):
    # given
    saved(tmp_path / "segment_1", 10, 20)
    damage(tmp_path / "segment_1" / "step_20")
    # then
    assert path_of(choose_start(tmp_path).resume).name == "step_10"


def test_an_unhealthy_newest_checkpoint_is_refused_with_the_last_healthy_one_and_both_ways_on(tmp_path):
    # given
    saved(tmp_path / "segment_1", 10, 20, 30, unhealthy=[30])
    # when
    with pytest.raises(CheckpointError) as refused:
        choose_start(tmp_path)
    # then
    text = str(refused.value)
    assert f"--resume-from {tmp_path / 'segment_1' / 'step_20'}" in text
    assert f"--resume-from {tmp_path / 'segment_1' / 'step_30'}" in text
    # and: either goes, by its name
    for name in ("step_20", "step_30"):
        start = choose_start(tmp_path, resume_from=tmp_path / "segment_1" / name)
        assert (start.segment.number, path_of(start.resume).name) == (1, name)


def test_where_no_checkpoint_is_healthy_the_refusal_says_so(tmp_path):
    saved(tmp_path / "segment_1", 10, unhealthy=[10])
    with pytest.raises(CheckpointError, match=r"no healthy one.*--fresh"):
        choose_start(tmp_path)


def test_a_segment_without_a_checkpoint_is_begun_and_no_older_one_is_gone_back_to(tmp_path):
    # given a second segment that was killed before its first save
    saved(tmp_path / "segment_1", 10)
    (tmp_path / "segment_2").mkdir()
    # then
    start = choose_start(tmp_path)
    assert (start.segment.number, start.resume) == (2, None)


def test_fresh_begins_the_segment_behind_the_newest(tmp_path):
    # given
    saved(tmp_path / "segment_1", 10)
    saved(tmp_path / "segment_3", 10)
    # then
    start = choose_start(tmp_path, fresh=True)
    assert (start.segment.number, start.resume, start.weights) == (4, None, None)


def test_a_checkpoint_of_an_older_segment_goes_on_there_and_says_which_is_newer(tmp_path):
    # given
    saved(tmp_path / "segment_1", 10)
    saved(tmp_path / "segment_2", 10)
    # then
    start = choose_start(tmp_path, resume_from=tmp_path / "segment_1" / "step_10")
    assert start.segment.number == 1
    assert "segment 2 is newer" in start.remarks[0]


def test_a_checkpoint_of_another_folder_goes_on_in_a_free_segment(tmp_path):
    # given
    saved(tmp_path / "there" / "segment_1", 10)
    saved(tmp_path / "here" / "segment_1", 10)
    # then
    start = choose_start(tmp_path / "here", resume_from=tmp_path / "there" / "segment_1" / "step_10")
    assert start.segment.number == 2
    assert "another folder" in start.remarks[0]
    # and: where nothing is there yet, in the first
    assert choose_start(tmp_path / "new", resume_from=tmp_path / "there" / "segment_1" / "step_10").segment.number == 1


@pytest.mark.parametrize("place", ["segment_1", "."], ids=["segment", "out"])
def test_a_folder_that_is_named_means_the_newest_checkpoint_in_it(tmp_path, place):
    saved(tmp_path / "segment_1", 10, 20)
    start = choose_start(tmp_path, resume_from=tmp_path / place)
    assert (start.segment.number, path_of(start.resume).name) == (1, "step_20")


def test_weights_alone_begin_a_segment_and_never_one_that_has_checkpoints(tmp_path):
    # given
    saved(tmp_path / "there", 10)
    saved(tmp_path / "segment_1", 10)
    base = tmp_path / "there" / "step_10"
    # then
    with pytest.raises(ConfigError, match=r"segment_1 has checkpoints.*--fresh"):
        choose_start(tmp_path, base_checkpoint=base)
    start = choose_start(tmp_path, base_checkpoint=base, fresh=True)
    assert (start.segment.number, start.weights, start.resume) == (2, base, None)
    assert choose_start(tmp_path / "new", base_checkpoint=base).segment.number == 1


@pytest.mark.parametrize("other", [{"fresh": True}, {"base_checkpoint": Path("x")}], ids=["fresh", "base_checkpoint"])
def test_going_on_and_beginning_do_not_go_together(tmp_path, other):
    with pytest.raises(ConfigError, match="give one of them"):
        choose_start(tmp_path, resume_from=tmp_path, **other)


@pytest.mark.parametrize("option", ["resume_from", "base_checkpoint"])
def test_what_is_not_there_is_named(tmp_path, option):
    with pytest.raises(ConfigError, match="there is nothing"):
        choose_start(tmp_path, **{option: tmp_path / "step_10"})


def test_a_model_alone_is_refused_as_a_resume_with_what_it_lacks_and_what_it_is_good_for(tmp_path):
    # given
    path = tmp_path / "step_10.pt"
    torch.save(nn.Linear(4, 1).state_dict(), path)
    # then
    with pytest.raises(CheckpointError, match=r"lacks optimizer.*--base-ckpt"):
        choose_start(tmp_path / "out", resume_from=path)
    assert choose_start(tmp_path / "out", base_checkpoint=path).weights == path


def test_a_damaged_checkpoint_is_refused_also_by_its_name(tmp_path):
    saved(tmp_path / "segment_1", 10)
    damage(tmp_path / "segment_1" / "step_10")
    with pytest.raises(CheckpointError, match=r"model\.pt is truncated"):
        choose_start(tmp_path, resume_from=tmp_path / "segment_1" / "step_10")


# For real.


@pytest.fixture(scope="module")
def chunk(tmp_path_factory):
    out = tmp_path_factory.mktemp("chunk")
    train(small(num_steps=40), out=out, stop_at=15, tell=lambda line: None)
    return out


@pytest.fixture
def out(chunk, tmp_path):
    """A copy of a folder that was trained for 15 steps, to go on in."""
    return shutil.copytree(chunk, tmp_path / "out")


def told(config, **asked):
    lines = []
    return train(config, tell=lines.append, **asked), lines


def test_a_resume_tells_the_file_the_step_and_the_best_evaluation(out):
    # when
    _, lines = told(small(num_steps=40), out=out, stop_at=16)
    # then
    [row] = [row for row in history(out, "eval") if row["step"] == 15]
    assert lines[0] == (
        f"resumes {out / 'segment_1' / 'step_15'}: step 15, best eval loss {row['eval_loss']:.4f} at step 15, streak 0"
    )


def test_best_and_streak_are_part_of_the_checkpoint(out):
    state = torch.load(out / "segment_1" / "step_15" / "run.pt", weights_only=True)
    [row] = history(out, "eval")
    assert state["values"]["best_eval"] == {"best": row["eval_loss"], "best_step": 15, "num_worse": 0}


def test_a_stop_that_is_behind_trains_nothing_and_writes_nothing(out):
    # given
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    # when
    result, lines = told(small(num_steps=40), out=out, stop_at=15)
    # then
    assert (result.num_steps, result.step) == (0, 15)
    assert lines[0].startswith("nothing to train")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_without_a_rate_the_checkpoints_is_kept_and_said(out):
    # given
    told(small(num_steps=40), out=out, stop_at=16, asked={"lr": 1e-3, "z_weight": 1e-3})
    # when
    _, lines = told(small(num_steps=40), out=out, stop_at=17)
    # then
    assert any(line.startswith("optim.lr stays 0.001") and "--lr 0.003" in line for line in lines)
    assert any(line.startswith("optim.z_weight stays 0.001") and "--z-weight 0.0001" in line for line in lines)
    rows = {row["step"]: row for row in history(out, "step")}
    cosine = 0.5 * (1 + math.cos(math.pi * (16 - 10) / (40 - 10)))  # 16 steps finished, warm-up 10, 40 in all
    assert rows[17]["lr"] == pytest.approx(1e-3 * cosine)
    assert rows[15]["z_weighted"] == pytest.approx(1e-4 * rows[15]["z"])
    assert rows[17]["z_weighted"] == pytest.approx(1e-3 * rows[17]["z"])
    assert saved_config(out / "segment_1" / "step_17")["optim"]["lr"] == 1e-3


def test_what_was_trained_with_other_settings_is_refused_by_the_keys(out):
    # given
    other = small(num_steps=40)
    for changed, key in (
        ({"seed": 1}, "seed"),
        ({"model": other.model.__class__(**{**_plain(other.model), "dim": 32})}, "model.dim"),
        ({"accumulation": 3}, "accumulation"),
        ({"num_steps": 50}, "num_steps"),
    ):
        # then
        with pytest.raises(ConfigError, match=rf"{key} \(.*--fresh"):
            train(_with(other, **changed), out=out, tell=lambda line: None)


def test_how_often_it_evaluates_or_saves_may_change(out):
    result, _ = told(_with(small(num_steps=40), eval_every=4, save_every=4, keep=2, log_every=1), out=out, stop_at=20)
    assert result.step == 20
    assert sorted(path.name for path in (out / "segment_1").iterdir()) == ["step_16", "step_20"]


def test_a_branch_is_a_run_of_its_own_and_leaves_the_other_folder_as_it_is(out, tmp_path):
    # given
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    # when
    result, _ = told(
        small(num_steps=40), out=tmp_path / "branch", resume_from=out / "segment_1" / "step_15", stop_at=20
    )
    # then
    [log] = logs(tmp_path / "branch")
    assert result.checkpoint.run_id == log.name
    assert result.round_trip.same
    assert [row["step"] for row in history(tmp_path / "branch", "step")] == [16, 17, 18, 19, 20]
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before


def test_weights_alone_begin_the_schedule_anew_and_say_so(out, tmp_path):
    # when
    result, lines = told(
        small(num_steps=40), out=tmp_path / "new", base_checkpoint=out / "segment_1" / "step_15", stop_at=2
    )
    # then
    assert "the schedule begins anew" in lines[0]
    rows, base = history(tmp_path / "new", "step"), history(out, "step")
    assert [row["lr"] for row in rows] == [row["lr"] for row in base[:2]]
    assert rows[0]["ce"] < base[0]["ce"] - 0.2
    assert result.step == 2


def test_the_command_line_says_usage_errors_with_2_and_checkpoints_with_1(out, tmp_path, capsys):
    preset = ["--preset", "tiny", "--out", str(out)]
    assert main([*preset, "--stop-at", "0"]) == 2
    assert main([*preset, "--lr", "nan"]) == 2
    assert main([*preset, "--resume-from", str(tmp_path / "none")]) == 2
    assert main(preset) == 2  # the folder is of a smaller model
    assert "model.dim (16 there, " in capsys.readouterr().err
    damage(out / "segment_1" / "step_15")
    assert main(preset) == 1
    with pytest.raises(SystemExit) as left:
        main(["--preset", "tiny", "--probe", "--stop-at", "3"])
    assert left.value.code == 2


def _plain(section):
    return {name: getattr(section, name) for name in section.__dataclass_fields__}


def _with(config, **changed):
    return config.__class__(**{**_plain(config), **changed})
