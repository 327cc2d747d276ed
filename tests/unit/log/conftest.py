"""Writes the journals of a run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.log import records
from trimtab.log.folder import RunFolder
from trimtab.log.frames import KIND_ATTEMPT, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter, journal_name
from trimtab.values import Event, MicroBatch, StepRow


def _write(folder: RunFolder, *items: MicroBatch | StepRow | Event, rank: int = 0) -> Path:
    """One block an item, behind an attempt header."""
    writer = JournalWriter(folder.path / journal_name(rank), attempt=folder.attempt, rank=rank)
    writer.append(Block(KIND_ATTEMPT, 1, 0, 0, [dump_header(folder.header)]))
    for item in items:
        if isinstance(item, MicroBatch):
            blocks = records.row_blocks([item])[0]
        else:
            blocks = records.step_blocks([item])[0] if isinstance(item, StepRow) else records.event_blocks([item])[0]
        for block in blocks:
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
