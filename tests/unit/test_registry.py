"""The list of runs: found again, and never in the way."""

import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab import registry
from trimtab.values import RunHeader

HEADER = RunHeader(run_id="20260101-000000-aaaaaa", backend="torch", task="causal-lm", created=1.0, out="runs/a")


def add(run_id: str, *, created: float) -> None:
    assert registry.register(replace(HEADER, run_id=run_id, created=created), f"out/trimtab/{run_id}")


def test_a_registered_run_is_listed_with_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert registry.register(replace(HEADER, experiment="e"), "runs/a/trimtab/x")

    assert registry.runs() == [
        registry.RegisteredRun(
            HEADER.run_id, str(tmp_path / "runs/a/trimtab/x"), "torch", "causal-lm", 1.0, str(tmp_path / "runs/a"), "e"
        )
    ]


def test_runs_are_listed_newest_first() -> None:
    for run_id, created in (("b", 2.0), ("c", 3.0), ("a", 1.0), ("d", 3.0)):
        add(run_id, created=created)

    assert [run.run_id for run in registry.runs()] == ["d", "c", "b", "a"]
    newest = registry.newest()
    assert newest is not None
    assert newest.run_id == "d"


def test_a_run_is_found_by_a_prefix_and_an_exact_id_wins() -> None:
    for place, run_id in enumerate(("run-1", "run-10", "other")):
        add(run_id, created=float(place))

    assert [run.run_id for run in registry.find("run-1")] == ["run-1"]
    assert [run.run_id for run in registry.find("run-")] == ["run-10", "run-1"]
    assert [run.run_id for run in registry.find("o")] == ["other"]
    assert registry.find("x") == []


@pytest.mark.parametrize("prefix", ["%", "_", "run%", "' or 1=1 --", "\x00"])
def test_a_prefix_is_text_and_no_pattern(prefix: str) -> None:
    add("run-1", created=1.0)

    assert registry.find(prefix) == []


def test_one_id_in_two_folders_is_two_runs() -> None:
    registry.register(HEADER, "x")
    registry.register(HEADER, "y")

    assert len(registry.find(HEADER.run_id or "")) == 2


def test_a_continued_run_is_listed_once_with_its_newest_start() -> None:
    registry.register(HEADER, "x")
    registry.register(replace(HEADER, created=9.0), "x")

    assert [run.created for run in registry.runs()] == [9.0]


def test_a_forgotten_run_is_no_longer_listed_and_others_are() -> None:
    registry.register(HEADER, "x")
    registry.register(HEADER, "y")

    assert registry.forget("x")
    assert [Path(run.path).name for run in registry.runs()] == ["y"]
    assert registry.forget("never there")


def test_a_run_without_an_id_is_not_listed() -> None:
    assert not registry.register(replace(HEADER, run_id=None), "x")
    assert registry.runs() == []


def test_without_a_list_there_are_no_runs_and_no_folder_is_made(trimtab_home: Path) -> None:
    assert registry.runs() == []
    assert registry.find("a") == []
    assert registry.newest() is None
    assert list(trimtab_home.iterdir()) == []


@pytest.mark.parametrize(
    ("environ", "platform", "expected"),
    [
        ({"TRIMTAB_HOME": "/t", "XDG_DATA_HOME": "/x"}, "linux", "/t"),
        ({"XDG_DATA_HOME": "/x"}, "linux", "/x/trimtab"),
        ({"XDG_DATA_HOME": ""}, "linux", "~/.local/share/trimtab"),
        ({}, "darwin", "~/Library/Application Support/trimtab"),
        ({"LOCALAPPDATA": "/l"}, "win32", "/l/trimtab"),
        ({}, "win32", "~/AppData/Local/trimtab"),
    ],
)
def test_the_list_lies_where_the_platform_keeps_such_things(environ: dict, platform: str, expected: str) -> None:
    assert registry.data_folder(environ, platform) == Path(expected).expanduser()


def test_the_environment_is_the_one_of_the_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    # given: another object in its place, as `Dataset.map(num_proc=...)` leaves it
    monkeypatch.setattr("os.environ", {**os.environ, "TRIMTAB_HOME": "/moved"})
    assert registry.data_folder() == Path("/moved")


@pytest.mark.parametrize("content", [b"no database at all" * 100, bytes(8192), b"SQLite format 3\x00" + b"\xff" * 4096])
def test_a_damaged_list_is_moved_aside_and_begun_anew(trimtab_home: Path, content: bytes) -> None:
    (trimtab_home / "runs.sqlite").write_bytes(content)
    assert registry.runs() == []

    add("a", created=1.0)

    assert [run.run_id for run in registry.runs()] == ["a"]
    assert (trimtab_home / "runs.sqlite.damaged").read_bytes() == content


def test_a_list_of_another_shape_is_left_alone(trimtab_home: Path) -> None:
    file = trimtab_home / "runs.sqlite"
    connection = sqlite3.connect(file)
    connection.execute("create table runs (something text)")
    connection.commit()
    connection.close()

    assert not registry.register(HEADER, "x")
    assert registry.runs() == []
    assert file.exists()


def test_a_locked_list_costs_the_entry_and_half_a_second(trimtab_home: Path) -> None:
    add("a", created=1.0)
    other = sqlite3.connect(trimtab_home / "runs.sqlite", isolation_level=None)
    other.execute("begin exclusive")

    started = time.monotonic()
    assert not registry.register(HEADER, "x")
    assert time.monotonic() - started < 5

    other.execute("rollback")
    other.close()
    assert [run.run_id for run in registry.runs()] == ["a"]
    assert not (trimtab_home / "runs.sqlite.damaged").exists()


def test_a_home_that_is_no_folder_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TRIMTAB_HOME", str(tmp_path / "file" / "below"))

    assert not registry.register(HEADER, "x")
    assert registry.runs() == []
    assert registry.find("a") == []


def test_a_path_that_is_no_utf8_is_found_again_as_it_was(tmp_path: Path) -> None:
    path = str(tmp_path / os.fsdecode(b"caf\xe9"))

    assert registry.register(replace(HEADER, out=path), path)
    assert registry.register(replace(HEADER, out=path, created=2.0), path)

    assert [(run.path, run.out, run.created) for run in registry.runs()] == [(path, path, 2.0)]
    assert registry.forget(path)
    assert registry.runs() == []


BAD_TEXTS = ["\ud800", "nu\0l", "x" * 100_000]


@pytest.mark.parametrize("text", BAD_TEXTS)
def test_a_text_that_the_list_cannot_take_costs_its_entry_at_most(text: str) -> None:
    add("good", created=1.0)

    for name in ("run_id", "backend", "task", "experiment", "out"):
        registry.register(replace(HEADER, **{name: text}), f"x/{name}")
    registry.register(HEADER, text)
    registry.forget(text)
    registry.find(text)

    assert "good" in [run.run_id for run in registry.runs()]


@pytest.mark.parametrize("value", [b"bytes", 1.5, Path("p"), ["list"], 10**400, object()])
def test_a_header_of_the_wrong_types_costs_its_entry_and_not_the_list(trimtab_home: Path, value: object) -> None:
    add("good", created=1.0)

    for name in ("run_id", "backend", "task", "experiment", "out", "created"):
        registry.register(replace(HEADER, **{name: value}), f"x/{name}")
    registry.register(replace(HEADER, created=float("nan")), "x")

    assert "good" in [run.run_id for run in registry.runs()]
    assert not (trimtab_home / "runs.sqlite.damaged").exists()


@pytest.mark.parametrize(
    "entry",
    [
        {"run_id": b"blob"},
        {"run_id": 5},
        {"run_id": ""},
        {"run_id": "../../climbs"},
        {"path": b"blob"},
        {"path": "nu\0l"},
        {"path": "relative"},
        {"backend": b"blob"},
        {"backend": 1.5},
        {"task": b"blob"},
        {"created": "notanumber"},
        {"created": b"blob"},
        {"created": 9e999},
        {"out": b"blob"},
        {"out": 7},
        {"experiment": b"blob"},
    ],
    ids=repr,
)
def test_an_entry_of_odd_types_is_left_out(trimtab_home: Path, entry: dict[str, object]) -> None:
    # given a list that somebody else wrote into, untyped as SQLite is
    add("good", created=1.0)
    whole = {
        "run_id": "odd", "path": "/x", "backend": "torch", "task": None, "created": 9.0, "out": None, "experiment": None
    } | entry  # fmt: skip
    connection = sqlite3.connect(trimtab_home / "runs.sqlite")
    connection.execute("drop table runs")
    connection.execute("create table runs (run_id, path, backend, task, created, out, experiment)")
    for row in (whole, whole | {"run_id": "good", "path": "/good", "backend": "torch"} | {"created": 1.0}):
        connection.execute(
            "insert into runs values (:run_id, :path, :backend, :task, :created, :out, :experiment)",
            row | ({} if row is whole else {"task": None, "out": None, "experiment": None}),
        )
    connection.commit()
    connection.close()

    # then
    assert [run.run_id for run in registry.runs()] == ["good"]
    newest = registry.newest()
    assert newest is not None
    assert newest.run_id == "good"
    assert registry.find("odd") == []


def test_a_user_without_a_home_has_no_list_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("TRIMTAB_HOME")
    monkeypatch.setattr(Path, "expanduser", fail)

    assert not registry.register(HEADER, "x")
    assert not registry.forget("x")
    assert registry.runs() == []


def test_a_working_folder_that_is_gone_costs_the_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add("good", created=1.0)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert not registry.register(HEADER, "x")
    assert not registry.forget("x")
