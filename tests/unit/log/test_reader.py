"""Opening a log: whatever path is named, and what is said where none is."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trimtab.errors import LogError
from trimtab.log.folder import create_run
from trimtab.log.reader import open_log
from trimtab.values import MicroBatch, RunHeader

HEADER = RunHeader(run_id="a", backend="torch", created=1.7e9)

MakeMicro = Callable[..., MicroBatch]
WriteRun = Callable[..., Path]


def test_a_log_is_found_by_any_of_its_paths(tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro) -> None:
    folder = create_run(tmp_path, HEADER)
    journal = write_run(folder, make_micro(1, 5))

    for path in (
        folder.path,
        folder.path / "run.json",
        journal,
        tmp_path,
        tmp_path / "trimtab",
        os.fspath(folder.path),
    ):
        log = open_log(path)
        assert log.header.run_id == "a"
        assert log.format == ("journal" if path == journal else "run")
        assert [block.row.tolist() for block in log.row_blocks()] == [[5]]
        assert log.notices() == []


def test_one_journal_by_name_is_read_alone(tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro) -> None:
    folder = create_run(tmp_path, replace(HEADER, world_size=2))
    write_run(folder, make_micro(1, 5))
    second = write_run(folder, make_micro(1, 6), rank=1)

    log = open_log(second)

    assert log.path == str(second)
    assert [block.row.tolist() for block in log.row_blocks()] == [[6]]
    assert log.notices() == ["rank-00001.journal is of one of 2 ranks: the rows of the others are not read"]


def test_of_several_runs_the_newest_is_read_and_the_others_are_said(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    for run_id, created in (("new", 2e9), ("old", 1e9)):
        write_run(create_run(tmp_path, replace(HEADER, run_id=run_id, created=created)), make_micro(1, 5))

    log = open_log(tmp_path)

    assert log.header.run_id == "new"
    assert log.notices() == [f"2 runs are in {tmp_path}; the newest, new, was read"]


def test_a_run_of_a_newer_version_is_refused_with_what_to_do(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    folder = create_run(tmp_path, HEADER)
    write_run(folder, make_micro(1, 5))
    (folder.path / "run.json").write_text('{"version": 3, "run_id": "a"}')

    with pytest.raises(LogError, match=r"run\.json: format version 3 was found, versions up to 1 are read; upgrade"):
        open_log(folder.path)


@pytest.mark.parametrize("make", ["nothing", "folder", "runs", "journal", "device"])
def test_where_nothing_is_readable_the_error_says_what_was_expected(tmp_path: Path, make: str) -> None:
    path = tmp_path / "x"
    if make == "folder":
        path.mkdir()
    elif make == "runs":
        (path / "trimtab" / "a").mkdir(parents=True)
    elif make == "journal":
        path.mkdir()
        (path / "rank-00000.journal").write_bytes(b"")
    elif make == "device":
        path = Path("/dev/null")

    with pytest.raises(LogError, match=str(path)):
        open_log(path)


def test_an_error_about_a_folder_says_what_is_in_it_and_what_is_read(tmp_path: Path) -> None:
    for name in ("b.csv", "a\x1b[31m", "c", "d"):
        (tmp_path / name).touch()

    with pytest.raises(LogError) as caught:
        open_log(tmp_path)

    found = f"no log in {tmp_path}, which holds 'a\\x1b[31m', 'b.csv', 'c' and 1 more. Give a run folder"
    assert found in str(caught.value)
    assert "run.json, rank-*.journal" in str(caught.value)
    assert "another tool's log: rewind_jsonl, " in str(caught.value)
    assert "(in a folder: rewind.jsonl or rewind.jsonl.1 " in str(caught.value)
    assert "; TensorBoard's event files; checkpoint-*/trainer_state.json; version_*/metrics.csv; " in str(caught.value)


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", "the file is empty. The run may not have reached its first step."),
        (b" \n\n", "the file is empty"),
        (b"some text\n" * 9, "begins with b'some text\\nsome text\\nsome text\\nsome text\\n', as no log"),
        (b"\xff\x1b[31m", r"begins with b'\xff\x1b[31m', as no log that is known does. Give a run folder"),
    ],
)
def test_an_error_about_a_file_says_how_it_begins(tmp_path: Path, content: bytes, found: str) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(content)

    with pytest.raises(LogError) as caught:
        open_log(path)

    assert str(path) in str(caught.value)
    assert found in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.csv", "it,my_objective\n1,2.0\n"),
        ("a.jsonl", '{"it": 1, "my_objective": 2.0}\n'),
        ("b.csv", "it,eval_loss,router_z,my_objective\n1,3.0,5.0,2.0\n"),
    ],
)
def test_an_error_about_metrics_without_a_known_loss_says_which_names_are_known(
    tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)

    with pytest.raises(LogError) as caught:
        open_log(tmp_path / name)

    assert (
        "as no log that is known does: in metrics a column, or key, must be a training loss (loss, train/loss, "
        'train_loss, ..., or beside a step any that ends in "loss" and is of no evaluation) or a gradient norm '
        "(grad_norm, train/grad_norm, train_grad_norm, ...), and none of its names is one. Give a run folder"
    ) in str(caught.value)
    # then: a name that the sentence allows is read
    (tmp_path / name).write_text(content.replace("my_objective", "my_loss"))
    assert open_log(tmp_path / name).step_columns().loss.tolist() == [2.0]


def test_a_journal_is_known_by_its_first_bytes_under_any_name(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    journal = write_run(create_run(tmp_path, HEADER), make_micro(1, 5))
    copy = journal.rename(tmp_path / "copy.bin")

    log = open_log(copy)
    assert log.format == "journal"
    assert [block.row.tolist() for block in log.row_blocks()] == [[5]]
