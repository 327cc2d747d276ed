"""Run folders: made once, continued, never overwritten."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.errors import LogError, UsageError
from trimtab.log.folder import (
    RunFolder,
    continue_run,
    create_run,
    is_run_folder,
    new_run_id,
    read_header,
    run_folders,
)
from trimtab.log.frames import KIND_ATTEMPT, KIND_EVENTS, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import ACTIVE, Part, journal_name, list_parts
from trimtab.values import RUN_ID, RunHeader

HEADER = RunHeader(run_id="a", backend="torch", task="causal-lm", num_rows=10, created=1.7e9, out="runs/x")


def write_attempt(folder: RunFolder, *, rank: int = 0, num_frames: int = 1) -> Path:
    path = folder.path / journal_name(rank)
    writer = JournalWriter(path, attempt=folder.attempt, rank=rank)
    for _ in range(num_frames):
        writer.append(Block(KIND_EVENTS, 1, 1, 1, [b"x" * 100 + bytes(range(200))]))
    writer.close()
    return path


def test_a_run_id_is_its_start_in_utc_and_some_chance() -> None:
    ids = {new_run_id(1_700_000_000.0) for _ in range(20)}

    assert all(run_id.startswith("20231114-221320-") and RUN_ID.match(run_id) for run_id in ids)
    assert len(ids) > 15


def test_a_new_run_has_its_header_in_its_folder(tmp_path: Path) -> None:
    folder = create_run(tmp_path / "out", HEADER)

    assert folder == RunFolder(tmp_path / "out" / "trimtab" / "a", HEADER, 1)
    document = json.loads((folder.path / "run.json").read_text())
    assert document["version"] == 1
    assert (document["run_id"], document["num_rows"], document["created"]) == ("a", 10, 1.7e9)
    assert read_header(folder.path) == (HEADER, [])
    assert [entry.name for entry in folder.path.iterdir()] == ["run.json"]


def test_a_run_without_an_id_gets_one(tmp_path: Path) -> None:
    first = create_run(tmp_path, RunHeader(run_id=None, backend="torch", created=1.7e9))
    second = create_run(tmp_path, RunHeader(run_id=None, backend="torch", created=1.7e9))

    assert first.path != second.path
    assert first.header.run_id == first.path.name


def test_a_run_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    create_run(tmp_path, HEADER)
    before = (tmp_path / "trimtab" / "a" / "run.json").read_bytes()

    with pytest.raises(UsageError, match=r"run a exists already in .*nothing was overwritten"):
        create_run(tmp_path, RunHeader(run_id="a", backend="mlx"))

    assert (tmp_path / "trimtab" / "a" / "run.json").read_bytes() == before


@pytest.mark.parametrize("run_id", ["", "..", "../x", "a/b", ".hidden", "a" * 65, "a\n", "a b", "-x", "\u00e4"])
def test_an_id_that_cannot_be_a_folder_is_refused(tmp_path: Path, run_id: str) -> None:
    with pytest.raises(UsageError, match="cannot name a folder"):
        create_run(tmp_path, RunHeader(run_id=run_id, backend="torch"))
    with pytest.raises(UsageError, match="cannot name a folder"):
        continue_run(tmp_path, run_id, HEADER)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_an_oserror(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError, match="Not a directory"):
        create_run(tmp_path / "file", HEADER)


def test_a_continued_run_is_its_next_attempt(tmp_path: Path) -> None:
    write_attempt(create_run(tmp_path, HEADER))

    second = continue_run(tmp_path, "a", RunHeader(run_id=None, backend="torch"))
    write_attempt(second, rank=1)
    third = continue_run(tmp_path, "a", HEADER)

    assert (second.attempt, third.attempt) == (2, 3)
    assert second.header.run_id == "a"
    assert read_header(second.path) == (HEADER, [])


def test_a_run_that_was_killed_before_its_first_write_is_continued_as_attempt_1(tmp_path: Path) -> None:
    create_run(tmp_path, HEADER)

    assert continue_run(tmp_path, "a", HEADER).attempt == 1


@pytest.mark.parametrize("cut", [1, 30, 56, 57, 200, 300])
def test_an_attempt_behind_a_torn_frame_counts(tmp_path: Path, cut: int) -> None:
    path = write_attempt(create_run(tmp_path, HEADER), num_frames=2)
    frame = path.stat().st_size // 2
    path.write_bytes(path.read_bytes()[: frame + cut])
    write_attempt(RunFolder(path.parent, HEADER, 2))

    assert continue_run(tmp_path, "a", HEADER).attempt == 3


@pytest.mark.parametrize("num_missing", [0, 1, 500])
def test_an_attempt_within_the_reach_of_a_torn_frame_counts(tmp_path: Path, num_missing: int) -> None:
    # given a frame that was cut off, whose announced end lies at or behind the end of what was appended since
    path = create_run(tmp_path, HEADER).path / journal_name(0)
    writer = JournalWriter(path)
    writer.append(Block(KIND_EVENTS, 1, 1, 1, [random.Random(1).randbytes(2000)]))
    writer.close()
    small = JournalWriter(tmp_path / "small", attempt=2)
    small.append(Block(KIND_EVENTS, 1, 1, 1, [b"x"]))
    small.close()
    num_appended = (tmp_path / "small").stat().st_size
    path.write_bytes(path.read_bytes()[: -num_appended - num_missing])
    again = JournalWriter(path, attempt=2)
    again.append(Block(KIND_EVENTS, 1, 1, 1, [b"x"]))
    again.close()

    assert continue_run(tmp_path, "a", HEADER).attempt == 3


def test_an_attempt_behind_noise_counts(tmp_path: Path) -> None:
    path = write_attempt(create_run(tmp_path, HEADER))
    with path.open("ab") as file:
        file.write(b"\xf5TRM" * 100 + bytes(1000))
    write_attempt(RunFolder(path.parent, HEADER, 2))

    assert continue_run(tmp_path, "a", HEADER).attempt == 3


def test_a_run_that_is_not_there_is_not_continued(tmp_path: Path) -> None:
    with pytest.raises(LogError, match="no run b in "):
        continue_run(tmp_path, "b", HEADER)

    assert list(tmp_path.iterdir()) == []


def test_a_run_of_a_newer_version_is_not_continued(tmp_path: Path) -> None:
    folder = create_run(tmp_path, HEADER)
    (folder.path / "run.json").write_text('{"version": 2}')

    with pytest.raises(LogError, match="format version 2 was found, versions up to 1 are read; upgrade trimtab"):
        continue_run(tmp_path, "a", HEADER)


def test_runs_are_listed_newest_last_whatever_their_names(tmp_path: Path) -> None:
    for run_id, created in (("b", 2e9), ("c", 1e9), ("a", 1.5e9)):
        create_run(tmp_path, RunHeader(run_id=run_id, backend="torch", created=created))
    (tmp_path / "trimtab" / "empty").mkdir()
    (tmp_path / "trimtab" / "file").write_text("")

    assert [path.name for path in run_folders(tmp_path)] == ["c", "a", "b"]
    assert run_folders(tmp_path / "nothing") == []


def test_of_runs_that_began_at_one_time_the_one_written_last_is_the_newest(tmp_path: Path) -> None:
    # given: as a log that was converted twice
    for place, run_id in enumerate(("b", "c", "a")):
        folder = create_run(tmp_path, RunHeader(run_id=run_id, backend="torch", created=1e9))
        os.utime(folder.path, (2e9 + place, 2e9 + place))

    assert [path.name for path in run_folders(tmp_path)] == ["b", "c", "a"]


def test_two_runs_in_one_folder_do_not_meet(tmp_path: Path) -> None:
    first = write_attempt(create_run(tmp_path, HEADER))
    second = write_attempt(create_run(tmp_path, RunHeader(run_id="b", backend="torch")))

    assert first != second
    assert list_parts(first.parent) == [Part(0, ACTIVE, first)]
    assert list_parts(second.parent) == [Part(0, ACTIVE, second)]


def test_a_run_folder_is_one_with_a_header_or_a_journal(tmp_path: Path) -> None:
    folder = create_run(tmp_path, HEADER)
    assert is_run_folder(folder.path)
    assert not is_run_folder(tmp_path)

    write_attempt(folder)
    (folder.path / "run.json").unlink()
    assert is_run_folder(folder.path)


def test_a_folder_whose_header_names_another_run_is_not_continued(tmp_path: Path) -> None:
    # given a run folder that was copied under another name: a reader would leave out all that is appended
    folder = create_run(tmp_path, HEADER)
    write_attempt(folder)
    folder.path.rename(folder.path.with_name("b"))

    with pytest.raises(UsageError, match=r"run\.json.* names the run 'a', and the folder is 'b'"):
        continue_run(tmp_path, "b", HEADER)


def test_a_folder_whose_journals_name_another_run_is_not_continued(tmp_path: Path) -> None:
    folder = create_run(tmp_path, HEADER)
    writer = JournalWriter(folder.path / journal_name(0))
    writer.append(Block(KIND_ATTEMPT, 1, 0, 0, [dump_header(HEADER)]))
    writer.close()
    (folder.path / "run.json").unlink()
    assert continue_run(tmp_path, "a", HEADER).attempt == 2
    folder.path.rename(folder.path.with_name("b"))

    with pytest.raises(UsageError, match=r"rank-00000\.journal names the run 'a', and the folder is 'b'"):
        continue_run(tmp_path, "b", HEADER)


def test_a_path_that_is_no_utf8_is_kept_as_it_is(tmp_path: Path) -> None:
    out = str(tmp_path / os.fsdecode(b"caf\xe9"))

    folder = create_run(out, replace(HEADER, out=out))

    assert (folder.path / "run.json").read_bytes().isascii()
    header, wrong = read_header(folder.path)
    assert header is not None
    assert (header.out, wrong) == (out, [])
    assert continue_run(out, "a", HEADER).attempt == 1
    assert run_folders(out) == [folder.path]


@pytest.mark.parametrize("out", ["nu\0l", "\ud800", "x" * 5000])
def test_a_path_that_the_system_cannot_take_holds_no_run(out: str) -> None:
    assert not is_run_folder(Path(out))
    assert run_folders(out) == []
    with pytest.raises((OSError, ValueError)):
        create_run(out, HEADER)


def test_a_header_that_no_reader_would_take_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="1048576"):
        create_run(tmp_path, replace(HEADER, task="x" * 2_000_000))

    assert list(tmp_path.iterdir()) == []
