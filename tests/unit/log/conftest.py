"""Writes the journals of a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.log import records
from trimtab.log.columns import RowColumns
from trimtab.log.folder import RunFolder
from trimtab.log.frames import KIND_ATTEMPT, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import SEGMENTS_NAME, Part, journal_name, next_number
from trimtab.log.reader import Log
from trimtab.log.sealing import seal
from trimtab.values import Event, MicroBatch, RowIds, StepRow

_MAKE = {
    MicroBatch: records.row_blocks,
    StepRow: records.step_blocks,
    Event: records.event_blocks,
    RowIds: records.id_blocks,
}


def _write(folder: RunFolder, *items: MicroBatch | StepRow | Event | RowIds, rank: int = 0) -> Path:
    """One block an item, behind an attempt header."""
    writer = JournalWriter(folder.path / journal_name(rank), attempt=folder.attempt, rank=rank)
    writer.append(Block(KIND_ATTEMPT, 1, 0, 0, [dump_header(folder.header)]))
    for item in items:
        for block in _MAKE[type(item)]([item])[0]:
            writer.append(block)
    writer.close()
    return writer.path


def _micro(step: int, *rows: int, place: int = 0) -> MicroBatch:
    return MicroBatch(step, place, list(rows), [float(row) for row in rows], [2] * len(rows), reason=6, keep=False)


@pytest.fixture(scope="session")
def write_run() -> Callable[..., Path]:
    """`write_run(folder, *items, rank=0)`: one journal, behind an attempt header one block an item; gives its path."""
    return _write


@pytest.fixture(scope="session")
def make_micro() -> Callable[..., MicroBatch]:
    """`make_micro(step, *rows, place=0)`: each row with its number as loss, over two tokens."""
    return _micro


def _columns_of(log: Log) -> dict[str, object]:
    """Everything that a log holds, to the bit, however it is cut into blocks."""
    rows = RowColumns.concat(log.row_blocks())
    parts = {"rows": rows, "steps": log.step_columns(), "ids": log.id_columns()}
    return {
        f"{kind}.{name}": values.tolist() if values.dtype == object else (values.dtype.str, values.tobytes())
        for kind, columns in parts.items()
        for name, values in columns._asdict().items()
    } | {"events": log.event_list()}


@pytest.fixture(scope="session")
def columns_of() -> Callable[[Log], dict[str, object]]:
    """`columns_of(log)`: everything in it, to the bit; equal for two logs that hold the same records in one order."""
    return _columns_of


def _close_journal(folder: RunFolder, *, rank: int = 0) -> Part:
    """Gives a rank's journal its closed name, as an orderly end does."""
    number = next_number(folder.path, rank)
    closed = folder.path / journal_name(rank, number)
    (folder.path / journal_name(rank)).rename(closed)
    return Part(rank, number, closed)


@pytest.fixture(scope="session")
def close_journal() -> Callable[..., Part]:
    """`close_journal(folder, rank=0)`: renames the journal to the next closed one; gives the part."""
    return _close_journal


def _seal_journal(folder: RunFolder, *, rank: int = 0) -> Path:
    for _ in seal(folder.path, _close_journal(folder, rank=rank)):
        pass
    return sorted((folder.path / SEGMENTS_NAME).glob(f"rank-{rank:05d}.*"))[-1]


@pytest.fixture(scope="session")
def seal_journal() -> Callable[..., Path]:
    """`seal_journal(folder, rank=0)`: makes the journal a segment; gives its folder."""
    return _seal_journal
