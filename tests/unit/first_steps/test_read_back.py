"""What is read back from a log around a checkpoint: of which attempt, how far, and what is said of what is not."""

import logging

import numpy as np
import pytest

from trimtab.first_steps import read_back
from trimtab.first_steps.read_back import read_log
from trimtab.resume.around import Around
from trimtab.resume.before import Before
from trimtab.run import RunCore
from trimtab.values import RunHeader

HEADER = RunHeader(run_id=None, backend="torch", num_rows=1000)


def train(out, rows_of_steps, *, state=None):
    """Trains steps of two micro-batches each, from a state or from the start; gives the folder and all states."""
    core = RunCore(HEADER, out=out)
    if state is not None:
        core.load_state_dict(state)
    states = {}
    for rows in rows_of_steps:
        for half in np.array_split(np.array(rows), 2):
            core.record_micro_batch(half, np.ones(half.size, np.float32), np.ones(half.size, np.int32))
        core.end_step(loss=float(rows[0]), num_tokens=len(rows), lr=0.5)
        states[core.step] = core.state_dict()
    core.close()
    return core.folder, states


def read(folder, state, *, rank=0, num_ranks=1):
    around = Around(step=state["step"], before=Before.from_dict(state["before"]), rank=rank)
    return read_log(folder, around, num_rows=1000, num_ranks=num_ranks)


def test_the_rows_and_steps_of_the_attempt_that_saved_are_read(tmp_path) -> None:
    # given an attempt of seven steps, and one that went on after the third, in another order
    folder, states = train(tmp_path, [range(4 * step, 4 * step + 4) for step in range(7)])
    _, others = train(tmp_path, [range(900, 904)] * 2, state=states[4])
    # when
    found, other = read(folder, states[6]), read(folder, others[6])
    # then
    assert found.rows.before.tolist() == list(range(20))
    assert found.rows.before_steps.tolist() == [step for step in range(1, 6) for _ in range(4)]
    assert found.rows.after.tolist() == list(range(20, 28))
    assert [(seen.step, seen.loss, seen.lr) for seen in found.recorded] == [(6, 20.0, 0.5), (7, 24.0, 0.5)]
    assert (found.rows.from_start, found.rows.to_checkpoint, found.rows.num_rows) == (True, True, 1000)
    assert other.rows.before.tolist() == [*range(12), *[900, 901, 902, 903] * 2]
    assert other.rows.after.size == len(other.recorded) == 0


def test_of_a_long_run_the_rows_nearest_to_the_checkpoint_are_held(tmp_path, monkeypatch) -> None:
    folder, states = train(tmp_path, [[step, step + 500] for step in range(300)])
    monkeypatch.setattr(read_back, "MAX_ROWS", 50)
    found = read(folder, states[290])
    assert found.rows.before_steps.tolist() == [step for step in range(265, 290) for _ in range(2)]
    assert found.rows.after_steps.tolist() == [step for step in range(290, 301) for _ in range(2)]
    assert found.rows.from_start is False


def test_a_log_that_is_too_large_is_not_read_and_that_is_said(tmp_path, monkeypatch, caplog) -> None:
    folder, states = train(tmp_path, [[1, 2]] * 3)
    monkeypatch.setattr(read_back, "MAX_LOG_BYTES", 10)
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        found = read(folder, states[3])
    assert found.rows.is_empty
    assert "more than is read before training" in caplog.text


def test_a_state_that_was_saved_without_a_log_reads_none(tmp_path) -> None:
    folder, states = train(tmp_path, [[1, 2]] * 3)
    states[3]["before"]["attempt"] = None
    assert read(folder, states[3]).rows.is_empty


def test_what_a_killed_run_did_not_write_is_not_taken_for_there(tmp_path) -> None:
    folder, states = train(tmp_path, [[1, 2]] * 3)
    states[4]["step"] = 6
    found = read(folder, states[4])
    assert found.rows.to_checkpoint is False


@pytest.mark.parametrize("settings", [dict(rank=1), dict(num_ranks=2)], ids=repr)
def test_another_rank_or_another_number_of_them_has_no_rows_here(tmp_path, settings) -> None:
    folder, states = train(tmp_path, [[1, 2]] * 3)
    if settings == dict(rank=1):
        assert read(folder, states[3], **settings).rows.before.size == 0
    else:
        assert read(folder, states[3], **settings).rows.is_empty
