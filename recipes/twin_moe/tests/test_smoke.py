"""The small preset trains, for real: its loss falls, its rows say where they stand, a bad micro-batch is left out, and
what a chunk leaves is what the next one, `rewind` and the gates read.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recipes.twin_moe.config import read_preset
from recipes.twin_moe.data import MicroBatches, Windows, read_sources
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.tests.small_twin import EVAL_COLUMNS, STEP_COLUMNS, engine_with, history, logs, small
from recipes.twin_moe.train import main, train
from trimtab.gates.judging import judge_chunk
from trimtab.log.reader import open_log

ROOT = Path(__file__).parents[3]


def test_a_short_training_learns(whole):
    steps, evals = history(whole[0], "step"), history(whole[0], "eval")
    assert [row["step"] for row in evals] == list(range(15, 121, 15))
    assert steps[0]["ce"] == pytest.approx(5.55, abs=0.1)  # ln 256
    assert steps[-1]["ce"] < steps[0]["ce"] - 1.5
    assert evals[-1]["ce"] < evals[0]["ce"] - 1.0
    assert [row["best_eval"] for row in evals] == pytest.approx(
        [min(r["ce"] for r in evals[: i + 1]) for i in range(8)]
    )


def test_every_row_of_the_history_has_its_columns_and_the_figures_fit_together(whole):
    steps, evals = history(whole[0], "step"), history(whole[0], "eval")
    assert all(row.keys() == STEP_COLUMNS for row in steps)
    assert all(row.keys() == EVAL_COLUMNS for row in evals)
    for row in steps:
        terms = [0.01 * row["lbl"], 1e-4 * row["z"], 0.01 * row["xpop"]]
        assert [row["lbl_weighted"], row["z_weighted"], row["xpop_weighted"]] == pytest.approx(terms)
        assert row["loss"] == pytest.approx(row["ce"] + sum(terms), rel=1e-6)
        assert row["tokens_per_s"] > 0
        assert row["device_memory_bytes"] is None
    for row in evals:
        assert sum(row["population_shares"]) == pytest.approx(1)
        assert 0 <= row["dead_fraction"] <= 1
        clipped = [step["grad_norm"] > 1.0 for step in steps[: row["step"]]]
        assert row["clip_fraction"] == pytest.approx(sum(clipped) / len(clipped))


def test_the_history_and_the_log_tell_the_same_steps(whole):
    table = open_log(logs(whole[0])[0]).steps().numpy()
    rows = history(whole[0], "step")
    for column, name in {"loss": "ce", "grad_norm": "grad_norm", "lr": "lr"}.items():
        assert table[column].tolist() == pytest.approx([row[name] for row in rows], rel=1e-6), column


def test_a_row_of_the_log_is_a_window_of_a_file_that_is_there(whole):
    # given
    config = small()
    rows = open_log(logs(whole[0])[0]).rows().numpy()
    windows = Windows(read_sources(held_out=False), num_tokens=config.data.num_tokens)
    library = Path(os.__file__).parent
    # then: the windows of step 7 are those of its micro-batches, and their bytes stand in the files
    batches = MicroBatches(config.data, seed=config.seed)
    expected = torch.cat([batches[number].rows for number in (12, 13)]).tolist()
    assert rows["row"][rows["step"] == 7].tolist() == expected
    for row, ids in zip(expected, torch.cat([batches[number].input_ids for number in (12, 13)]), strict=True):
        file, offset = windows.place(row)
        assert (library / file).read_bytes()[offset : offset + 32] == bytes(ids.tolist())


def test_a_planted_bad_micro_batch_is_left_out_and_said_in_its_row(tmp_path):
    # given: the second micro-batch of step 14 has logits of nonsense
    forwards = []

    def spoil(model, args, output):
        if model.training:
            forwards.append(None)
            if len(forwards) == 2 * 14:
                return output._replace(logits=1e4 * output.logits)
        return None

    def plant(engine):
        if engine.step == 1:
            forwards.extend([None, None])
            engine.model.register_forward_hook(spoil)

    # when
    lines = []
    train(small(), out=tmp_path, stop_at=15, tell=lines.append, make_engine=engine_with(plant))
    # then
    rows = history(tmp_path, "step")
    assert [row["num_skipped_micros"] for row in rows] == [0] * 13 + [1, 0]
    assert rows[13]["reason"] == "stepped"
    assert rows[13]["ce"] == pytest.approx(rows[12]["ce"], abs=0.5)
    assert rows[13]["loss"] == pytest.approx(rows[13]["ce"], abs=0.1)


def test_the_command_line_names_the_presets_and_refuses_what_makes_no_sense(capsys, tmp_path):
    with pytest.raises(SystemExit) as left:
        main(["--preset", "huge"])
    assert left.value.code == 2
    assert "local140a50" in capsys.readouterr().err
    out = ["--preset", "tiny", "--out", str(tmp_path / "none")]
    for wrong, named in {
        ("--stop-at", "401"): "--stop-at: found 401, expected a step of the schedule, 1 to 400",
        ("--lr", "-1"): "--lr: found -1.0",
        ("--z-weight", "nan"): "--z-weight: found nan",
        ("--resume-from", "x/step_1"): "there is nothing",
        ("--fresh", "--resume-from", "x/step_1"): "give one of them",
        ("--device", "abacus"): "--device",
    }.items():
        assert main([*out, *wrong]) == 2, wrong
        assert named in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_an_evaluation_changes_nothing_of_the_training():
    # given
    engine, other = (Engine(small(), out=None) for _ in range(2))
    # when
    for step in range(3):
        engine.train_step()
        other.train_step()
        if step == 1:
            found = [other.evaluate() for _ in range(2)]
    # then
    assert found[0] == found[1]
    assert other.model.training
    assert other.loss == engine.loss
    for one, two in zip(engine.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(one, two)
    engine.close()
    other.close()


@pytest.mark.long
def test_the_small_preset_trains_a_chunk_that_passes_its_gates_and_the_next_one_goes_on(tmp_path):
    # given
    def program(*command):
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    trainer = [sys.executable, "-m", "recipes.twin_moe.train", "--preset", "tiny", "--out", str(tmp_path)]
    trimtab = Path(sys.executable).with_name("trimtab")
    # when
    program(*trainer, "--stop-at", "200")
    # then
    [log] = logs(tmp_path)
    judged = judge_chunk(log, checkpoints=tmp_path / "segment_1")
    assert {gate.name: gate.text for gate in judged.gates if gate.status != "passed"} == {}
    assert json.loads(program(trimtab, "gate", "--strict", "--json", "-"))["passed"]
    assert "nothing" not in program(trimtab, "rewind").splitlines()[0]
    evals = history(tmp_path, "eval")
    assert [row["step"] for row in evals] == list(range(25, 201, 25))
    assert evals[-1]["ce"] < 3.0
    assert sorted(path.name for path in (tmp_path / "segment_1").iterdir()) == [
        "step_100", "step_150", "step_200", "step_50",
    ]  # fmt: skip
    # and
    told = program(*trainer, "--stop-at", "225")
    # a line is wrapped where its path is long
    resumed = f"resumes {tmp_path / 'segment_1' / 'step_200'}: step 200, best eval loss "
    assert " ".join(told.split()).startswith(resumed)
    report = json.loads(program(trimtab, "gate", str(log), "--json", "-"))
    assert (report["chunk"]["first_step"], report["chunk"]["last_step"]) == (201, 225)
    assert read_preset("tiny").save_every == 50
