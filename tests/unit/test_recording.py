"""`Recording`: where a run is recorded, and that nothing that goes wrong while recording is raised into training."""

import logging
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trimtab import registry
from trimtab.errors import UsageError
from trimtab.log.reader import open_log
from trimtab.recording import Recording
from trimtab.values import MicroBatch, RunHeader, StepRow

HEADER = RunHeader(run_id=None, backend="torch")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    caplog.set_level(logging.INFO, logger="trimtab")
    return lambda: [record.getMessage() for record in caplog.records]


def recording(out: Any, *, header: RunHeader = HEADER, **settings: Any) -> Recording:
    defaults = {"run_id": None, "record": True, "clock": lambda: 1700.0, "rule": None}
    return Recording(header, out=out, **(defaults | settings))


def fill(made: Recording, *, first: int = 1) -> None:
    for step in (first, first + 1):
        made.put(MicroBatch(step, 0, np.array([5]), np.array([1.0]), np.array([1]), 0, True, False), step=step)
        made.put(StepRow(step, 1.0, None, None, 0, None, None, math.nan, 1, 0, 0), step=step)
    made.event("note", {"text": "x"}, step=first + 1)
    made.flush(timeout_s=30)
    made.close(reason="closed", step=first + 2)


def off_lines(lines: list[str]) -> list[str]:
    return [line for line in lines if "recorder off" in line]


@pytest.mark.parametrize("name", [b"caf\xe9", "caf\u00e9".encode()])
def test_a_folder_whose_name_is_no_utf8_is_recorded_into_and_listed(
    tmp_path: Path, name: bytes, said: Callable[[], list[str]]
) -> None:
    out = os.fsdecode(bytes(tmp_path) + b"/" + name)

    made = recording(out)
    fill(made)

    assert off_lines(said()) == []
    assert made.folder is not None
    log = open_log(made.folder)
    assert log.header.out == out
    assert log.step_columns().step.tolist() == [1, 2]
    assert [run.path for run in registry.runs()] == [str(made.folder)]
    for line in said():
        line.encode()


@pytest.mark.parametrize("out", ["nu\0l", "\ud800", "x" * 5000, "/dev/null/x"])
def test_a_folder_that_the_system_cannot_take_turns_the_recorder_off_with_one_line(
    out: str, said: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for settings in ({}, {"run_id": "q"}):
        made = recording(out, **settings)
        fill(made)
        assert made.folder is None

    assert len(off_lines(said())) == 2
    assert all(line.startswith("Trimtab recorder off: ") for line in off_lines(said()))


def test_whatever_a_header_is_like_training_goes_on(tmp_path: Path, said: Callable[[], list[str]]) -> None:
    for backend in (b"bytes", None, "\ud800", 10**400, object()):
        fill(recording(tmp_path, header=RunHeader(run_id=None, backend=backend)))  # type: ignore[arg-type]

    assert len(off_lines(said())) == 4  # a surrogate is a text that JSON can spell


def test_a_working_folder_that_is_gone_turns_the_recorder_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    fill(recording("runs"))
    fill(recording("runs", run_id="q"))

    assert len(off_lines(said())) == 2


@pytest.mark.parametrize("broken", ["create_run", "Recorder", "register"])
def test_a_fault_of_our_own_at_the_start_never_reaches_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]], broken: str
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise AttributeError("a fault of ours")

    monkeypatch.setattr(f"trimtab.recording.{broken}", fail)
    fill(recording(tmp_path))

    assert off_lines(said()) == ["Trimtab recorder off: AttributeError: a fault of ours"]


def test_a_run_whose_folder_was_copied_under_another_name_is_not_continued_in_vain(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    fill(recording(tmp_path, run_id="p"))
    shutil.copytree(tmp_path / "trimtab" / "p", tmp_path / "trimtab" / "q")
    files = sorted((tmp_path / "trimtab" / "q").rglob("*"))

    fill(recording(tmp_path, run_id="q"))

    (line,) = off_lines(said())
    assert "names the run 'p', and the folder is 'q'" in line
    assert sorted((tmp_path / "trimtab" / "q").rglob("*")) == files


def test_a_read_only_folder_turns_the_recorder_off_with_one_line(
    read_only_folder: Path, said: Callable[[], list[str]]
) -> None:
    made = recording(read_only_folder)

    fill(made)

    (line,) = off_lines(said())
    assert "Permission denied" in line
    assert str(read_only_folder) in line
    assert made.folder is None
    assert list(read_only_folder.iterdir()) == []


def test_a_folder_that_may_not_be_looked_into_turns_the_recorder_off(
    read_only_folder: Path, said: Callable[[], list[str]]
) -> None:
    # given a run of which only its owner may know whether it exists
    euid = os.geteuid()
    os.seteuid(os.getuid())
    closed = read_only_folder / "closed"
    read_only_folder.chmod(0o755)
    closed.mkdir(mode=0o700)
    os.seteuid(euid)
    if euid == os.getuid():  # no root here: then not even its owner
        closed.chmod(0)

    fill(recording(closed, run_id="q"))

    assert len(off_lines(said())) == 1


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"out": None}, "needs a folder, found out=None"),
        ({"out": "runs", "run_id": 5}, "must be text, found 5"),
        ({"out": "runs", "run_id": "../up"}, "run_id"),
    ],
)
def test_what_names_no_folder_is_refused_at_once(settings: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        recording(**settings)


@pytest.mark.parametrize(("rule", "words"), [("robust", "(guard robust)."), (None, "(no guard).")])
def test_the_first_line_names_the_folder_and_the_guard(
    tmp_path: Path, said: Callable[[], list[str]], rule: str | None, words: str
) -> None:
    made = recording(tmp_path, run_id="q", rule=rule)

    fill(made)

    assert said() == [f"Trimtab records run q in {tmp_path / 'trimtab' / 'q'} {words}"]


def test_a_recording_that_is_off_leaves_nothing_and_has_not_begun(tmp_path: Path) -> None:
    made = recording(tmp_path, record=False)

    fill(made)

    assert (made.is_on, made.has_begun, made.run_id, made.folder) == (False, False, None, None)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_continued_where_it_is_and_no_other_was_named(tmp_path: Path) -> None:
    # given
    fill(recording(tmp_path / "here", run_id="p"))
    made = [recording(tmp_path / "here"), recording(tmp_path / "here", run_id="q"), recording(tmp_path / "there")]

    # when
    for each in made:
        each.continue_from("p")
        fill(each, first=8)

    # then
    assert [each.run_id for each in made][:2] == ["p", "q"]
    assert made[2].run_id not in ("p", "q", None)
    for each, expected in zip(made, ([(8, {"attempt": 2})], [], []), strict=True):
        assert each.folder is not None
        events = open_log(each.folder).event_list()
        assert [(event.step, event.facts) for event in events if event.kind == "resume"] == expected


def test_an_event_is_of_the_step_that_it_names_while_the_run_is_in_another(tmp_path: Path) -> None:
    fill(recording(tmp_path, run_id="p"))
    made = recording(tmp_path, run_id="p")

    made.event("excluded", {"num_rows": 3}, step=7, of_step=0)
    made.close(reason="closed", step=7)

    assert made.folder is not None
    events = [(event.kind, event.step) for event in open_log(made.folder).event_list()]
    assert events[-3:] == [("resume", 7), ("excluded", 0), ("end", 7)]


def test_what_cannot_be_copied_is_told_by_its_words(tmp_path: Path) -> None:
    made = recording(tmp_path)

    made.event("note", {"lines": (line for line in "ab")}, step=1)
    made.close(reason="closed", step=1)

    assert made.folder is not None
    note, _ = open_log(made.folder).event_list()
    assert note.facts["lines"].startswith("<generator object")


def test_it_is_closed_once(tmp_path: Path) -> None:
    made = recording(tmp_path)
    assert not made.close(reason="closed", step=1), "nothing was recorded"
    made.event("note", {}, step=1)
    assert made.close(reason="closed", step=1)
    assert not made.close(reason="closed", step=1)
