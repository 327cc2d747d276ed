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
from trimtab.recorder.meeting import NOT_RECORDED, Word
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


# Several ranks.


class Board:
    """Where the ranks of one run meet, in this process: what the store of torch.distributed is among real ones."""

    def __init__(self) -> None:
        self.word: Word | None = None
        self.has_ended = False

    def seat(self, rank: int) -> "Seat":
        return Seat(self, rank)


class Seat:
    """One rank at the board; counts how often it looked."""

    world_size = 2

    def __init__(self, board: Board, rank: int) -> None:
        self.rank = rank
        self.num_looks = 0
        self._board = board

    def tell(self, word: Word) -> None:
        assert self.rank == 0
        assert self._board.word is None
        self._board.word = word

    def tell_end(self) -> None:
        assert self._board.word is not None
        self._board.has_ended = True

    def heard(self, *, at_end: bool = False) -> Word | None:
        assert self.rank > 0
        self.num_looks += 1
        return self._board.word


def observe(made: Recording, step: int, *, row: int) -> None:
    made.put(MicroBatch(step, 0, np.array([row]), np.array([1.0]), np.array([1]), 0, True, False), step=step)
    made.put(StepRow(step, 1.0, None, None, 0, None, None, math.nan, 1, 0, 0), step=step)


@pytest.mark.parametrize("begins", ["a micro-batch", "a step"])
def test_what_a_run_opens_with_is_written_once_before_what_is_trained_and_as_it_was_then(
    tmp_path: Path, begins: str
) -> None:
    made = recording(tmp_path)
    facts = {"lr": 1.0}
    made.open_with("schedule", facts)
    facts["lr"] = 2.0
    made.event("note", {}, step=3)
    for step in (4, 5):
        item = StepRow(step, 1.0, None, None) if begins == "a step" else MicroBatch(step, 0, [7], [1.0], [1])
        made.put(item, step=step)
    made.close(reason="closed", step=5)

    events = open_log(made.folder).event_list()
    assert [(event.kind, event.step, event.facts) for event in events][:-1] == [
        ("note", 3, {}),
        ("schedule", 4, {"lr": 1.0}),
    ]


def test_rank_0_alone_writes_what_a_run_opens_with(tmp_path: Path) -> None:
    board = Board()
    ranks = [recording(tmp_path, meeting=board.seat(rank)) for rank in (0, 1)]
    for made in ranks:
        made.open_with("schedule", {"lr": 1.0})
        observe(made, 1, row=1)
        observe(made, 2, row=2)
    assert [made.close(reason="closed", step=3) for made in ranks] == [True, True]

    [event] = [event for event in open_log(ranks[0].folder).event_list() if event.kind == "schedule"]
    assert event.ranks in ((), (0,))


def test_two_ranks_write_into_one_folder_and_what_came_before_rank_0_began_is_in_it(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    # given a rank 1 that begins two steps before rank 0
    board = Board()
    seat = board.seat(1)
    second, first = recording(tmp_path, meeting=seat), recording(tmp_path, meeting=board.seat(0))
    for step in (1, 2):
        observe(second, step, row=100 + step)
    assert second.folder is None
    assert not second.flush(timeout_s=30)
    for step in (1, 2, 3):
        observe(first, step, row=step)
    # when it comes to its third step
    observe(second, 3, row=103)
    looks_until_heard = seat.num_looks
    for made in (first, second):
        made.event("note", {"text": "x"}, step=3)
        made.close(reason="closed", step=4)

    # then
    assert second.folder == first.folder
    assert second.run_id == first.run_id
    log = open_log(tmp_path)
    rows = log.rows().numpy()
    assert sorted(zip(rows["step"].tolist(), rows["rank"].tolist(), rows["row"].tolist(), strict=True)) == [
        (step, rank, 100 * rank + step) for step in (1, 2, 3) for rank in (0, 1)
    ]
    assert log.header.world_size == 2
    assert log.notices() == []
    assert [(event.kind, event.ranks) for event in log.event_list()] == [("note", (0, 1)), ("end", (0, 1))]
    # and it looked at the board until it knew, and no more
    assert looks_until_heard == seat.num_looks == 5
    # and rank 0 alone spoke, and is in the list of runs
    assert len([line for line in said() if "records run" in line]) == 1
    assert len(registry.runs()) == 1


def test_the_ranks_of_a_run_that_is_continued_take_the_attempt_of_rank_0(tmp_path: Path) -> None:
    for attempt in (1, 2):
        board = Board()
        first, second = (recording(tmp_path, run_id="r", meeting=board.seat(rank)) for rank in (0, 1))
        for made in (first, second):
            observe(made, attempt, row=attempt)
        for made in (first, second):
            made.close(reason="closed", step=attempt + 1)

    log = open_log(tmp_path)
    rows = log.rows().numpy()
    assert sorted(zip(rows["attempt"].tolist(), rows["rank"].tolist(), strict=True)) == [(1, 0), (1, 1), (2, 0), (2, 1)]
    assert [event.kind for event in log.event_list()] == ["end", "resume", "end"]


def test_a_rank_follows_rank_0_and_not_a_folder_of_its_own_that_is_left_of_an_earlier_run(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    # given an earlier run of the same folder, and a checkpoint that names it on rank 1
    fill(recording(tmp_path, run_id="stale"))
    num_said = len(said())
    before = sorted((tmp_path / "trimtab" / "stale").rglob("*"))
    board = Board()
    first, second = recording(tmp_path, meeting=board.seat(0)), recording(tmp_path, meeting=board.seat(1))
    second.continue_from("on-the-disk-of-rank-0")
    second.continue_from("stale")
    assert len(said()) == num_said
    assert second.run_id is None
    # when
    observe(second, 1, row=2)
    observe(first, 1, row=1)
    for made in (second, first):
        made.close(reason="closed", step=2)

    assert second.run_id == first.run_id != "stale"
    assert sorted((tmp_path / "trimtab" / "stale").rglob("*")) == before


def test_where_rank_0_does_not_record_the_other_says_so_and_goes_on(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    board = Board()
    fill(recording(None, record=False, meeting=board.seat(0)))
    second = recording(tmp_path, meeting=board.seat(1))

    fill(second)

    assert off_lines(said()) == ["Trimtab recorder off on rank 1: rank 0 does not record this run."]
    assert second.folder is None
    assert not (tmp_path / "trimtab").exists()


def test_where_rank_0_has_no_disk_the_other_does_not_write_a_log_of_its_own(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    board = Board()
    first, second = recording("/dev/null/x", meeting=board.seat(0)), recording(tmp_path, meeting=board.seat(1))

    fill(first)
    fill(second)

    (of_first, of_second) = off_lines(said())
    assert of_first.startswith("Trimtab recorder off: Not a directory")
    assert of_second == "Trimtab recorder off on rank 1: rank 0 does not record this run."


def test_a_rank_that_never_hears_of_rank_0_says_at_its_end_what_is_lost(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    second = recording(tmp_path, meeting=Board().seat(1), patience_s=0.0)

    fill(second)

    assert off_lines(said()) == [
        "Trimtab recorder off on rank 1: rank 0 has not said within 0 s of the end where this run is recorded: it has "
        "not begun it, or was given another out, guard or accumulation. 5 items of this rank are in no log."
    ]
    assert not (tmp_path / "trimtab").exists()


def test_what_found_no_room_is_counted_with_what_is_lost(
    tmp_path: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.recording._CAPACITY_MICROS", 3)
    second = recording(tmp_path, meeting=Board().seat(1), patience_s=0.0)

    for step in (1, 2, 3, 4):
        observe(second, step, row=step)  # two items
    second.close(reason="closed", step=5)

    [line] = off_lines(said())
    assert line.endswith(" 8 items of this rank are in no log.")


def test_a_rank_that_closes_before_rank_0_begins_waits_for_its_word(tmp_path: Path) -> None:
    class SlowBoard(Board):
        """Rank 0 begins while rank 1 is waiting already."""

        def seat(self, rank: int) -> "Seat":
            seat = super().seat(rank)
            heard = seat.heard

            def heard_late(*, at_end: bool = False) -> Word | None:
                if seat.num_looks == 4:
                    observe(first, 1, row=1)
                return heard(at_end=at_end)

            if rank:
                seat.heard = heard_late  # type: ignore[method-assign]
            return seat

    board = SlowBoard()
    first, second = recording(tmp_path, meeting=board.seat(0)), recording(tmp_path, meeting=board.seat(1))
    observe(second, 1, row=2)
    assert second.close(reason="closed", step=2)
    first.close(reason="closed", step=2)

    assert sorted(open_log(tmp_path).rows().numpy()["row"].tolist()) == [1, 2]


def test_what_finds_no_room_before_rank_0_begins_is_counted_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trimtab.recording._CAPACITY_MICROS", 2)
    board = Board()
    first, second = recording(tmp_path, meeting=board.seat(0)), recording(tmp_path, meeting=board.seat(1))
    for step in (1, 2, 3):
        observe(second, step, row=step)
    observe(first, 1, row=9)
    for made in (first, second):
        made.close(reason="closed", step=4)

    log = open_log(tmp_path)
    dropped = [event for event in log.event_list() if event.kind == "dropped"]
    assert [(event.ranks, event.step) for event in dropped] == [((1,), 3)]
    assert dropped[0].facts == {"num_micros": 2, "num_steps": 2, "num_events": 0, "num_ids": 0}
    assert sorted(log.rows().numpy()["row"].tolist()) == [1, 9]


def test_a_rank_without_rank_0s_disk_makes_the_folder_and_the_copies_put_together_are_one_log(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    board = Board()
    first = recording(tmp_path / "node0", meeting=board.seat(0))
    second = recording(tmp_path / "node1", meeting=board.seat(1))
    observe(first, 1, row=0)
    assert board.word is not None
    board.word = board.word._replace(folder="/disk/of/node0/trimtab/r")
    observe(second, 1, row=1)
    for made in (first, second):
        made.close(reason="closed", step=2)
    assert first.folder is not None
    assert second.folder is not None
    assert first.folder.name == second.folder.name
    assert second.folder.is_relative_to(tmp_path / "node1")
    # and one line says that it is not rank 0's
    (line,) = [line for line in said() if "rank 1" in line]
    assert line == (
        f"Trimtab records rank 1 of run {second.run_id} in {second.folder}: the folder of rank 0, "
        "/disk/of/node0/trimtab/r, is not to be found from here. Copy what is in both into one, and trimtab rewind "
        "reads them as one run."
    )
    # each is a log by itself, which says what is missing
    assert "1 of 2 ranks have no journal" in open_log(second.folder).notices()[-1]

    shutil.copytree(second.folder, first.folder, dirs_exist_ok=True)

    log = open_log(first.folder)
    assert log.notices() == []
    assert sorted(log.rows().numpy()["row"].tolist()) == [0, 1]


def test_a_disk_that_refuses_on_another_rank_is_said_with_the_rank(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    board = Board()
    first, second = recording(tmp_path, meeting=board.seat(0)), recording("/dev/null/x", meeting=board.seat(1))
    observe(first, 1, row=1)
    assert board.word is not None
    board.word = board.word._replace(folder="/disk/of/another/node")
    fill(second)
    first.close(reason="closed", step=2)

    (line,) = off_lines(said())
    assert line.startswith("Trimtab recorder off on rank 1: Not a directory: ")
    assert open_log(tmp_path).rows().numpy()["row"].tolist() == [1]


def test_a_rank_writes_into_the_folder_of_rank_0_whatever_its_own_working_directory(
    tmp_path: Path, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given ranks that were given the same relative folder in two places
    board = Board()
    made = []
    for rank in (0, 1):
        (tmp_path / f"home{rank}").mkdir()
        monkeypatch.chdir(tmp_path / f"home{rank}")
        made.append(recording("runs", meeting=board.seat(rank)))
        observe(made[rank], 1, row=rank)
    # when
    for one in made:
        one.close(reason="closed", step=2)

    log = open_log(tmp_path / "home0" / "runs")
    assert sorted(log.rows().numpy()["row"].tolist()) == [0, 1]
    assert made[1].folder == made[0].folder
    assert list((tmp_path / "home1").iterdir()) == []
    assert [line for line in said() if "rank 1" in line] == []


def test_rank_0_tells_where_its_run_is_when_it_trains_and_not_when_it_measures(tmp_path: Path) -> None:
    board = Board()
    first = recording(tmp_path, meeting=board.seat(0))
    first.event("evaluation", {"loss": 1.0}, step=1)
    assert first.folder is not None
    assert board.word is None

    observe(first, 1, row=1)

    assert board.word == Word(first.folder.name, 1, str(first.folder))
    assert not board.has_ended
    first.close(reason="closed", step=2)
    assert board.has_ended


def test_a_run_of_rank_0_in_which_nothing_is_trained_is_told_to_nobody(
    tmp_path: Path, said: Callable[[], list[str]]
) -> None:
    board = Board()
    first, second = recording(tmp_path, meeting=board.seat(0)), recording(tmp_path, meeting=board.seat(1))
    for made in (second, first):
        made.event("evaluation", {"loss": 1.0}, step=1)
    # when the other closes, which has nobody to wait for
    assert not second.close(reason="closed", step=1)
    assert first.close(reason="closed", step=1)

    assert board.word is None
    assert off_lines(said()) == [
        "Trimtab recorder off on rank 1: nothing was trained in this run, so rank 0 alone records it. 1 items of this "
        "rank are in no log."
    ]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_record_takes_part_in_the_count_of_the_runs(tmp_path: Path, rank: int) -> None:
    board = Board()
    seat = board.seat(rank)
    made = recording(tmp_path, record=False, meeting=seat)
    made.event("evaluation", {"loss": 1.0}, step=1)
    assert (board.word, seat.num_looks) == (None, 0)
    for step in (1, 2):
        observe(made, step, row=1)
    assert (board.word, seat.num_looks) == ((None, 1) if rank else (NOT_RECORDED, 0))
