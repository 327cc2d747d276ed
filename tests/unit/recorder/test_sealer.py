"""Sealing during a run and at its end: nothing is lost wherever it stops, and no fault of it reaches the recording."""

import itertools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from trimtab.log import records, sealing
from trimtab.log.folder import RunFolder, continue_run
from trimtab.log.frames import KIND_ATTEMPT, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import ACTIVE, list_parts
from trimtab.log.reader import open_log
from trimtab.recorder import Recorder
from trimtab.recorder.sealer import Sealer
from trimtab.values import Event, MicroBatch, RowIds, RunHeader, StepRow

HEADER = RunHeader(run_id="a", backend="torch")


def micro(step: int, *rows: int) -> MicroBatch:
    return MicroBatch(step, 0, np.array(rows), np.array(rows, np.float32), np.ones(len(rows), np.int64))


def rows_in(path: Path) -> list[int]:
    return [row for block in open_log(path).row_blocks() for row in block.row.tolist()]


def shape(path: Path) -> list[str]:
    """The parts of rank 0: sealed, closed, active."""
    parts = [part for part in list_parts(path) if part.rank == 0]
    return ["active" if part.number == ACTIVE else "sealed" if part.journal is None else "closed" for part in parts]


def record(folder: RunFolder, *steps: int, **settings: object) -> Recorder:
    recorder = Recorder(folder, **settings)
    for step in steps:
        recorder.put(micro(step, step))
        assert recorder.flush(30)
    recorder.close(60)
    return recorder


def test_an_orderly_end_leaves_one_segment_and_no_journal(folder: RunFolder, said: Callable[[], list[str]]) -> None:
    recorder = record(folder, 1, 2, 3)

    assert shape(folder.path) == ["sealed"]
    assert rows_in(folder.path) == [1, 2, 3]
    assert (recorder.off_reason, said(), open_log(folder.path).notices()) == (None, [], [])
    assert sorted(entry.name for entry in folder.path.iterdir()) == ["run.json", "segments"]


def test_a_step_record_alone_is_sealed_and_an_event_alone_is_not(folder: RunFolder) -> None:
    recorder = Recorder(folder)
    recorder.put(Event("e", 1, 1.0))
    recorder.close()
    assert shape(folder.path) == ["active"]

    recorder = Recorder(folder)
    recorder.put(StepRow(1, 1.0, None, None))
    recorder.close(60)
    assert shape(folder.path) == ["sealed"]
    assert [event.kind for event in open_log(folder.path).event_list()] == ["e"]


def test_where_nothing_is_to_be_sealed_the_journal_stays(folder: RunFolder) -> None:
    record(folder, 1, seal_bytes=None)

    assert shape(folder.path) == ["active"]


def test_a_run_that_is_continued_adds_segments(folder: RunFolder, tmp_path: Path) -> None:
    record(folder, 1, 2)
    second = continue_run(tmp_path, "a", HEADER)
    assert second.attempt == 2
    record(second, 2, 3)

    assert shape(folder.path) == ["sealed", "sealed"]
    assert rows_in(folder.path) == [1, 2, 2, 3]
    assert open_log(folder.path).step_columns().num_records == 0
    assert continue_run(tmp_path, "a", HEADER).attempt == 3


def test_a_large_journal_is_sealed_while_the_run_goes_on(folder: RunFolder) -> None:
    recorder = Recorder(folder, seal_bytes=1000, flush_interval_s=0.01)
    for step in range(1, 61):
        recorder.put(micro(step, *range(step * 10, step * 10 + 5)))
        recorder.put(StepRow(step, 1.0, None, None))
        recorder.put(RowIds([step]))
        assert recorder.flush(30)
    during = shape(folder.path)
    recorder.close(60)

    assert during.count("sealed") >= 2
    assert during[-1] == "active"
    assert set(shape(folder.path)) == {"sealed"}
    log = open_log(folder.path)
    assert rows_in(folder.path) == [row for step in range(1, 61) for row in range(step * 10, step * 10 + 5)]
    assert log.step_columns().step.tolist() == list(range(1, 61))
    assert log.id_columns().row.tolist() == list(range(1, 61))
    assert log.notices() == []
    # each part names the attempt's header, so that it stands for itself
    assert all(part.segment is not None for part in list_parts(folder.path))


def test_parts_grow_with_what_was_sealed_so_that_their_number_grows_with_the_logarithm(tmp_path: Path) -> None:
    # given a stand-in for a journal that only has a size, and 4 GB of it in 8 MB and more
    class Grown:
        def __init__(self, size_bytes: int) -> None:
            self.size_bytes = size_bytes

        def is_in_place(self) -> bool:
            return True

        def rotate(self, *args: object) -> None:
            pass

        def release(self) -> None:
            pass

    sealer = Sealer(tmp_path, rank=0, seal_bytes=8 << 20)
    total, num_parts, sizes = 0, 0, []
    size = 0
    while total < 4 << 30:
        size += 1 << 20
        if sealer.is_due(Grown(size)):
            for _ in sealer.rotate(Grown(size), None):
                pass
            total, num_parts, size = total + size, num_parts + 1, 0
            sizes.append(total)

    assert sizes[0] == 8 << 20
    assert num_parts < 80  # 512 parts of 8 MB
    assert max(after - before for before, after in itertools.pairwise(sizes)) == 128 << 20


def test_closed_journals_that_a_killed_writer_left_are_sealed_by_the_next(folder: RunFolder, tmp_path: Path) -> None:
    for attempt in (1, 2):
        writer = JournalWriter(folder.path / "rank-00000.journal", attempt=attempt)
        for block in records.row_blocks([micro(attempt, attempt)])[0]:
            writer.append(block)
        writer.finish(folder.path / f"rank-00000.00000{attempt}.journal")
        writer.close()
    assert shape(folder.path) == ["closed", "closed"]

    record(continue_run(tmp_path, "a", HEADER), 3)

    assert shape(folder.path) == ["sealed"] * 3
    assert rows_in(folder.path) == [1, 2, 3]


def test_a_damaged_journal_stays_is_said_once_and_later_ones_are_sealed(
    folder: RunFolder, tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    # given a run that was killed in the middle of a write
    record(folder, 1, seal_bytes=None)
    journal = folder.path / "rank-00000.journal"
    journal.write_bytes(journal.read_bytes() + b"\xf5TRM\x01torn")

    for step in (2, 3):
        record(continue_run(tmp_path, "a", HEADER), step)

    assert shape(folder.path) == ["closed", "sealed"]
    assert rows_in(folder.path) == [1, 2, 3]
    lines = said()
    assert len(lines) == 2  # once in each process
    assert all(
        "a journal stays as it is and is not sealed into Parquet: rank-00000.000001.journal:" in x for x in lines
    )
    assert len(open_log(folder.path).notices()) == 1


@pytest.mark.parametrize("fault", ["no duckdb", "no memory", "full disk", "no rename"])
def test_a_fault_of_sealing_costs_nothing_and_is_said_once(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]], fault: str
) -> None:
    def fail(*args: object, **kwargs: object) -> object:
        raise {"no memory": MemoryError(), "full disk": OSError(28, "No space left on device")}.get(
            fault, OSError(95, "Operation not supported")
        )

    if fault == "no duckdb":
        monkeypatch.setitem(sys.modules, "trimtab.log.sealing", None)
    elif fault == "no rename":
        monkeypatch.setattr("os.rename", fail)
    else:
        monkeypatch.setattr("trimtab.log.parquet.write", fail)
    recorder = Recorder(folder, seal_bytes=1)
    for step in (1, 2, 3):
        recorder.put(micro(step, step))
        assert recorder.flush(30)
    recorder.close(60)

    assert (recorder.off_reason, recorder.num_dropped) == (None, 0)
    assert rows_in(folder.path) == [1, 2, 3]
    assert "sealed" not in shape(folder.path)
    (line,) = said()
    assert "is not sealed into Parquet" in line
    assert "Nothing is lost, and it is read all the same" in line
    assert line.isascii()


def test_a_journal_that_was_moved_is_not_sealed(folder: RunFolder, said: Callable[[], list[str]]) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))
    assert recorder.flush(20)
    moved = folder.path.rename(folder.path.with_name("moved"))
    recorder.close(60)

    assert rows_in(moved) == [5]
    assert shape(moved) == ["active"]
    assert not folder.path.exists()


def test_what_is_put_while_a_journal_is_sealed_is_written_between_its_pieces(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a sealing whose pieces we let pass one by one
    begun, may_go_on = threading.Event(), threading.Semaphore(0)
    seal = sealing.seal

    def slow(*args: object) -> Iterator[None]:
        begun.set()
        for _ in range(5):
            assert may_go_on.acquire(timeout=30)
            yield
        yield from seal(*args)

    monkeypatch.setattr(sealing, "seal", slow)
    recorder = Recorder(folder, seal_bytes=1, flush_interval_s=3600, capacity_micros=10)
    recorder.put(micro(1, 1))
    recorder.flush(30)
    assert begun.wait(30)

    # when as much is put as there is room for, a piece is let pass, and again
    for step in range(2, 6):
        for row in range(10):
            recorder.put(micro(step, step * 10 + row))
        flushed = threading.Thread(target=recorder.flush, args=(30,))
        flushed.start()
        may_go_on.release()
        flushed.join(20)
        assert not flushed.is_alive()
        assert shape(folder.path) == ["closed", "active"]
    may_go_on.release(1000)
    recorder.close(60)

    # then all of it was written meanwhile
    assert recorder.num_dropped == 0
    assert rows_in(folder.path) == [1, *(step * 10 + row for step in range(2, 6) for row in range(10))]


def test_a_forked_child_seals_nothing(folder: RunFolder) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))
    assert recorder.flush(20)

    child = os.fork()
    if child == 0:
        recorder.close()
        os._exit(0)

    assert os.waitpid(child, 0)[1] == 0
    assert shape(folder.path) == ["active"]
    recorder.close(60)
    assert shape(folder.path) == ["sealed"]


def test_closing_gives_up_waiting_for_a_seal_and_says_nothing_because_nothing_is_lost(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    may_go_on = threading.Event()
    seal = sealing.seal

    def slow(*args: object) -> object:
        assert may_go_on.wait(30)
        yield from seal(*args)

    monkeypatch.setattr(sealing, "seal", slow)
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))
    recorder.close(timeout_s=2)

    assert said() == []
    assert rows_in(folder.path) == [5]
    assert shape(folder.path) == ["closed"]
    may_go_on.set()
    deadline = time.monotonic() + 20
    while shape(folder.path) != ["sealed"]:
        assert time.monotonic() < deadline, "waited 20 s"
        time.sleep(0.01)


# ------------------------------------------------------------------ stopped after every single call to the system


CALLS = ("rename", "unlink", "mkdir", "rmdir", "fsync", "open", "write")


def stop_after(number: int, run: Callable[[], None]) -> bool:
    """Runs in a child that ends, without any cleaning up, after so many changing calls; whether it came to the end."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    left = [number]

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def count(*args: object, **kwargs: object) -> object:
            result = call(*args, **kwargs)
            left[0] -= 1
            if not left[0]:
                os._exit(9)
            return result

        return count

    try:
        for name in CALLS:
            setattr(os, name, counted(getattr(os, name)))
        run()
        os._exit(0)
    finally:
        os._exit(1)


@pytest.mark.long
@pytest.mark.parametrize("ends", [False, True], ids=["while the run goes on", "at its end"])
def test_a_writer_stopped_after_any_call_to_the_system_loses_and_doubles_nothing(
    folder: RunFolder, tmp_path: Path, ends: bool
) -> None:
    # given a journal whose records are all written
    record(folder, 1, 2, 3, seal_bytes=None)
    untouched = shutil.copytree(folder.path, tmp_path / "untouched")
    shapes = set()

    def rotate_and_seal() -> None:
        journal = JournalWriter(folder.path / "rank-00000.journal", attempt=2)
        sealer = Sealer(folder.path, rank=0, seal_bytes=1)
        first = Block(KIND_ATTEMPT, 1, 0, 0, [dump_header(HEADER)])
        for _ in sealer.finish(journal) if ends else sealer.rotate(journal, first):
            pass
        journal.close()

    # when its sealing is stopped after the first, the second, ... call
    for number in range(1, 200):
        shutil.rmtree(folder.path)
        shutil.copytree(untouched, folder.path)
        came_to_the_end = stop_after(number, rotate_and_seal)

        # then everything is read once, and nothing is said
        shapes.add(tuple(shape(folder.path)))
        log = open_log(folder.path)
        assert rows_in(folder.path) == [1, 2, 3], f"stopped after call {number}"
        assert log.notices() == []

        # and the next attempt clears up, and adds to it
        record(continue_run(tmp_path, "a", HEADER), 4)
        assert rows_in(folder.path) == [1, 2, 3, 4], f"stopped after call {number}"
        assert set(shape(folder.path)) == {"sealed"}
        assert [entry for entry in folder.path.rglob("*") if ".new" in entry.name] == []
        if came_to_the_end:
            break
    else:
        pytest.fail("it never came to its end")
    assert number > 15
    assert shapes >= {("active",), ("closed",), ("sealed",)} if ends else {("active",), ("closed", "active")}
