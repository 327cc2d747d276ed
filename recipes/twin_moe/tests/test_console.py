"""What cannot be told or written costs nothing: training goes on, is saved, and ends as it would have."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from recipes.twin_moe.console import eval_line, plain, round_trip_line, say, step_line
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


def ended(program):
    """What it told and complained of; one that does not end is ended, and has failed."""
    try:
        return program.communicate(timeout=120)
    except subprocess.TimeoutExpired:
        program.kill()
        program.communicate()
        raise


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
    told, complained = ended(program)
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
        first = program.stdout.readline()  # there is no more of it where the program has died
        program.stdout.close()
        program.stdout = None
    _, complained = ended(program)
    # then
    assert program.returncode == 0, complained
    assert b"Traceback" not in complained
    assert b"could not be told" not in complained  # `say` itself takes it
    assert way != "a pipe that nobody reads any more" or first.startswith(b"begins segment 1")
    assert_saved(tmp_path, step=40)
    assert [row["step"] for row in history(tmp_path, "step")] == list(range(1, 41))


@pytest.mark.parametrize(
    "failure",
    [
        ValueError("I/O operation on closed file"),
        UnicodeEncodeError("charmap", "x", 0, 1, "character maps to <undefined>"),
        OSError(5, "Input/output error"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_saying_a_line_raises_nothing(monkeypatch, failure):
    class Broken:
        def write(self, text):
            raise failure

    monkeypatch.setattr(sys, "stdout", Broken())
    say("a line")
    monkeypatch.setattr(sys, "stdout", None)
    say("a line")


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
        f"shares {row['population_shares'][0]:.2f} {row['population_shares'][1]:.2f}",
        f"dead_fraction {row['dead_fraction']:.2f}",
        f"clipped {row['clip_fraction']:.2f}",
    ):
        assert part in line
    assert all(line.isascii() for line in lines)


# The lines.


STEP = {
    "step": 10_000, "loss": 5.5448, "ce": 5.5342, "lbl": 1.5, "z": 34063957188033144565006336.0, "xpop": 0.0001,
    "lr": 1.64e-3, "grad_norm": 1e5, "tokens_per_s": 123_456.0, "reason": "stepped", "num_skipped_micros": 1,
}  # fmt: skip
EVAL = {
    "step": 10_000, "eval_loss": 5.5448, "best_eval": 5.5342, "best_eval_step": 10_000, "regress_streak": 2,
    "z": 1e30, "population_shares": [0.25, 0.75], "dead_fraction": 0.125, "clip_fraction": 1.0,
}  # fmt: skip


def test_a_figure_that_has_left_all_bounds_is_told_by_its_first_digits():
    assert "  z 3.41e+25  " in step_line(STEP)
    assert "  norm 1e+05  " in step_line(STEP)
    assert "  z 99999.00  " in step_line(STEP | {"z": 99_999.0})
    assert "  z nan  " in step_line(STEP | {"z": "nan"})
    assert step_line(STEP | {"tokens_per_s": 5e5, "num_skipped_micros": 0}).endswith("  500,000 tok/s")


@pytest.mark.parametrize(
    "line",
    [
        step_line(STEP | {"z": 12.34, "grad_norm": 12.34}),
        step_line(STEP | {"loss": None, "ce": None, "grad_norm": None, "z": 12.34, "reason": "all_skipped"}),
        eval_line(EVAL),
    ],
    ids=["a step", "a step that was left out", "an evaluation"],
)
def test_also_the_widest_lines_keep_to_120_columns(line):
    assert len(line) <= 120


def test_what_is_longer_is_printed_in_lines_of_120_columns_and_no_path_is_broken(capsys):
    # given
    path = "/very-long/" + 13 * "folder-name/"
    # when
    say("a remark of several words " * 8 + path)
    # then
    lines = capsys.readouterr().out.splitlines()
    assert "".join(lines).split() == (8 * "a remark of several words " + path).split()
    assert lines[-1].strip() == path
    assert all(len(line) <= 120 for line in lines[:-1])


def test_all_that_a_training_tells_keeps_to_120_columns_and_says_each_thing_once(tmp_path, monkeypatch, capfd, caplog):
    # given: a folder with a name as short as the default's
    monkeypatch.chdir(tmp_path)
    out = Path("runs/twin-tiny")
    # when
    train(small(), out=out, stop_at=16)
    train(small(), out=out, stop_at=17, asked={"lr": 1e-3})
    # then
    told, complained = capfd.readouterr()[0], "\n".join(caplog.messages)
    assert "Trimtab records run" in complained
    assert [line for line in told.splitlines() if len(line) > 120] == []
    assert f"{told}{complained}".count("step_16:") == 1
    assert len([line for line in f"{told}{complained}".splitlines() if "0.001" in line or "1e-03" in line]) == 1
    trips = [line for line in f"{told}{complained}".splitlines() if "round trip" in line]
    assert [line.partition("; ")[0] for line in trips] == [
        "round trip: step_16 loads to the last bit",
        "round trip: step_17 loads to the last bit",
    ]


def trip(**probe):
    return SimpleNamespace(name="step_200", probe=SimpleNamespace(vocabulary_size=256, **probe) if probe else None)


def test_a_round_trip_is_told_by_the_bytes_that_are_expected_next():
    line = round_trip_line(trip(top_ids=(101, 32, 233, 97), top_probabilities=(0.214, 0.1, 0.05, 0.04), entropy=2.19))
    assert line == (
        "round trip: step_200 loads to the last bit; it expects 'e' 21%, ' ' 10%, '\\xe9' 5% next "
        "(entropy 2.19 of 5.55 nats)"
    )
    assert len(line) < 120
    assert round_trip_line(trip()) == "round trip: step_200 loads to the last bit"
    assert round_trip_line(trip(top_ids=(), num_nonfinite=7)).endswith("; 7 of its logits are not finite")


def test_the_history_is_strict_json_in_ascii(whole):
    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    for line in (whole[0] / "history.jsonl").read_text(encoding="ascii").splitlines():
        json.loads(line, parse_constant=refuse)
