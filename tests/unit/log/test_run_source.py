"""A run folder as a source: its records as they were written, and what is said of what is missing."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import LogError
from trimtab.log import journal_part, records, run_source
from trimtab.log.folder import RunFolder, create_run
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name
from trimtab.log.reader import open_log
from trimtab.values import Event, MicroBatch, RunHeader, StepRow

HEADER = RunHeader(run_id="a", backend="torch", created=1.7e9)

MakeMicro = Callable[..., MicroBatch]
WriteRun = Callable[..., Path]


def test_records_come_back_with_attempt_rank_and_verdict(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    first = create_run(tmp_path, replace(HEADER, world_size=2))
    write_run(first, make_micro(1, 10, 11), make_micro(2, 12))
    write_run(first, make_micro(1, 20), rank=1)
    write_run(RunFolder(first.path, first.header, 2), make_micro(2, 13, 14, place=3))

    log = open_log(first.path)
    blocks = list(log.row_blocks())

    assert log.header == replace(HEADER, world_size=2)
    assert log.has_rows
    assert [block.rank.tolist() for block in blocks] == [[0] * 5, [1]]
    rows = blocks[0]
    assert rows.row.tolist() == [10, 11, 12, 13, 14]
    assert rows.step.tolist() == [1, 1, 2, 2, 2]
    assert rows.attempt.tolist() == [1, 1, 1, 2, 2]
    assert rows.micro.tolist() == [0, 0, 0, 3, 3]
    assert rows.loss_sum.tolist() == [10.0, 11.0, 12.0, 13.0, 14.0]
    assert rows.num_tokens.tolist() == [2] * 5
    assert rows.reason.tolist() == [6] * 5
    assert rows.keep.tolist() == [False] * 5
    assert [column.dtype.name for column in rows] == [
        "int32", "int64", "int32", "int32", "int64", "float32", "int32", "uint8", "bool",
    ]  # fmt: skip
    assert log.notices() == []


def test_a_range_of_steps_leaves_other_blocks_unread(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    folder = create_run(tmp_path, HEADER)
    write_run(folder, *(make_micro(step, step) for step in range(1, 10)))
    log = open_log(folder.path)

    for _ in range(2):  # while the file is walked, and by its index
        rows = [block.row.tolist() for block in log.row_blocks(first_step=4, last_step=6)]
        assert rows == [[4, 5, 6]]
        assert [block.row.tolist() for block in log.row_blocks(first_step=9)] == [[9]]
        assert [block.row.tolist() for block in log.row_blocks(last_step=1)] == [[1]]
        assert list(log.row_blocks(first_step=10)) == []


def test_blocks_come_in_bounded_pieces_and_progress_counts_up_to_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    monkeypatch.setattr(journal_part, "_ROWS_AT_ONCE", 10)
    folder = create_run(tmp_path, HEADER)
    write_run(folder, *(make_micro(step, *range(step * 4, step * 4 + 4)) for step in range(1, 20)))
    log = open_log(folder.path)
    done: list[int] = []

    blocks = list(log.row_blocks(progress=done.append))

    assert [block.num_records for block in blocks] == [12] * 6 + [4]
    assert np.concatenate([block.row for block in blocks]).tolist() == list(range(4, 80))
    assert done == sorted(done)
    assert done[-1] == log.size_bytes


def test_a_reading_that_was_broken_off_leaves_the_log_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    monkeypatch.setattr(journal_part, "_ROWS_AT_ONCE", 1)
    folder = create_run(tmp_path, HEADER)
    write_run(folder, *(make_micro(step, step) for step in range(1, 10)))
    log = open_log(folder.path)

    next(log.row_blocks())

    assert sum(block.num_records for block in log.row_blocks()) == 9


def test_steps_and_events_come_back(tmp_path: Path, write_run: WriteRun) -> None:
    folder = create_run(tmp_path, HEADER)
    write_run(
        folder,
        StepRow(1, 2.0, None, 0.5, 5, None, None),
        Event("b", 1, 9.0),
        StepRow(2, 3.0, 1.0, 0.25, 0, True, 8.0, 1.5, 7, 1, 2),
    )
    write_run(folder, Event("a", 2, 5.0, {"x": 1}), rank=1)

    log = open_log(folder.path)
    steps = log.step_columns()

    assert steps.step.tolist() == [1, 2]
    assert steps.has_grad_norm.tolist() == [False, True]
    assert steps.clipped.tolist() == [-1, 1]
    assert (steps.num_tokens[1], steps.num_skipped_micros[1], steps.num_skipped_tokens[1]) == (7, 1, 2)
    assert steps.reason.dtype == np.uint8
    assert [event.kind for event in log.event_list()] == ["a", "b"]
    assert not log.has_rows


def test_a_run_without_its_header_is_read_by_its_first_block_and_it_is_said(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    folder = create_run(tmp_path, HEADER)
    write_run(folder, make_micro(1, 5))

    for damage in ("gone", "torn", "huge"):
        file = folder.path / "run.json"
        if damage == "gone":
            file.unlink()
        else:
            file.write_bytes(b'{"version": 1, ' if damage == "torn" else b" " * (2 << 20))
        log = open_log(folder.path)

        assert log.header == HEADER
        assert [block.row.tolist() for block in log.row_blocks()] == [[5]]
        assert len(log.notices()) == 2
        assert "run.json" in log.notices()[0]
        assert log.notices()[1] == "the run's header was taken from rank-00000.journal"


def test_records_without_any_header_are_read_and_it_is_said(tmp_path: Path, make_micro: MakeMicro) -> None:
    folder = create_run(tmp_path, HEADER)
    writer = JournalWriter(folder.path / journal_name(0))
    writer.append(records.row_blocks([make_micro(1, 5)])[0][0])
    writer.close()
    (folder.path / "run.json").unlink()

    log = open_log(folder.path)

    assert [block.row.tolist() for block in log.row_blocks()] == [[5]]
    assert log.header.run_id is None
    assert "nothing says which run this is" in log.notices()[-1]


def test_a_journal_of_one_rank_alone_says_that_there_are_others(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    folder = create_run(tmp_path, replace(HEADER, world_size=2))
    journal = write_run(folder, make_micro(1, 6), rank=1)

    assert open_log(journal).notices() == [
        "rank-00001.journal is of one of 2 ranks: the rows of the others are not read"
    ]


def test_a_missing_rank_is_said(tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro) -> None:
    folder = create_run(tmp_path, replace(HEADER, world_size=4))
    write_run(folder, make_micro(1, 5))
    write_run(folder, make_micro(1, 6), rank=2)

    assert open_log(folder.path).notices() == [f"2 of 4 ranks have no journal in {folder.path}: their rows are missing"]


def test_a_run_that_recorded_nothing_is_opened(tmp_path: Path) -> None:
    log = open_log(create_run(tmp_path, HEADER).path)

    assert log.header == HEADER
    assert (log.size_bytes, log.has_rows, log.notices()) == (0, False, [])
    assert log.step_columns().num_records == 0


def test_a_climbing_run_id_is_not_passed_on(tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro) -> None:
    folder = create_run(tmp_path, HEADER)
    write_run(folder, make_micro(1, 5))
    (folder.path / "run.json").write_text('{"version": 1, "run_id": "../../etc", "backend": "torch"}')

    log = open_log(folder.path)

    assert log.header.run_id is None
    assert any("run_id is not what it should be" in line for line in log.notices())
    assert [block.row.tolist() for block in log.row_blocks()] == [[5]]


def test_a_journal_that_its_writer_renames_or_deletes_is_read_to_its_end(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    folder = create_run(tmp_path, HEADER)
    journal = write_run(folder, make_micro(1, 5), make_micro(2, 6))
    log = open_log(folder.path)

    journal = journal.rename(journal.with_name("elsewhere"))
    assert [block.row.tolist() for block in log.row_blocks()] == [[5, 6]]
    journal.unlink()
    assert [block.row.tolist() for block in log.row_blocks(last_step=1)] == [[5]]
    assert log.notices() == []


@pytest.mark.parametrize("replaced", [False, True], ids=["gone", "another"])
def test_of_more_journals_than_are_held_one_that_goes_away_is_an_error_that_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_run: WriteRun, make_micro: MakeMicro, replaced: bool
) -> None:
    monkeypatch.setattr(run_source, "_MAX_HELD", 0)
    folder = create_run(tmp_path, HEADER)
    journal = write_run(folder, make_micro(1, 5))
    log = open_log(folder.path)
    assert [block.row.tolist() for block in log.row_blocks()] == [[5]]
    journal.rename(journal.with_name("elsewhere"))
    if replaced:
        write_run(folder, make_micro(1, 6))

    what = "is another file than a moment ago" if replaced else "cannot be read: No such file"
    with pytest.raises(LogError, match=rf"rank-00000\.journal {what}"):
        list(log.row_blocks())


def test_a_journal_that_changes_between_two_readings_is_said(
    tmp_path: Path, write_run: WriteRun, make_micro: MakeMicro
) -> None:
    folder = create_run(tmp_path, HEADER)
    journal = write_run(folder, make_micro(1, 5), make_micro(2, 6))
    log = open_log(folder.path)
    assert log.notices() == []
    data = bytearray(journal.read_bytes())
    data[-1] ^= 1
    journal.write_bytes(data)

    assert [block.row.tolist() for block in log.row_blocks()] == [[5]]
    assert len(log.notices()) == 1
    assert "changed at byte" in log.notices()[0]
