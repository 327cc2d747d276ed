"""A call that is interrupted says what to call next, and that call does it."""

import pytest

from recipes.twin_moe.engine import Engine
from recipes.twin_moe.tests.small_twin import small
from recipes.twin_moe.train import main

PRESET = ("--preset", "tiny")


def cut_short(checkpoint):
    model = checkpoint / "model.pt"
    model.write_bytes(model.read_bytes()[:-100])


@pytest.fixture
def interrupted(monkeypatch, capsys):
    """Calls the program, interrupts it after some steps, and gives what it says at its end."""

    def interrupted(*arguments, num_steps, meanwhile=lambda: None):
        steps = []

        def step_or_end(engine, micro_batches=None):
            if len(steps) == num_steps:
                meanwhile()
                raise KeyboardInterrupt
            steps.append(engine.step)
            return train_step(engine, micro_batches)

        with monkeypatch.context() as patch:
            patch.setattr(Engine, "train_step", step_or_end)
            assert main([*PRESET, *map(str, arguments)]) == 130
        told = " ".join(capsys.readouterr().out.split())
        return told[told.index("interrupted") :]

    train_step = Engine.train_step
    monkeypatch.setattr("recipes.twin_moe.train.read_preset", lambda name: small())
    return interrupted


def begins(out, *arguments, capsys):
    """What a call says of where it begins."""
    assert main([*PRESET, "--out", str(out), *map(str, arguments)]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_a_plain_call_that_is_interrupted_says_what_the_same_call_goes_on_from(interrupted, capsys, tmp_path):
    # given
    out = tmp_path / "out"
    # then
    assert interrupted("--out", out, num_steps=3) == (
        "interrupted before its first save: the same call begins segment 1 anew"
    )
    newest = out / "segment_1" / "step_30"
    assert interrupted("--out", out, num_steps=31) == f"interrupted: the same call goes on from {newest}"
    assert begins(out, "--stop-at", 31, capsys=capsys).startswith(f"resumes {newest}: step 30")


def test_a_call_that_begins_or_goes_back_names_the_call_that_does_not_when_it_is_interrupted(
    interrupted, halfway, capsys
):
    # given
    older, newest = (halfway / "segment_1" / f"step_{step}" for step in (30, 60))
    call = ("--out", halfway)
    # then: before the first save
    assert interrupted(*call, "--resume-from", older, num_steps=3) == (
        f"interrupted before its first save: without --resume-from, the same call goes on from {newest}; "
        f"--resume-from {older} does that again"
    )
    assert interrupted(*call, "--fresh", "--base-ckpt", older, num_steps=3) == (
        "interrupted before its first save: without --base-ckpt and --fresh, the same call begins segment 2 anew; "
        f"--base-ckpt {older} does that again"
    )
    assert interrupted(*call, "--base-ckpt", older, num_steps=3) == (
        "interrupted before its first save: without --base-ckpt, the same call begins segment 2 anew; "
        f"--base-ckpt {older} does that again"
    )
    # and: behind it
    said = interrupted(*call, "--fresh", num_steps=33)
    saved_there = halfway / "segment_3" / "step_30"
    assert said == f"interrupted: without --fresh, the same call goes on from {saved_there}"
    assert begins(halfway, "--stop-at", 31, capsys=capsys).startswith(f"resumes {saved_there}: step 30")
    assert not (halfway / "segment_4").exists()


def test_an_interruption_before_the_first_step_says_what_a_call_without_the_options_does(interrupted, halfway):
    newest = halfway / "segment_1" / "step_60"
    assert interrupted("--out", halfway, "--resume-from", newest, num_steps=0) == (
        f"interrupted: without --resume-from, the same call goes on from {newest}"
    )
    assert interrupted("--out", halfway, "--fresh", num_steps=0) == (
        "interrupted before its first save: without --fresh, the same call begins segment 2 anew"
    )


def test_an_interruption_behind_the_last_save_says_that_there_is_nothing_left(interrupted, tmp_path, monkeypatch):
    # given
    def round_trip(engine, checkpoint):
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "round_trip", round_trip)
    # then
    assert interrupted("--out", tmp_path, "--stop-at", 2, num_steps=3) == (
        f"interrupted: the same call has nothing left to train: {tmp_path / 'segment_1' / 'step_2'} is saved"
    )


def test_an_interruption_says_where_the_call_without_the_options_is_refused(interrupted, halfway):
    # given
    checkpoints = [halfway / "segment_1" / f"step_{step}" for step in (30, 60)]
    # when
    said = interrupted(
        "--out",
        halfway,
        "--resume-from",
        checkpoints[-1],
        num_steps=1,
        meanwhile=lambda: [*map(cut_short, checkpoints)],
    )
    # then
    assert said.startswith("interrupted: without --resume-from, the same call is refused: ")
    assert "model.pt is truncated" in said
