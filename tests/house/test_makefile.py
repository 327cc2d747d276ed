"""The Makefile: what a newcomer types first."""

import os
import re
import shutil
import subprocess

import pytest


@pytest.fixture
def fresh(root, tmp_path):
    """A folder with what `make` reads, and nothing made yet."""
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(root / name, tmp_path / name)
    return tmp_path


def make(folder, *arguments):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "--no-print-directory", *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_make_alone_lists_every_target_with_one_line(fresh):
    # given
    targets = re.findall(r"^\.PHONY: (.+)$", (fresh / "Makefile").read_text(), re.MULTILINE)
    # when
    listed = make(fresh).stdout
    # then
    assert {"help", "demo", "test", "test-long", "check", "bench"} <= set(targets)
    assert re.findall(r"^  make ([a-z-]+) +\S.*$", listed, re.MULTILINE) == targets
    assert listed == make(fresh, "help").stdout


def test_without_a_suitable_python_make_says_what_to_do(fresh):
    # given: a Python that is none
    refused = make(fresh, "test", "PYTHON=/bin/false")
    # then
    assert refused.returncode != 0
    assert "Found no Python 3.11 to 3.14 under PYTHON=/bin/false; name one with: make PYTHON=" in refused.stderr


def test_without_the_venv_module_make_says_what_to_install(fresh):
    # given: a Python of the right age, packed without ensurepip as Debian does
    python = fresh / "bare-python"
    python.write_text('#!/bin/sh\ncase "$2" in *ensurepip*) exit 1 ;; esac\nexit 0\n')
    python.chmod(0o755)
    # when
    refused = make(fresh, "test", f"PYTHON={python}")
    # then
    assert refused.returncode != 0
    assert "without the venv module" in refused.stderr
    assert "apt install python3-venv" in refused.stderr


def test_what_is_installed_is_installed_again_only_when_pyproject_changed(fresh):
    # given: an environment as an installation leaves it
    (fresh / ".venv").mkdir()
    for stamp in (".made", ".installed-dev", ".installed-demo"):
        (fresh / ".venv" / stamp).touch()
    for name in ("dev", "demo"):
        assert make(fresh, "--question", f".venv/.installed-{name}").returncode == 0
    # when
    newer = (fresh / ".venv" / ".installed-dev").stat().st_mtime + 10
    os.utime(fresh / "pyproject.toml", (newer, newer))
    # then
    for name in ("dev", "demo"):
        assert make(fresh, "--question", f".venv/.installed-{name}").returncode == 1


def test_ci_runs_the_readmes_test_command_which_checks_first(root):
    script = root / ".ci" / "run"
    assert os.access(script, os.X_OK)
    commands = [line for line in script.read_text().splitlines() if line.startswith("make ")]
    assert commands == ["make test"]
    assert re.search(r"^test: check\b", (root / "Makefile").read_text(), flags=re.MULTILINE)
