"""`trimtab demo` as a user runs it: real trainings in processes of their own, judged by `planted.json` alone."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

TRIMTAB = Path(sys.executable).with_name("trimtab")


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(TRIMTAB), *arguments], cwd=cwd, capture_output=True, text=True, timeout=600)


def load(path: Path) -> dict[str, Any]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is no JSON")

    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)
    return document


def rewind(folder: Path, *arguments: str, cwd: Path) -> dict[str, Any]:
    done = run("rewind", str(folder), "--json", "-", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def run_folder_of(out: Path) -> Path:
    (folder,) = (out / "trimtab").iterdir()
    return folder


def planted_of(out: Path, *kinds: str) -> list[tuple[int, int, str]]:
    """Step, row and kind of what was planted, only the given kinds."""
    planted = load(out / "planted.json")
    return [
        (step, row, planted["kinds"][str(row)])
        for step, row in zip(planted["steps"], planted["rows"], strict=True)
        if planted["kinds"][str(row)] in kinds
    ]


def check_a_guarded_demo(tmp_path: Path, seed: int) -> None:
    # Given a demo with the guard on.
    done = run("demo", "--seed", str(seed), "--json", "demo.json", cwd=tmp_path)
    out = tmp_path / "trimtab-demo"
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii()

    # Then every planted row that the loss can show is a finding, and named first at its step.
    run_folder = run_folder_of(out)
    report = load(out / "report.json")
    needed = planted_of(out, "garbage", "nonfinite")
    assert sorted(kind for _, _, kind in needed) == ["garbage"] * 3 + ["nonfinite"] * 2
    assert len(planted_of(out, "repeated")) == 1
    for step, row, kind in needed:
        finding = next(spike for spike in report["spikes"] if spike["first"] <= step <= spike["last"])
        assert finding["kind"] == {"garbage": "spike", "nonfinite": "nonfinite"}[kind]
        asked = rewind(run_folder, "--step", str(step), cwd=tmp_path)
        assert asked["rows"][0]["row"] == row
        assert asked["rows"][0]["share"] == 0.0 if kind == "nonfinite" else asked["rows"][0]["share"] > 0.5

    # And nothing else is a finding of the loss.
    planted_steps = {step for step, _, _ in needed}
    assert {spike["step"] for spike in report["spikes"] if spike["severity"] != "notice"} == planted_steps

    # And the run survived because exactly their micro-batches were left out.
    result = load(tmp_path / "demo.json")
    assert result["survived"] is True
    assert len(result["skipped"]) == len(needed)
    assert {skip["step"] for skip in result["skipped"]} == planted_steps
    for skip in result["skipped"]:
        assert f"Guard skipped micro-batch {skip['micro']} of step {skip['step']}:" in done.stdout

    # And the rows it left are those that were trained on, and the repeated one stands out by its text.
    ((step, row, _),) = planted_of(out, "repeated")
    asked = rewind(run_folder, "--step", str(step), "--data", str(out / "rows.jsonl"), cwd=tmp_path)
    repetition = {entry["row"]: entry["repetition"] for entry in asked["rows"]}
    assert all(entry["preview"] for entry in asked["rows"])
    assert repetition.pop(row) > 0.8 > 0.4 > max(repetition.values())

    # And the report is what rewind says of the log.
    assert report == rewind(run_folder, cwd=tmp_path)
    assert result["report"] == report


def test_every_planted_row_is_named_first_and_the_guard_skips_exactly_those(tmp_path: Path) -> None:
    check_a_guarded_demo(tmp_path, seed=0)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1, 10))
def test_every_planted_row_is_named_first_for_other_seeds(tmp_path: Path, seed: int) -> None:
    check_a_guarded_demo(tmp_path, seed)


@pytest.mark.long
def test_without_a_guard_the_run_dies_and_rewind_says_of_what(tmp_path: Path) -> None:
    # Given a demo without a guard.
    done = run("demo", "--no-guard", "--seed", "3", "--out", "died", "--json", "demo.json", cwd=tmp_path)
    out = tmp_path / "died"
    assert done.returncode == 0, done.stdout + done.stderr

    # Then it died at the non-finite row and was stopped soon after.
    (garbage,) = planted_of(out, "garbage")
    (nonfinite,) = planted_of(out, "nonfinite")
    result, report = load(tmp_path / "demo.json"), load(out / "report.json")
    assert garbage[0] < nonfinite[0]
    assert result["survived"] is False
    assert result["dead_since"] == nonfinite[0]
    assert report["num_steps"] <= nonfinite[0] + 20
    assert "stopping here" in done.stdout

    # And the worst finding is that death, from there to the end, with its row first.
    worst = report["spikes"][0]
    assert (worst["severity"], worst["kind"]) == ("critical", "nonfinite")
    assert (worst["first"], worst["last"]) == (nonfinite[0], report["num_steps"])
    assert rewind(run_folder_of(out), "--step", str(nonfinite[0]), cwd=tmp_path)["rows"][0]["row"] == nonfinite[1]

    # And the garbage row before it is a spike of its own.
    assert any(spike["kind"] == "spike" and spike["first"] <= garbage[0] <= spike["last"] for spike in report["spikes"])
    assert rewind(run_folder_of(out), "--step", str(garbage[0]), cwd=tmp_path)["rows"][0]["row"] == garbage[1]


def interrupt_at(text: str, *arguments: str, cwd: Path) -> tuple[int, str, str]:
    """Starts a demo, sends SIGINT once a line of its story holds `text`, and waits for its end."""
    with subprocess.Popen(
        [str(TRIMTAB), "demo", *arguments], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        watchdog = threading.Timer(120, process.kill)
        watchdog.start()
        lines = []
        for line in process.stdout:
            lines.append(line)
            if text in line:
                process.send_signal(signal.SIGINT)
                break
        rest, errors = process.communicate()
        watchdog.cancel()
    return process.returncode, "".join(lines) + rest, errors


@pytest.mark.long
@pytest.mark.parametrize("moment", ["reading question", "loading torch", "built a Llama", "step  30 of"])
def test_an_interrupted_demo_leaves_nothing_behind_and_says_so_in_one_line(
    tmp_path: Path, trimtab_home: Path, moment: str
) -> None:
    code, _, errors = interrupt_at(moment, "--out", "a/b", cwd=tmp_path)

    assert code == 130
    assert errors == "Interrupted: what this demo had made was removed again.\n"
    assert list(tmp_path.iterdir()) == []
    assert run("runs", cwd=tmp_path).stdout.startswith("No run is registered")


@pytest.mark.long
def test_an_interrupted_demo_leaves_a_former_one_as_it_was(tmp_path: Path) -> None:
    out = tmp_path / "trimtab-demo"
    (out / "trimtab" / "former").mkdir(parents=True)
    (out / "planted.json").write_text('{"rows": [], "steps": [], "kinds": {}}')
    (out / "report.json").write_text('{"version": 1}')

    code, _, _ = interrupt_at("step  30 of", cwd=tmp_path)

    assert code == 130
    assert (out / "planted.json").read_text() == '{"rows": [], "steps": [], "kinds": {}}'
    assert (out / "report.json").read_text() == '{"version": 1}'
    assert [entry.name for entry in (out / "trimtab").iterdir()] == ["former"]


def test_a_folder_of_something_else_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")

    done = run("demo", "--out", ".", cwd=tmp_path)

    assert done.returncode == 2
    assert done.stdout == ""
    assert "thesis.tex" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("arguments", [("--seed", "-1"), ("--seed", "x"), ("--json", "/elsewhere.json"), ("extra",)])
def test_a_call_that_makes_no_sense_is_refused(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    done = run("demo", *arguments, cwd=tmp_path)

    assert done.returncode == 2
    assert list(tmp_path.iterdir()) == []


def test_with_trimtab_switched_off_the_demo_says_what_to_unset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRIMTAB", "off")

    done = run("demo", cwd=tmp_path)

    assert done.returncode == 2
    assert "unset" in done.stderr
    assert list(tmp_path.iterdir()) == []
