"""A small journal with every kind of block, as the writer makes it."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trimtab.log import records
from trimtab.log.folder import RunFolder, create_run
from trimtab.log.frames import KIND_ATTEMPT, Block
from trimtab.log.header import dump_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name
from trimtab.values import Event, MicroBatch, RunHeader, StepRow

HEADER = RunHeader(run_id="a", backend="torch", created=1.7e9, trimtab_version="0.1.0")


def micro_batch(step: int) -> MicroBatch:
    """Rows, losses and tokens that name their step, so that a wrong record is known as one."""
    rows = np.array([step * 1000 + place for place in range(3)])
    return MicroBatch(step, 0, rows, rows.astype(np.float32) / 8, rows % 97 + 1, reason=7)


def step_row(step: int) -> StepRow:
    return StepRow(step, step / 8, step / 4, step / 16, wall_s=step / 2, num_tokens=step * 3)


@pytest.fixture
def run_folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, HEADER)


@pytest.fixture
def write_journal() -> Callable[..., Path]:
    """Appends blocks of two steps each to the folder's journal: rows, steps and an event."""

    def write(folder: RunFolder, *, first_step: int, num_blocks: int, rank: int = 0) -> Path:
        path = folder.path / journal_name(rank)
        writer = JournalWriter(path, attempt=folder.attempt, rank=rank)
        writer.append(Block(KIND_ATTEMPT, 1, 0, 0, [dump_header(folder.header)]))
        for step in range(first_step, first_step + 2 * num_blocks, 2):
            blocks = [
                *records.row_blocks([micro_batch(step), micro_batch(step + 1)])[0],
                *records.step_blocks([step_row(step), step_row(step + 1)])[0],
                *records.event_blocks([Event("evaluation", step, float(step), {"loss": step / 8})])[0],
            ]
            for block in blocks:
                writer.append(block)
        writer.close()
        return path

    return write


@pytest.fixture
def wrong_records() -> Callable[..., list[str]]:
    """What in a log is not as `write_journal` wrote it. An independent spelling of the same three formulas."""

    def check(log) -> list[str]:
        wrong = []
        for block in log.row_blocks():
            for step, row, loss, tokens in zip(
                block.step.tolist(), block.row.tolist(), block.loss_sum.tolist(), block.num_tokens.tolist(), strict=True
            ):
                if row // 1000 != step or loss != row / 8 or tokens != row % 97 + 1:
                    wrong.append(f"row {row} of step {step}: {loss}, {tokens}")
        steps = log.step_columns()
        for step, loss, norm, lr, wall_s in zip(
            *(column.tolist() for column in (steps.step, steps.loss, steps.grad_norm, steps.lr, steps.wall_s)),
            strict=True,
        ):
            if (loss, norm, lr, wall_s) != (step / 8, step / 4, step / 16, step / 2):
                wrong.append(f"step {step}: {loss}, {norm}, {lr}, {wall_s}")
        wrong += [f"{event}" for event in log.event_list() if event.facts != {"loss": event.step / 8}]
        return wrong

    return check
