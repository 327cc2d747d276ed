"""`RunCore`: nothing that goes wrong while recording is raised into training."""

import json
import logging
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab import registry
from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.log.reader import open_log
from trimtab.run import RunCore
from trimtab.values import RunHeader

HEADER = RunHeader(run_id=None, backend="torch")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    caplog.set_level(logging.INFO, logger="trimtab")
    return lambda: [record.getMessage() for record in caplog.records]


def train(core: RunCore, *, num_steps: int = 2) -> None:
    for _ in range(num_steps):
        core.record_micro_batch(np.array([5]), np.array([1.0]), np.array([1]))
        core.end_step(loss=1.0, num_tokens=1)
    core.event("note", {"text": "x"})
    core.flush()
    core.close()


def off_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if "recorder off" in line]


@pytest.mark.parametrize("name", [b"caf\xe9", "caf\u00e9".encode()])
def test_a_folder_whose_name_is_no_utf8_is_recorded_into_and_listed(
    tmp_path: Path, name: bytes, said: Callable[[], list[str]]
) -> None:
    out = os.fsdecode(bytes(tmp_path) + b"/" + name)

    core = RunCore(HEADER, out=out)
    train(core)

    assert off_lines(said()) == []
    assert core.folder is not None
    log = open_log(core.folder)
    assert log.header.out == out
    assert log.step_columns().step.tolist() == [1, 2]
    assert [run.path for run in registry.runs()] == [str(core.folder)]
    for line in said():
        line.encode()


@pytest.mark.parametrize("out", ["nu\0l", "\ud800", "x" * 5000, "/dev/null/x"])
def test_a_folder_that_the_system_cannot_take_turns_the_recorder_off_with_one_line(
    out: str, said: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for settings in ({}, {"run_id": "q"}):
        core = RunCore(HEADER, out=out, **settings)
        train(core)
        assert core.folder is None

    assert len(off_lines(said())) == 2
    assert all(line.startswith("Trimtab recorder off: ") for line in off_lines(said()))


def test_whatever_a_header_is_like_training_goes_on(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    for backend in (b"bytes", None, "\ud800", 10**400, object()):
        train(RunCore(RunHeader(run_id=None, backend=backend), out=tmp_path))  # type: ignore[arg-type]

    assert len(off_lines(said())) == 4  # a surrogate is a text that JSON can spell


def test_a_working_folder_that_is_gone_turns_the_recorder_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    train(RunCore(HEADER, out="runs"))
    train(RunCore(HEADER, out="runs", run_id="q"))

    assert len(off_lines(said())) == 2


@pytest.mark.parametrize("broken", ["trimtab.run.create_run", "trimtab.run.Recorder", "trimtab.run.register"])
def test_a_fault_of_our_own_at_the_start_never_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]], broken: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AttributeError("a fault of ours")

    monkeypatch.setattr(broken, fail)
    train(RunCore(HEADER, out=tmp_path))

    assert off_lines(said()) == ["Trimtab recorder off: AttributeError: a fault of ours"]


def test_a_run_whose_folder_was_copied_under_another_name_is_not_continued_in_vain(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    train(RunCore(HEADER, out=tmp_path, run_id="p"))
    shutil.copytree(tmp_path / "trimtab" / "p", tmp_path / "trimtab" / "q")
    size = (tmp_path / "trimtab" / "q" / "rank-00000.journal").stat().st_size

    train(RunCore(HEADER, out=tmp_path, run_id="q"))

    (line,) = off_lines(said())
    assert "names the run 'p', and the folder is 'q'" in line
    assert (tmp_path / "trimtab" / "q" / "rank-00000.journal").stat().st_size == size


@pytest.mark.skipif(
    sys.platform == "win32" or os.geteuid() == 0, reason="asks for a folder that may not be looked into"
)
def test_a_folder_that_may_not_be_looked_into_turns_the_recorder_off(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    out = tmp_path / "closed"
    out.mkdir()
    out.chmod(0)
    try:
        train(RunCore(HEADER, out=out, run_id="q"))
    finally:
        out.chmod(0o700)

    assert len(off_lines(said())) == 1


GUARD = GuardConfig(multiplier=2.0)


def trained_state(tmp_path: Path) -> dict[str, Any]:
    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    core.judge(1.0, 1)
    train(core)
    return core.state_dict()


@pytest.mark.parametrize(
    "change",
    [
        {"step": "a"},
        {"step": None},
        {"step": 0},
        {"step": 1.5},
        {"step": True},
        {"step": 2**63},
        {"run_id": "../x"},
        {"run_id": 5},
        {"guard": []},
        {"guard": {"version": 1}},
        {"version": 2},
        {"version": None},
    ],
    ids=repr,
)
def test_a_damaged_state_is_refused_before_anything_is_taken_over(tmp_path: Path, change: dict[str, Any]) -> None:
    state = trained_state(tmp_path) | change
    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    before = json.dumps(core.state_dict())

    with pytest.raises(UsageError):
        core.load_state_dict(state)

    assert json.dumps(core.state_dict()) == before


@pytest.mark.parametrize("state", [None, [], "x", {}])
def test_what_is_no_state_is_refused(tmp_path: Path, state: Any) -> None:
    with pytest.raises(UsageError):
        RunCore(HEADER, out=tmp_path).load_state_dict(state)


@pytest.mark.parametrize("key", ["version", "step"])
def test_a_state_without_what_decides_is_refused(tmp_path: Path, key: str) -> None:
    state = trained_state(tmp_path)
    del state[key]

    with pytest.raises(UsageError, match=key):
        RunCore(HEADER, out=tmp_path, guard=GUARD).load_state_dict(state)


def test_a_state_continues_its_run(tmp_path: Path) -> None:
    state = json.loads(json.dumps(trained_state(tmp_path)))

    core = RunCore(HEADER, out=tmp_path, guard=GUARD)
    core.load_state_dict(state)
    train(core)

    assert core.folder is not None
    columns = open_log(core.folder).step_columns()
    assert columns.attempt.tolist() == [1, 1, 2, 2]
    assert columns.step.tolist() == [1, 2, 3, 4]
