"""What cannot be told or written costs nothing: training goes on, is saved, and ends as it would have."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipes.twin_moe.console import plain
from recipes.twin_moe.tests.small_twin import engine_with, history, logs, small
from recipes.twin_moe.train import train
from trimtab.checkpoint import Checkpointer
from trimtab.log.reader import open_log

ROOT = Path(__file__).parents[3]

PROGRAM = [sys.executable, "-m", "recipes.twin_moe.tests.small_twin"]

CONSOLES = {"cp1252": {"PYTHONIOENCODING": "cp1252:strict"}, "ascii": {"PYTHONIOENCODING": "ascii:strict"}}


def test_what_no_console_can_be_trusted_with_is_escaped():
    assert plain("a\x1b[31mb\u202e\udc80'\\\n") == "a\\x1b[31mb\\u202e\\udc80'\\\\n"


def start(out, *arguments, environment=None, **settings):
    return subprocess.Popen(
        [*PROGRAM, str(out), *arguments],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "error", **(environment or {})},
        stderr=subprocess.PIPE,
        **settings,
    )


def losses(out):
    [log] = logs(out)
    return open_log(log).steps().numpy()["loss"].tolist()


def assert_saved(out, *, step):
    info = Checkpointer(out / "segment_1").pick()
    assert (info.step, info.healthy) == (step, True)
    [log] = logs(out)
    assert [event.facts["same"] for event in open_log(log).event_list() if event.kind == "round_trip"] == [True]
    assert [event.facts["reason"] for event in open_log(log).event_list() if event.kind == "end"] == ["closed"]


@pytest.mark.parametrize("console", ["cp1252", pytest.param("ascii", marks=pytest.mark.long)])
def test_everything_told_is_plain_ascii_whatever_the_console_and_the_folders_name(tmp_path, console):
    # given: a folder whose name the console cannot show
    out = tmp_path / "l\u00e4ufe \u26a0 \u0416"
    # when
    program = start(out, "--stop-at", "20", environment=CONSOLES[console], stdout=subprocess.PIPE)
    told, complained = program.communicate(timeout=300)
    # then
    assert program.returncode == 0, complained
    lines = told.decode("ascii").splitlines()
    assert [line.split()[:3] for line in lines if line.startswith("eval")] == [
        ["eval", "step", "15"],
        ["eval", "step", "20"],
    ]
    assert complained.decode("ascii")
    assert (out / "history.jsonl").read_bytes().decode("ascii")
    assert_saved(out, step=20)


@pytest.mark.long
@pytest.mark.parametrize("way", ["closed", "full", "a pipe that nobody reads any more"])
def test_a_console_that_is_gone_costs_no_save(tmp_path, way):
    # when
    if way == "closed":
        command = 'exec "$@" >&-'
        program = subprocess.Popen(
            ["sh", "-c", command, "sh", *PROGRAM, str(tmp_path), "--stop-at", "40"], cwd=ROOT, stderr=subprocess.PIPE
        )
    elif way == "full":
        with Path("/dev/full").open("wb") as full:
            program = start(tmp_path, "--stop-at", "40", stdout=full)
    else:
        program = start(tmp_path, "--stop-at", "40", stdout=subprocess.PIPE)
        assert program.stdout.readline().startswith(b"begins segment 1")
        program.stdout.close()
        program.stdout = None
    _, complained = program.communicate(timeout=300)
    # then
    assert program.returncode == 0, complained
    assert b"Traceback" not in complained
    assert_saved(tmp_path, step=40)
    assert [row["step"] for row in history(tmp_path, "step")] == list(range(1, 41))


def test_a_history_on_a_full_disk_is_said_once_and_training_and_saves_go_on(tmp_path, whole):
    # given
    (tmp_path / "history.jsonl").symlink_to("/dev/full")
    # when
    lines = []
    train(small(), out=tmp_path, stop_at=12, tell=lines.append)
    # then
    [said] = [line for line in lines if line.startswith("history: ")]
    assert "No space left on device" in said
    assert "Training and saves go on" in said
    assert_saved(tmp_path, step=12)
    assert losses(tmp_path) == losses(whole[0])[:12]
    assert [line for line in lines if line.startswith("step ")] != []


def test_an_evaluation_that_raises_is_said_once_and_its_save_happens(tmp_path, whole):
    # given: held-out text that is gone
    engines = []

    def lose_it(engine):
        engine._held_out = None
        engines.append(engine)

    # when
    lines = []
    ended = train(small(), out=tmp_path, stop_at=16, tell=lines.append, make_engine=engine_with(lose_it))
    # then
    assert [line.partition(" failed at step ")[0] for line in lines if " failed at step " in line] == [
        "evaluation",
        "round trip",
    ]
    assert ended.checkpoint.step == 16
    assert engines[-1].model.training
    assert losses(tmp_path) == losses(whole[0])[:16]
    assert history(tmp_path, "eval") == []


def test_a_teller_that_raises_costs_nothing(tmp_path, capsys):
    def tell(line):
        raise UnicodeEncodeError("charmap", line, 0, 1, "character maps to <undefined>")

    ended = train(small(), out=tmp_path, stop_at=3, tell=tell)
    assert (ended.step, ended.checkpoint.step) == (3, 3)
    assert capsys.readouterr().err.count("A line could not be told") == 1


def test_an_evaluations_line_carries_the_telemetry_of_its_row(whole):
    out, lines = whole
    row = next(row for row in history(out, "eval") if row["step"] == 60)
    [line] = [line for line in lines if line.startswith("eval step 60 ")]
    for part in (
        f"ce {row['ce']:.4f} (best {row['best_eval']:.4f} at {row['best_eval_step']}, streak {row['regress_streak']})",
        f"z {row['z']:.2f}",
        f"populations {row['population_shares'][0]:.2f} {row['population_shares'][1]:.2f}",
        f"dead {row['dead_fraction']:.2f}",
        f"clipped {row['clip_fraction']:.2f}",
        f"{row['tokens_per_s']:,.0f} tok/s",
    ):
        assert part in line
    assert all(line.isascii() for line in lines)


def test_the_history_is_strict_json_in_ascii(whole):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    for line in (whole[0] / "history.jsonl").read_text(encoding="ascii").splitlines():
        json.loads(line, parse_constant=refuse)
