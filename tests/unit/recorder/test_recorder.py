"""The recorder: what is put is in the log, and whatever fails, the run carries on."""

import math
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from trimtab.errors import UsageError
from trimtab.log.folder import RunFolder, continue_run
from trimtab.log.journal import JournalWriter
from trimtab.log.reader import open_log
from trimtab.recorder import Recorder, backlog
from trimtab.values import Event, MicroBatch, RunHeader, StepRow

HEADER = RunHeader(run_id="a", backend="torch")


def micro(step: int, *rows: int) -> MicroBatch:
    return MicroBatch(step, 0, np.array(rows), np.array(rows, np.float32), np.ones(len(rows), np.int64))


def rows_in(path: Path) -> list[int]:
    return [row for block in open_log(path).row_blocks() for row in block.row.tolist()]


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline, "waited 20 s"
        time.sleep(0.005)


class Disk:
    """A journal whose writes can be held up or made to fail."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.may_write.set()
        self.error: OSError | None = None
        self.writes = 0

    def open(self, path: Path, **settings: int) -> JournalWriter:
        return JournalWriter(path, write=self._write, **settings)

    def _write(self, fd: int, data: bytes) -> int:
        assert self.may_write.wait(20)
        if self.error is not None:
            raise self.error
        self.writes += 1
        return os.write(fd, data)


def test_what_is_put_is_in_the_log_after_close(folder: RunFolder) -> None:
    recorder = Recorder(folder, rank=3)
    for step in range(1, 601):
        recorder.put(micro(step, step * 2, step * 2 + 1))
        recorder.put(StepRow(step, float(step), None, 0.1))
    recorder.put(Event("evaluation", 600, 1.0, {"loss": math.nan}))
    recorder.close()

    log = open_log(folder.path)
    assert rows_in(folder.path) == list(range(2, 1202))
    assert log.step_columns().step.tolist() == list(range(1, 601))
    assert log.step_columns().rank.tolist() == [3] * 600
    assert log.event_list() == [Event("evaluation", 600, 1.0, {"loss": "nan"})]
    assert log.notices() == []
    assert (recorder.num_dropped, recorder.off_reason) == (0, None)


def test_flush_hands_everything_to_the_system_while_the_run_goes_on(folder: RunFolder) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)

    for step in range(1, 4):
        recorder.put(micro(step, step))
        assert recorder.flush(20)
        assert rows_in(folder.path) == list(range(1, step + 1))

    recorder.close()


def test_the_interval_writes_without_being_asked(folder: RunFolder) -> None:
    recorder = Recorder(folder, flush_interval_s=0.02)

    recorder.put(micro(1, 5))

    wait_until(lambda: rows_in(folder.path) == [5])
    recorder.close()


def test_a_full_block_is_written_before_the_interval_is_over(folder: RunFolder) -> None:
    recorder = Recorder(folder, flush_interval_s=3600, flush_micros=4)

    for step in range(4):
        recorder.put(micro(step, step))

    wait_until(lambda: rows_in(folder.path) == [0, 1, 2, 3])
    recorder.close()


def test_a_block_holds_no_more_than_it_should(folder: RunFolder) -> None:
    disk = Disk()
    recorder = Recorder(folder, flush_interval_s=3600, flush_micros=10, open_journal=disk.open)
    disk.may_write.clear()
    for step in range(35):
        recorder.put(micro(step, step))
    disk.may_write.set()
    recorder.close()

    assert disk.writes >= 1 + 4  # the header, and 35 micro-batches in blocks of 10
    assert rows_in(folder.path) == list(range(35))


def test_the_attempt_is_that_of_the_folder(folder: RunFolder, tmp_path: Path) -> None:
    for attempt_folder in (folder, None):
        recorder = Recorder(attempt_folder or continue_run(tmp_path, "a", HEADER))
        recorder.put(micro(1, 5))
        recorder.close()

    blocks = open_log(folder.path).row_blocks()
    assert [block.attempt.tolist() for block in blocks] == [[1], [2]]


def test_a_slow_disk_costs_what_does_not_fit_and_it_is_counted_in_the_log_and_said_once(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    # given a disk that stands still now and then, and room for ten items
    disk = Disk()
    recorder = Recorder(folder, flush_interval_s=0.01, capacity_micros=10, open_journal=disk.open)

    # when more is put than there is room for, twice
    for round_ in range(2):
        disk.may_write.clear()
        recorder.put(micro(0, 0))
        wait_until(lambda: not recorder._writer._backlog)
        for step in range(17):
            recorder.put(micro(step, 0))
        recorder.put(StepRow(17 + round_, 1.0, None, 0.1))
        disk.may_write.set()
        assert recorder.flush(20)

    # then the rest is there, the counts are events, and one line was said
    recorder.close()
    log = open_log(folder.path)
    assert len(rows_in(folder.path)) == 22
    assert [(event.kind, event.step, event.facts) for event in log.event_list()] == [
        ("dropped", 17, {"num_micros": 7, "num_steps": 1, "num_events": 0, "num_ids": 0}),
        ("dropped", 18, {"num_micros": 7, "num_steps": 1, "num_events": 0, "num_ids": 0}),
    ]
    assert recorder.num_dropped == 16
    assert recorder.off_reason is None
    assert said() == ["Trimtab recorder: the disk is slow, items were dropped; the log counts them"]


def test_memory_is_bounded_by_bytes_too(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "CAPACITY_BYTES", 1_000_000)
    disk = Disk()
    recorder = Recorder(folder, flush_interval_s=3600, flush_micros=1 << 15, open_journal=disk.open)
    big = MicroBatch(1, 0, np.zeros(10_000, np.int64), np.zeros(10_000, np.float32), np.zeros(10_000, np.int64))

    for _ in range(10):  # 241 KB each, by three times its row numbers
        recorder.put(big)

    assert recorder.num_dropped == 6
    recorder.close()


def test_what_was_written_makes_room_again(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "CAPACITY_BYTES", 1_000_000)
    recorder = Recorder(folder, flush_interval_s=3600)
    big = MicroBatch(1, 0, np.zeros(10_000, np.int64), np.zeros(10_000, np.float32), np.zeros(10_000, np.int64))

    for _ in range(10):
        recorder.put(big)
        assert recorder.flush(20)

    assert recorder.num_dropped == 0
    recorder.close()


def test_a_bad_item_costs_itself_and_is_said_once(folder: RunFolder, said: Callable[[], list[str]]) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    bad = MicroBatch(2, 0, np.array([1, 2]), np.array([1.0]), np.array([1]))

    for item in (micro(1, 5), bad, "nonsense", micro(3, 6)):
        recorder.put(item)
    recorder.flush(20)
    recorder.put(bad)
    recorder.close()

    log = open_log(folder.path)
    assert rows_in(folder.path) == [5, 6]
    assert recorder.off_reason is None
    assert [event.facts["num_items"] for event in log.event_list()] == [1, 1, 1]
    assert "rows of shape (2,)" in log.event_list()[0].facts["reason"]
    assert len(said()) == 1
    assert "an item was left out: step 2, micro 0: rows of shape (2,)" in said()[0]


def test_an_item_that_raises_when_touched_never_reaches_the_run(folder: RunFolder) -> None:
    class Poison:
        @property
        def nbytes(self) -> int:
            raise RuntimeError("poison")

        def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
            raise RuntimeError("poison")

    recorder = Recorder(folder)
    recorder.put(MicroBatch(1, 0, Poison(), Poison(), Poison()))
    recorder.put(micro(1, 5))
    recorder.close()

    assert rows_in(folder.path) == [5]
    assert recorder.off_reason is None


@pytest.mark.parametrize("number", [28, 5], ids=["ENOSPC", "EIO"])
def test_a_disk_that_fails_ends_the_recording_with_one_line(
    folder: RunFolder, said: Callable[[], list[str]], number: int
) -> None:
    disk = Disk()
    recorder = Recorder(folder, open_journal=disk.open)
    recorder.put(micro(1, 5))
    assert recorder.flush(20)

    disk.error = OSError(number, os.strerror(number))
    recorder.put(micro(2, 6))
    assert not recorder.flush(20)
    disk.error = None
    for step in range(3, 1000):
        recorder.put(micro(step, 7))
    assert not recorder.flush(20)
    recorder.close()

    assert rows_in(folder.path) == [5]
    assert said() == [f"Trimtab recorder off: {os.strerror(number)}"]
    assert recorder.off_reason == os.strerror(number)
    assert recorder.num_dropped == 0


def test_a_journal_closed_under_the_recorder_ends_the_recording_with_one_line(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    assert recorder._writer._journal is not None
    os.close(recorder._writer._journal._fd)

    recorder.put(micro(1, 5))
    recorder.flush(20)
    recorder.put(micro(1, 6))
    recorder.close()

    assert said() == ["Trimtab recorder off: Bad file descriptor"]


def test_a_folder_that_went_away_turns_the_recorder_off(folder: RunFolder, said: Callable[[], list[str]]) -> None:
    recorder = Recorder(replace(folder, path=folder.path / "gone"))
    recorder.put(micro(1, 5))
    assert not recorder.flush(1)
    recorder.close()

    assert said() == [f"Trimtab recorder off: No such file or directory: {folder.path}/gone/rank-00000.journal"]


def test_a_mistake_of_the_user_is_an_error_and_not_a_line(folder: RunFolder) -> None:
    first = Recorder(folder)

    with pytest.raises(UsageError, match="is being written by another"):
        Recorder(folder)
    for settings in ({"flush_interval_s": 0}, {"flush_micros": 0}, {"flush_micros": 1 << 16}, {"capacity_micros": 0}):
        with pytest.raises(UsageError, match="expected up to 3600 seconds"):
            Recorder(folder, **settings)

    first.close()


def test_a_full_disk_ends_the_recording_and_not_the_run(tmp_path: Path) -> None:
    # given a process whose files may not grow beyond 40 kB
    script = textwrap.dedent("""
        import resource, signal, sys
        import numpy as np
        from trimtab.log.folder import create_run
        from trimtab.recorder import Recorder
        from trimtab.values import MicroBatch, RunHeader

        recorder = Recorder(create_run(sys.argv[1], RunHeader(run_id="a", backend="torch")), flush_micros=16)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
        rng = np.random.default_rng(0)
        for step in range(2000):
            recorder.put(MicroBatch(step, 0, np.arange(8) + step * 8, rng.random(8, np.float32), np.full(8, 3)))
            if step % 100 == 0:
                recorder.flush(20)
        recorder.close()
        print("the run carried on", recorder.off_reason)
    """)

    # when it records 64 kB
    run = subprocess.run([sys.executable, "-c", script, tmp_path], capture_output=True, text=True, check=True)

    # then one line is said, and what was written before is read, in order and without a gap
    assert run.stdout == "the run carried on File too large\n"
    assert run.stderr == "Trimtab recorder off: File too large\n"
    path = tmp_path / "trimtab" / "a"
    rows = rows_in(path)
    assert len(rows) > 3000
    assert rows == list(range(len(rows)))
    assert len(open_log(path).notices()) <= 1


def test_what_waits_is_written_when_the_interpreter_ends(tmp_path: Path) -> None:
    script = textwrap.dedent("""
        import sys
        import numpy as np
        from trimtab.log.folder import create_run
        from trimtab.recorder import Recorder
        from trimtab.values import MicroBatch, RunHeader

        recorder = Recorder(create_run(sys.argv[1], RunHeader(run_id="a", backend="torch")), flush_interval_s=3600)
        recorder.put(MicroBatch(1, 0, np.array([5]), np.array([1.0]), np.array([1])))
        {ending}
    """)
    for name, ending, code in (("end", "", 0), ("error", "raise SystemExit(3)", 3)):
        out = tmp_path / name
        run = subprocess.run([sys.executable, "-c", script.format(ending=ending), out], check=False)

        assert run.returncode == code
        assert rows_in(out / "trimtab" / "a") == [5]


def test_a_recorder_that_is_forgotten_writes_what_waits(folder: RunFolder) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))

    del recorder

    assert rows_in(folder.path) == [5]
    Recorder(folder).close()  # and the journal is free again


def test_a_forked_child_neither_writes_nor_waits(folder: RunFolder) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))
    size = (folder.path / "rank-00000.journal").stat().st_size

    child = os.fork()
    if child == 0:
        started = time.monotonic()
        recorder.put(micro(1, 6))
        wrote = recorder.flush(20)
        recorder.close()
        os._exit(1 if wrote or time.monotonic() - started > 10 else 0)

    assert os.waitpid(child, 0)[1] == 0
    assert (folder.path / "rank-00000.journal").stat().st_size == size
    recorder.put(micro(2, 7))
    recorder.close()
    assert rows_in(folder.path) == [5, 7]


def test_after_close_nothing_is_taken_and_closing_again_does_nothing(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder)
    recorder.put(micro(1, 5))
    recorder.close()

    recorder.put(micro(1, 6))
    assert not recorder.flush(1)
    recorder.close()

    assert rows_in(folder.path) == [5]
    assert said() == []
    assert recorder.off_reason is None


def test_closing_on_a_disk_that_stands_still_gives_up_and_says_so(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    disk = Disk()
    recorder = Recorder(folder, flush_interval_s=3600, open_journal=disk.open)
    disk.may_write.clear()
    recorder.put(micro(1, 5))

    recorder.close(timeout_s=0.05)

    assert len(said()) == 1
    assert "were not written within 0.05 s; the disk is slow" in said()[0]
    disk.may_write.set()
    wait_until(lambda: rows_in(folder.path) == [5])


def test_putting_from_several_threads_loses_nothing(folder: RunFolder) -> None:
    recorder = Recorder(folder)

    def put_many(first: int) -> None:
        for row in range(first, first + 2000):
            recorder.put(micro(1, row))

    threads = [threading.Thread(target=put_many, args=(place * 2000,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.close()

    assert sorted(rows_in(folder.path)) == list(range(8000))
    assert recorder.num_dropped == 0
