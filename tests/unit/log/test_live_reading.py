"""A run that is read while it goes on writing, closing and sealing: no record twice, and none missing."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.errors import LogError
from trimtab.log import records, run_source
from trimtab.log.folder import RunFolder, continue_run, create_run, is_run_folder
from trimtab.log.frames import KIND_ATTEMPT, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name, list_parts, next_number
from trimtab.log.reader import Log, open_log
from trimtab.log.sealing import seal
from trimtab.values import MicroBatch, RunHeader, StepRow

HEADER = RunHeader(run_id="a", backend="torch", created=1.7e9)


class Writing:
    """A run that is written by hand: one row a step, the row's number ten times the step's."""

    def __init__(self, out: Path) -> None:
        self.folder = create_run(out, HEADER)
        self.journal = JournalWriter(self.folder.path / journal_name(0))
        self.first = Block(KIND_ATTEMPT, 1, 0, 0, [dump_header(HEADER)])
        self.journal.append(self.first)
        self.step = 0
        self.closed: list[Path] = []

    def write(self) -> None:
        self.step += 1
        step = self.step
        for block in (
            *records.row_blocks([MicroBatch(step, 0, [step * 10], [1.0], [1])])[0],
            *records.step_blocks([StepRow(step, 1.0, None, None)])[0],
        ):
            self.journal.append(block)

    def rotate(self) -> None:
        closed = self.folder.path / journal_name(0, next_number(self.folder.path, 0))
        self.journal.rotate(closed, self.first)
        self.journal.release()

    def finish(self) -> None:
        self.journal.finish(self.folder.path / journal_name(0, next_number(self.folder.path, 0)))
        self.journal.close()

    def seal(self) -> None:
        for part in list_parts(self.folder.path):
            if part.journal is not None and part.journal.name != journal_name(0):
                for _ in seal(self.folder.path, part):
                    pass


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Writing]:
    writing = Writing(tmp_path)
    yield writing
    writing.journal.close()


def steps_of(log: Log) -> tuple[list[int], list[int]]:
    rows = [row for block in log.row_blocks() for row in block.row.tolist()]
    assert [row % 10 for row in rows] == [0] * len(rows)
    return [row // 10 for row in rows], log.step_columns().step.tolist()


def up_to(step: int) -> tuple[list[int], list[int]]:
    return list(range(1, step + 1)), list(range(1, step + 1))


def test_segments_closed_journals_and_the_one_being_written_are_read_in_the_order_recorded(run: Writing) -> None:
    for _ in range(2):
        run.write()
        run.rotate()
        run.seal()
    for _ in range(2):
        run.write()
        run.rotate()
    run.write()

    log = open_log(run.folder.path)

    assert [(part.journal is None, part.number) for part in list_parts(run.folder.path)][:4] == [
        (True, 1), (True, 2), (False, 3), (False, 4),
    ]  # fmt: skip
    assert steps_of(log) == up_to(5)
    assert log.notices() == []


MOVES: dict[str, Callable[[Writing], None]] = {
    "rotates": lambda run: run.rotate(),
    "rotates and seals": lambda run: (run.rotate(), run.seal()),
    "seals": lambda run: run.seal(),
    "rotates twice and seals": lambda run: (run.rotate(), run.write(), run.rotate(), run.seal()),
    "ends": lambda run: run.finish(),
    "ends and seals": lambda run: (run.finish(), run.seal()),
}


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("look", [1, 2])
def test_a_run_that_moves_between_our_look_and_our_opening_is_looked_at_anew(
    run: Writing, monkeypatch: pytest.MonkeyPatch, move: str, look: int
) -> None:
    # given a run with a sealed part, a closed one and a journal that is being written
    run.write()
    run.rotate()
    run.seal()
    run.write()
    run.rotate()
    run.write()

    # when it moves on just after our first, or our second look at its folder
    num_looks = [0]

    def list_and_move(path: Path) -> list:
        found = list_parts(path)
        num_looks[0] += 1
        if num_looks[0] == look:
            MOVES[move](run)
        return found

    monkeypatch.setattr(run_source, "list_parts", list_and_move)
    log = open_log(run.folder.path)

    # then what was written is there once, and there is nothing to say
    assert steps_of(log) == up_to(run.step)
    assert log.notices() == []


@pytest.mark.parametrize("move", MOVES)
def test_a_log_that_is_open_stays_as_it_was_while_the_run_goes_on(run: Writing, move: str) -> None:
    run.write()
    run.rotate()
    run.write()
    log = open_log(run.folder.path)

    MOVES[move](run)
    if not move.startswith("ends"):
        run.write()

    for _ in range(2):
        assert steps_of(log) == up_to(2)
    assert log.notices() == []


def test_a_folder_that_never_stands_still_is_an_error_and_not_a_loop(
    run: Writing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def list_and_move(path: Path) -> list:
        found = list_parts(path)
        run.rotate()
        return found

    monkeypatch.setattr(run_source, "list_parts", list_and_move)
    with pytest.raises(LogError, match="changed 100 times while it was listed"):
        open_log(run.folder.path)


def test_a_part_that_is_missing_is_said(run: Writing) -> None:
    for _ in range(4):
        run.write()
        run.rotate()
    run.write()
    for number in (1, 3):
        (run.folder.path / journal_name(0, number)).unlink()

    log = open_log(run.folder.path)

    assert steps_of(log) == ([2, 4, 5], [2, 4, 5])
    assert log.notices() == ["2 parts of rank 0 are missing, the first of them part 1: their records are lost"]


def test_a_broken_segment_whose_journal_is_still_there_is_read_from_the_journal(run: Writing) -> None:
    run.write()
    run.rotate()
    journal = run.folder.path / journal_name(0, 1)
    data = journal.read_bytes()
    run.seal()
    journal.write_bytes(data)
    assert steps_of(open_log(run.folder.path)) == up_to(1)
    (run.folder.path / "segments" / "rank-00000.000001" / "segment.json").unlink()

    log = open_log(run.folder.path)

    assert steps_of(log) == up_to(1)
    assert len(log.notices()) == 1
    assert log.notices()[0].endswith("the segment was left out and its journal read instead")


def test_a_run_of_segments_alone_is_read_and_continued(run: Writing, tmp_path: Path) -> None:
    # given a run that ended, and lost its run.json
    run.write()
    run.finish()
    run.seal()
    (run.folder.path / "run.json").unlink()

    log = open_log(run.folder.path)
    assert is_run_folder(run.folder.path)
    assert (log.header, steps_of(log)) == (HEADER, up_to(1))
    assert "the run's header was taken from segments/rank-00000.000001" in log.notices()

    # when it is continued, then the attempt is the next one
    assert continue_run(tmp_path, "a", HEADER) == RunFolder(run.folder.path, HEADER, 2)


def test_a_copy_under_another_name_is_known_by_its_segments(run: Writing, tmp_path: Path) -> None:
    from trimtab.errors import UsageError

    run.write()
    run.finish()
    run.seal()
    (run.folder.path / "run.json").unlink()
    run.folder.path.rename(run.folder.path.with_name("b"))

    with pytest.raises(UsageError, match="names the run 'a', and the folder is 'b'"):
        continue_run(tmp_path, "b", HEADER)


def test_a_link_in_place_of_a_segment_is_said(run: Writing) -> None:
    run.write()
    run.rotate()
    run.seal()
    segment = run.folder.path / "segments" / "rank-00000.000001"
    segment.rename(run.folder.path / "elsewhere")
    segment.symlink_to(run.folder.path / "elsewhere")

    log = open_log(run.folder.path)

    assert steps_of(log) == ([], [])
    assert log.notices() == ["segments/rank-00000.000001 is a link or no file, and was left out"]
