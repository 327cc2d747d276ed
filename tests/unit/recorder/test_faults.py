"""No item ends the recording, whatever is wrong with it; only the disk does."""

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trimtab.log.folder import RunFolder
from trimtab.log.frames import KIND_ROWS, MAX_PAYLOAD
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name
from trimtab.log.reader import open_log
from trimtab.log.scan import Journal
from trimtab.recorder import Recorder
from trimtab.values import Event, MicroBatch, RunHeader, StepRow


def micro(step: int, *rows: int) -> MicroBatch:
    return MicroBatch(step, 0, np.array(rows), np.array(rows, np.float32), np.ones(len(rows), np.int64))


def rows_in(path: Path) -> list[int]:
    return [row for block in open_log(path).row_blocks() for row in block.row.tolist()]


def events_in(path: Path, kind: str) -> list[Event]:
    return [event for event in open_log(path).event_list() if event.kind == kind]


def text(size: int) -> str:
    """A text that does not compress to less than half."""
    return os.urandom(size // 2).hex()


def test_an_event_that_fits_no_frame_costs_itself_and_says_what_was_found(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder)
    recorder.put(micro(1, 5))
    recorder.put(Event("before", 1, 1.0, {}))
    recorder.put(Event("big", 7, 2.0, {"text": text(MAX_PAYLOAD + 2)}))
    recorder.put(Event("after", 9, 3.0, {}))
    assert recorder.flush(30)
    recorder.put(micro(2, 6))
    recorder.close()

    assert recorder.off_reason is None
    assert rows_in(folder.path) == [5, 6]
    assert [event.kind for event in open_log(folder.path).event_list() if event.kind != "refused"] == [
        "before",
        "after",
    ]
    (refused,) = events_in(folder.path, "refused")
    assert refused.facts["num_items"] == 1
    assert f"event 'big' of step 7 is {MAX_PAYLOAD + 58} bytes" in refused.facts["reason"]
    assert len(said()) == 1
    assert "an item was left out: event 'big' of step 7" in said()[0]
    assert f"at most {MAX_PAYLOAD}" in said()[0]


def test_an_event_as_large_as_a_frame_is_kept(folder: RunFolder) -> None:
    event = Event("big", 7, 2.0, {"text": "x" * (MAX_PAYLOAD - 56)})  # in JSON, 56 characters stand around the text
    recorder = Recorder(folder)
    recorder.put(event)
    recorder.close()

    assert open_log(folder.path).event_list() == [event]


def test_events_that_fit_no_frame_together_are_spread_over_several(folder: RunFolder) -> None:
    events = [Event("some", step, 1.0 + step, {"text": text(160_000)}) for step in range(300)]
    recorder = Recorder(folder, flush_interval_s=3600, flush_micros=1 << 15)
    for event in events:
        recorder.put(event)
    recorder.close()

    assert (recorder.off_reason, recorder.num_dropped) == (None, 0)
    assert open_log(folder.path).event_list() == events


@pytest.mark.parametrize(
    "facts",
    [
        {"text": "x" * 1_000_000},
        {"texts": ["x" * 10_000] * 100},
        {"deep": {"er": [{"text": "x" * 1_000_000}]}},
        {"array": np.zeros(31_250)},
        {"list": [0.5] * 20_000},
    ],
    ids=["text", "texts", "nested", "array", "numbers"],
)
def test_what_an_event_carries_counts_towards_the_bound(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, facts: dict[str, object]
) -> None:
    monkeypatch.setattr("trimtab.recorder.backlog.CAPACITY_BYTES", 4_000_000)
    recorder = Recorder(folder, flush_interval_s=3600, flush_micros=1 << 15)

    for step in range(20):  # 1 MB each, within a half
        recorder.put(Event("e", step, 1.0, facts))

    assert 12 <= recorder.num_dropped <= 18
    recorder.close()


def test_the_size_of_an_event_is_seen_at_once_however_much_it_holds(folder: RunFolder) -> None:
    facts = {"losses": [0.5] * 200_000, "texts": {str(place): "x" for place in range(20_000)}}
    recorder = Recorder(folder, flush_interval_s=3600)

    times = []
    for _ in range(3):
        started = time.thread_time()
        recorder.put(Event("e", 1, 1.0, facts))
        times.append(time.thread_time() - started)

    assert min(times) < 0.001  # a look at every value would take 10 ms
    recorder.close()


def big_micro(step: int, num_rows: int) -> MicroBatch:
    rows = np.arange(num_rows)
    return MicroBatch(step, 0, rows, np.zeros(num_rows, np.float32), np.ones(num_rows, np.int64))


def test_a_micro_batch_over_what_may_wait_is_recorded_and_costs_no_other_item(folder: RunFolder) -> None:
    recorder = Recorder(folder)

    for step in (1, 2):
        recorder.put(big_micro(step, 3_000_000))  # 72 MB by three times its row numbers
        recorder.put(StepRow(step, 1.0, None, 0.1))
        assert recorder.flush(60)
    recorder.close()

    assert (recorder.num_dropped, recorder.off_reason) == (0, None)
    log = open_log(folder.path)
    assert sum(block.num_records for block in log.row_blocks()) == 6_000_000
    assert log.step_columns().step.tolist() == [1, 2]


def test_a_large_item_is_written_without_waiting_for_the_interval(folder: RunFolder) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(big_micro(1, 500_000))

    deadline = time.monotonic() + 20
    while not rows_in(folder.path):
        assert time.monotonic() < deadline, "waited 20 s"
        time.sleep(0.01)
    recorder.close()


def test_an_item_over_what_one_may_take_is_refused_by_that_name_and_not_as_a_slow_disk(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    monkeypatch.setattr("trimtab.recorder.backlog.MAX_ITEM_BYTES", 10_000_000)
    recorder = Recorder(folder)
    recorder.put(big_micro(3, 500_000))
    recorder.put(Event("big", 4, 1.0, {"text": "x" * 11_000_000}))
    recorder.put(micro(5, 6))
    recorder.close()

    assert (recorder.num_dropped, recorder.off_reason) == (0, None)
    assert rows_in(folder.path) == [6]
    assert events_in(folder.path, "dropped") == []
    # one event a flush, and a busy machine may flush between the two
    assert sum(event.facts["num_items"] for event in events_in(folder.path, "refused")) == 2
    assert len(said()) == 1
    assert "an item was left out: the micro-batch 0 of step 3 takes about 12001024 bytes" in said()[0]
    assert "at most 10000000" in said()[0]
    assert "smaller micro-batches" in said()[0]


class Poison:
    """Raises whatever is asked of it."""

    def __getattribute__(self, name: str) -> object:
        raise RuntimeError("poison")

    def __len__(self) -> int:
        raise RuntimeError("poison")

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise SystemError("poison")


class UnspeakableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class Unspoken:
    nbytes = -1

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise UnspeakableError


class Verbose:
    nbytes = "many"

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise ValueError("x" * 40_000_000)


BAD_ITEMS = {
    "no item": lambda: Poison(),
    "rows": lambda: MicroBatch(1, 0, Poison(), Poison(), Poison()),
    "fields": lambda: MicroBatch(Poison(), Poison(), np.array([1]), np.array([1.0]), np.array([1]), Poison(), Poison()),
    "no words": lambda: MicroBatch(1, 0, Unspoken(), Unspoken(), Unspoken()),
    "too many words": lambda: MicroBatch(1, 0, Verbose(), Verbose(), Verbose()),
    "a step": lambda: StepRow(*[Poison()] * 11),
    "a number beyond all": lambda: StepRow(10**5000, 1.0, 1.0, 1.0),
    "an event": lambda: Event(Poison(), Poison(), Poison(), Poison()),
    "facts": lambda: Event("e", 1, 1.0, {"a": Poison(), "b": [Poison()]}),
    "no facts": lambda: Event("e", 1, 1.0, None),
    "a long name": lambda: Event("x" * 20_000_000, 2**70, 1.0, {}),
    "a surrogate": lambda: Event("\ud800", 2**70, 1.0, {}),
}


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_a_bad_item_never_raises_and_costs_nothing_but_itself(
    folder: RunFolder, name: str, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    for item in (micro(1, 5), StepRow(1, 1.0, None, None), BAD_ITEMS[name](), micro(2, 6), Event("e", 2, 1.0, {})):
        recorder.put(item)
    assert recorder.flush(30)
    recorder.put(micro(3, 7))
    recorder.close()

    log = open_log(folder.path)
    assert recorder.off_reason is None
    assert rows_in(folder.path) == [5, 6, 7]
    assert log.step_columns().step.tolist() == [1]
    assert [event.kind for event in log.event_list()] == ["e", "refused"]
    assert log.notices() == []
    assert len(said()) == 1
    assert len(said()[0]) < 1000
    assert said()[0].isascii()


@pytest.mark.parametrize("name", BAD_ITEMS)
def test_a_bad_item_that_finds_no_room_is_counted_like_any_other(folder: RunFolder, name: str) -> None:
    recorder = Recorder(folder, flush_interval_s=3600, capacity_micros=1)
    recorder.put(micro(1, 5))
    recorder.put(BAD_ITEMS[name]())
    recorder.close()

    assert recorder.num_dropped == 1
    assert recorder.off_reason is None
    assert rows_in(folder.path) == [5]


def test_one_bad_item_among_many_costs_few_further_frames(folder: RunFolder) -> None:
    recorder = Recorder(folder, flush_interval_s=3600, seal_bytes=None)
    for step in range(256):
        recorder.put(MicroBatch(step, 0, [0.5], [1.0], [1]) if step == 100 else micro(step, step))
    recorder.close()

    assert rows_in(folder.path) == [row for row in range(256) if row != 100]
    assert sum(1 for _ in Journal(folder.path / journal_name(0)).frames((KIND_ROWS,))) < 12


def test_a_frame_that_cannot_be_packed_costs_its_items(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)

    def fail(*args: object, **kwargs: object) -> bytes:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr("trimtab.log.journal.pack_frame", fail)
        recorder.put(micro(1, 5))
        assert recorder.flush(20)
    recorder.put(micro(2, 6))
    recorder.close()

    assert recorder.off_reason is None
    assert rows_in(folder.path) == [6]
    assert said() == ["Trimtab recorder: an item was left out: MemoryError; the log counts further ones"]


def test_a_journal_that_was_deleted_ends_the_recording_with_one_line(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))
    assert recorder.flush(20)

    shutil.rmtree(folder.path)
    recorder.put(micro(2, 6))
    recorder.flush(20)
    recorder.put(micro(3, 7))
    recorder.close()

    line = f"{folder.path}/rank-00000.journal was deleted while the run wrote to it"
    assert said() == [f"Trimtab recorder off: {line}"]
    assert recorder.off_reason == line


def test_a_journal_that_was_deleted_is_noticed_although_nothing_is_put(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder, flush_interval_s=0.02)
    (folder.path / "rank-00000.journal").unlink()

    deadline = time.monotonic() + 20
    while recorder.off_reason is None:
        assert time.monotonic() < deadline, "waited 20 s"
        time.sleep(0.005)
    recorder.close()
    assert len(said()) == 1


def test_a_journal_deleted_since_the_last_flush_is_noticed_when_the_run_ends(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))
    (folder.path / "rank-00000.journal").unlink()
    recorder.close()

    assert len(said()) == 1
    assert "was deleted while the run wrote to it" in said()[0]


def test_a_journal_that_was_replaced_ends_the_recording_with_one_line(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    path = folder.path / "rank-00000.journal"
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))
    assert recorder.flush(20)
    path.rename(folder.path / "older")
    path.write_bytes(b"")
    recorder.put(micro(2, 6))
    recorder.close()

    assert said() == [f"Trimtab recorder off: {path} was replaced by another file while the run wrote to it"]
    assert path.read_bytes() == b""


def test_a_run_folder_that_was_moved_is_said_once_and_recorded_to_the_end(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    recorder = Recorder(folder, flush_interval_s=3600)
    recorder.put(micro(1, 5))
    assert recorder.flush(20)
    moved = folder.path.rename(folder.path.with_name("moved"))
    for step in (2, 3):
        recorder.put(micro(step, step + 4))
        assert recorder.flush(20)
    recorder.close()

    assert recorder.off_reason is None
    assert rows_in(moved) == [5, 6, 7]
    assert len(said()) == 1
    assert "rank-00000.journal is no longer there: it was moved" in said()[0]


def test_a_path_that_the_system_cannot_take_turns_the_recorder_off_with_one_line(
    said: Callable[[], list[str]],
) -> None:
    header = RunHeader(run_id="a", backend="torch")
    for path in (Path("/tmp/nu\0l"), Path("/tmp/\ud800")):
        recorder = Recorder(RunFolder(path, header))
        recorder.put(micro(1, 5))
        recorder.close()
        assert recorder.off_reason is not None

    assert len(said()) == 2
    assert all(line.startswith("Trimtab recorder off: ") and line.isascii() for line in said())
    json.dumps(said())


def test_no_thread_and_no_lock_are_left_where_the_recorder_could_not_start(folder: RunFolder) -> None:
    num_threads = threading.active_count()
    bad = RunFolder(folder.path, RunHeader(run_id="a", backend="torch", created=float("nan")))

    with pytest.raises(ValueError, match="created"):
        Recorder(bad)

    assert threading.active_count() == num_threads
    Recorder(folder).close()


def test_a_handler_that_raises_ends_neither_the_recording_nor_the_run(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no handler")

    monkeypatch.setattr("trimtab.notices.say", fail)
    recorder = Recorder(folder)
    recorder.put("nonsense")
    recorder.put(micro(1, 5))
    recorder.close()

    assert recorder.off_reason is None
    assert rows_in(folder.path) == [5]


def test_facts_without_an_end_are_refused(folder: RunFolder, said: Callable[[], list[str]]) -> None:
    endless: list[object] = []
    endless += [endless, endless, endless]
    recorder = Recorder(folder)
    recorder.put(Event("e", 1, 1.0, {"endless": endless}))
    recorder.put(micro(1, 5))
    recorder.close()

    assert rows_in(folder.path) == [5]
    assert len(said()) == 1
    assert "an event holds more than 1048576 values" in said()[0]


def test_a_disk_that_takes_nothing_and_says_nothing_ends_the_recording(
    folder: RunFolder, said: Callable[[], list[str]]
) -> None:
    takes = [True]

    def open_journal(path: Path, **settings: int) -> JournalWriter:
        return JournalWriter(path, write=lambda fd, data: os.write(fd, data) if takes[0] else 0, **settings)

    recorder = Recorder(folder, open_journal=open_journal)
    takes[0] = False
    recorder.put(micro(1, 5))
    assert not recorder.flush(20)
    recorder.close()

    assert len(said()) == 1
    assert "the file takes no more bytes" in said()[0]
