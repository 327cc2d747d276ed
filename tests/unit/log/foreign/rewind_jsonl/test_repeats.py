"""Micro-batches that stand in a file twice."""

import numpy as np
import pytest

import trimtab.log.foreign.line_blocks as module
from trimtab.log.columns import RowColumns
from trimtab.log.foreign.rewind_jsonl import open_source


def read(path):
    log = open_source(path)
    return RowColumns.concat(log.row_blocks()), log.notices()


def attempts(rows):
    return list(dict.fromkeys(zip(rows.attempt.tolist(), rows.step.tolist(), strict=True)))


@pytest.mark.parametrize("block_bytes", [100, 300, 4 << 20])
def test_a_line_that_stands_twice_in_a_step_counts_once_and_is_said(write, batch, monkeypatch, block_bytes):
    # given: one line again at once, and a step written twice, as by a buffer that was flushed twice
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    step_3 = [batch(3), batch(3, micro=1)]
    rows, notices = read(write(batch(1), batch(2), batch(2), *step_3, *step_3, batch(4)))
    assert rows.step.tolist() == [1, 2, 3, 3, 4]
    assert notices == ["3 lines identical to another of the same step were left out (lines 4, 7, 8)"]


def test_lines_of_one_micro_batch_that_differ_are_of_several_ranks(write, batch):
    rows, notices = read(write(batch(1, [1]), batch(1, [2]), batch(2, [1]), batch(2, [1], [5.0])))
    assert rows.row.tolist() == [1, 2, 1, 1]
    # then: the file does not say which rank, so that what each of them had is not kept apart
    (notice,) = notices
    assert notice.startswith("2 lines are of a micro-batch that a line before them is of too")


@pytest.mark.parametrize("block_bytes", [100, 300, 4 << 20])
def test_a_line_that_stands_twice_counts_once_though_a_line_of_another_step_stands_between(
    write, batch, monkeypatch, block_bytes
):
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    run = [batch(step) for step in range(1, 31)]
    rows, notices = read(write(*run, batch(5), batch(30), batch(30), batch(31)))
    assert np.sum(rows.step == 30) == 1
    assert attempts(rows)[-3:] == [(1, 30), (2, 5), (1, 31)]
    assert "2 lines identical to another of the same step were left out (lines 33, 34)" in notices


def test_steps_in_another_order_do_not_hide_a_line_that_stands_twice(write, batch):
    rows, notices = read(write(batch(1), batch(3), batch(2), batch(3), batch(3, micro=1), batch(3, micro=1)))
    assert (rows.step.tolist(), rows.micro.tolist()) == ([1, 3, 2, 3], [0, 0, 0, 1])
    assert notices == ["2 lines identical to another of the same step were left out (lines 5, 7)"]


@pytest.mark.parametrize("block_bytes", [100, 4 << 20])
def test_a_resume_that_computes_the_same_up_to_the_newest_step_is_no_repeat(write, batch, monkeypatch, block_bytes):
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    rows, notices = read(write(*(batch(step) for step in (1, 2, 3, 4, 5, 3, 4, 5))))
    assert attempts(rows) == [(1, 1), (1, 2), (1, 3), (1, 4), (1, 5), (2, 3), (2, 4), (2, 5)]
    assert not any("identical" in notice for notice in notices)


@pytest.mark.parametrize("block_bytes", [100, 4 << 20])
def test_a_step_done_again_after_a_header_is_no_repeat(write, header, batch, monkeypatch, block_bytes):
    # given: a resume that computes the same
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    rows, notices = read(write(batch(1), batch(2), header, batch(2), batch(3)))
    assert attempts(rows) == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert not any("identical" in notice for notice in notices)


def test_the_same_rows_and_losses_in_another_step_are_no_repeat(write, batch):
    rows, notices = read(write(batch(1), batch(2), batch(1), batch(2)))
    assert (rows.attempt.tolist(), rows.step.tolist()) == ([1, 1, 2, 2], [1, 2, 1, 2])
    assert not any("identical" in notice for notice in notices)
