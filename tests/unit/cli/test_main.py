"""The command as a process: help, exit codes, pipes, and what it costs to start."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TRIMTAB = Path(sys.executable).with_name("trimtab")


def run(*arguments, **settings):
    return subprocess.run([TRIMTAB, *arguments], capture_output=True, text=True, timeout=60, **settings)


def test_the_version_is_printed():
    assert run("--version").stdout.startswith("trimtab 0.")


def test_help_lists_every_verb_and_each_has_an_example(trimtab):
    from trimtab.cli import VERBS

    text = trimtab("--help").stdout
    assert all(f"  {verb} " in text for verb in VERBS)
    for verb in VERBS:
        text = trimtab(verb, "--help").stdout
        assert "Example:\n" in text
        assert f"\n    trimtab {verb}" in text.replace("      trimtab", "    trimtab")
        assert "--json" in text


def test_help_loads_neither_verbs_nor_what_they_need():
    # given
    program = "import sys; from trimtab.cli import main\ntry: main(['--help'])\nexcept SystemExit: print(*sys.modules)"
    # when
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout.split()
    # then
    assert "click" in loaded
    assert not {"numpy", "duckdb", "rich", "torch", "trimtab.analysis"} & set(loaded)


@pytest.mark.parametrize(("arguments", "code"), [((), 2), (("bogus",), 2), (("rewind", "nosuch"), 1)])
def test_exit_codes_reach_the_shell(arguments, code, here):
    result = run(*arguments, cwd=here)
    assert result.returncode == code
    assert "Traceback" not in result.stderr


def test_an_unknown_verb_gets_the_nearest_or_all_of_them(trimtab):
    from trimtab.cli import VERBS

    result = trimtab("rewnd")
    assert (result.exit_code, result.stderr) == (2, "Error: there is no verb 'rewnd'. Did you mean rewind?\n")
    result = trimtab("runs/a\x1b[31m")
    assert result.exit_code == 2
    assert result.stderr.isascii()
    assert f"Use one of {', '.join(VERBS)}. A log is for trimtab rewind." in result.stderr
    assert trimtab("--nosuch").exit_code == 2


def test_a_reader_that_has_seen_enough_is_no_error(spiky):
    # given: `trimtab rewind | true`
    read, write = os.pipe()
    os.close(read)
    # when
    process = subprocess.run([TRIMTAB, "rewind", spiky], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    # then
    assert (process.returncode, process.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [("rewind", "rewind.jsonl"), ("--help",), ("runs",)])
def test_a_reader_that_has_seen_enough_changes_no_exit_code(spiky, here, arguments):
    read, write = os.pipe()
    os.close(read)
    for stream in ("stdout", "stderr"):
        process = subprocess.run([TRIMTAB, *arguments], cwd=here, timeout=60, **{stream: write})
        assert process.returncode == 0
    os.close(write)


def test_files_and_verdict_do_not_depend_on_who_reads_the_rest(spiky, here):
    read, write = os.pipe()
    os.close(read)
    verdict = [TRIMTAB, "rewind", spiky, "--fail-on", "warning", "--json"]
    for destination in ("out.json", "-"):
        process = subprocess.run([*verdict, destination], cwd=here, stdout=write, stderr=subprocess.PIPE, timeout=60)
        assert (process.returncode, process.stderr) == (3, b"")
    os.close(write)
    assert json.loads((here / "out.json").read_text())["spikes"]


@pytest.mark.parametrize(
    ("call", "code", "said"),
    [
        ("rewind rewind.jsonl >&-", 0, ""),
        ("rewind rewind.jsonl --fail-on warning >&- 2>&- <&-", 3, ""),
        ("rewind rewind.jsonl --json out.json >&-", 0, ""),
        ("rewind rewind.jsonl --json - >&-", 2, "standard output, which is closed"),
        ("rewind nosuch 2>&-", 1, ""),
        ("rewind nosuch >&- 2>&-", 1, ""),
        ("runs >&-", 0, ""),
        ("--help >&-", 0, ""),
        (">&- 2>&-", 2, ""),
    ],
)
def test_a_stream_that_the_caller_closed_is_no_traceback(spiky, here, call, code, said):
    before = spiky.read_bytes()
    process = subprocess.run(["sh", "-c", f"{TRIMTAB} {call}"], cwd=here, capture_output=True, text=True, timeout=60)
    assert process.returncode == code
    assert said in process.stderr
    assert "Traceback" not in process.stderr
    # then: no file got the number of a closed stream and was written to
    assert spiky.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device that is always full")
@pytest.mark.parametrize(("call", "code"), [("rewind rewind.jsonl", 1), ("rewind rewind.jsonl --json -", 1)])
def test_a_full_disk_behind_the_output_is_one_line(spiky, here, call, code):
    process = subprocess.run(
        ["sh", "-c", f"{TRIMTAB} {call} > /dev/full"], cwd=here, capture_output=True, text=True, timeout=60
    )
    assert process.returncode == code
    assert process.stderr.startswith("Error: ")
    assert process.stderr.count("\n") == 1


@pytest.mark.parametrize("columns", ["0", "1", "-5", "", "abc", "\u00b2", "9" * 30, "9" * 5_000])
def test_a_width_that_makes_no_sense_makes_nothing_vanish(trimtab, spiky, record, monkeypatch, columns):
    record("a")
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    assert "row 8: its loss is not finite" in trimtab("rewind", spiky).stdout
    lines = trimtab("runs").stdout.splitlines()
    assert any(line.startswith("a ") for line in lines)
    assert max(map(len, lines)) <= 1_000


def test_output_is_the_same_under_any_encoding(spiky):
    texts = {run("rewind", spiky, env={**os.environ, "PYTHONIOENCODING": name}).stdout for name in ("cp1252", "ascii")}
    assert len(texts) == 1
    assert texts.pop().isascii()


def test_a_file_that_may_not_be_read_is_one_line(here):
    # given: a folder where a file should be, under a file's name
    if os.geteuid() == 0:
        (here / "loop").symlink_to(here / "loop")
        result = run("rewind", "loop", cwd=here)
    else:
        (here / "secret.jsonl").touch(mode=0)
        result = run("rewind", "secret.jsonl", cwd=here)
    assert result.returncode == 1
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1


def cpu_s(command):
    """Least CPU time of five runs: what other processes of the machine do cannot make it smaller."""
    times = []
    for _ in range(5):
        before = os.times()
        subprocess.run(command, capture_output=True, check=True)
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(times)


def test_help_costs_little_more_than_python_itself():
    assert cpu_s([TRIMTAB, "--help"]) < 3 * cpu_s([sys.executable, "-c", "pass"]) + 0.060


def test_rewind_of_a_small_log_is_quick(spiky):
    began = time.perf_counter()
    assert cpu_s([TRIMTAB, "rewind", spiky]) < 0.6
    assert time.perf_counter() - began < 60
