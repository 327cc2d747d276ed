"""`trimtab prove --write-tests` leaves test files that run, that a linter has nothing to say about, and no more."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trimtab.proof import case_names
from trimtab.proof.written_tests import write_tests

LOOP = Path(__file__).resolve().parents[1] / "proof" / "scalar_loop.py"
NAMES = ["test_trimtab_proof.py", "test_structure.py", "test_smoke.py"]


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A user's own, the current folder: a loop and no tests."""
    shutil.copy(LOOP, tmp_path / "my_loop.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*command, cwd):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def test_three_files_are_written_once_and_never_over_others(repository):
    # given
    (repository / "tests").mkdir()
    (repository / "tests" / "test_smoke.py").write_text("mine\n")
    # when
    first = write_tests(Path("tests"), factory="my_loop:build")
    second = write_tests(Path("tests"), factory="other:build")
    # then
    assert [path.name for path in first.written] == ["test_trimtab_proof.py", "test_structure.py"]
    assert [path.name for path in first.left] == ["test_smoke.py"]
    assert (second.written, [path.name for path in second.left]) == ((), NAMES)
    assert (repository / "tests" / "test_smoke.py").read_text() == "mine\n"
    assert "other" not in "".join(path.read_text() for path in (repository / "tests").iterdir())


def test_what_is_written_is_formatted_and_lint_free_by_the_rules_of_this_project(repository, request):
    written = write_tests(Path("checks"), factory="my_loop:build").written
    config = Path(request.config.rootpath) / "pyproject.toml"
    for command in (("check",), ("format", "--check")):
        done = run(sys.executable, "-m", "ruff", *command, "--config", config, *written, cwd=repository)
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("name", ["my_loop:build", "my_loop:unguarded"])
def test_what_is_written_passes_where_the_loop_is_sound_from_whatever_folder_it_runs(repository, name):
    # given: a repository whose tests lie two folders deep
    (repository / "checks").mkdir()
    write_tests(Path("checks/guard"), factory=name, processes=(1,))
    # when
    done = run(sys.executable, "-m", "pytest", "-q", "-W", "error", ".", cwd=repository / "checks" / "guard")
    # then: the cases, some of which have no labels to take away; 5 tests of structure, 4 of smoke
    names = case_names(processes=(1,))
    num_spare = sum("no tokens" in case for case in names)
    if name == "my_loop:build":
        assert done.stdout.endswith("\n"), done.stderr
        assert f"{len(names) + 10 - num_spare} passed, {num_spare} skipped" in done.stdout, done.stdout
    else:
        assert " failed" in done.stdout, done.stdout
        assert "Found 0.0, expected 0.0" not in done.stdout
