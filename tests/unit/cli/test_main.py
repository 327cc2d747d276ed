"""The command as a process: help, exit codes, pipes, and what it costs to start."""

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
    for verb in ("rewind", "runs"):
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


def test_a_reader_that_has_seen_enough_is_no_error(spiky):
    # given: `trimtab rewind | true`
    read, write = os.pipe()
    os.close(read)
    # when
    process = subprocess.run([TRIMTAB, "rewind", spiky], stdout=write, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(write)
    # then
    assert (process.returncode, process.stderr) == (0, "")


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
