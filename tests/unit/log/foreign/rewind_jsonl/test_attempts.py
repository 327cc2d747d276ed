"""Where a run was resumed in a file that does not say so, and where lines only stand in it again."""

import trimtab.log.foreign.line_blocks as module
from trimtab.log.columns import RowColumns
from trimtab.log.foreign.rewind_jsonl import open_source


def read(path):
    log = open_source(path)
    return RowColumns.concat(log.row_blocks()), log.notices()


def attempts(rows):
    return list(dict.fromkeys(zip(rows.attempt.tolist(), rows.step.tolist(), strict=True)))


def test_a_header_further_down_begins_the_next_attempt(write, header, batch):
    rows, notices = read(write(batch(1), batch(2), header, batch(2), batch(3)))
    assert attempts(rows) == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert any("2 attempts" in notice for notice in notices)


def test_two_headers_before_any_micro_batch_are_one_attempt(write, header, batch):
    rows, notices = read(write(header, batch(1)))
    assert (attempts(rows), notices) == ([(1, 1)], [])


def test_going_back_to_a_micro_batch_that_was_done_begins_the_next_attempt(write, batch):
    rows, _ = read(write(*(batch(step) for step in (1, 2, 3, 2, 3, 4, 1))))
    assert attempts(rows) == [(1, 1), (1, 2), (1, 3), (2, 2), (2, 3), (2, 4), (2, 1)]


def test_lines_in_another_order_are_one_attempt(write, batch):
    rows, notices = read(write(*(batch(step, micro=micro) for step, micro in ((2, 0), (1, 0), (2, 1), (1, 1), (3, 0)))))
    assert (set(rows.attempt.tolist()), notices) == ({1}, [])


def test_attempts_hold_across_blocks(write, header, batch, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 500)
    steps = [*range(1, 41), *range(30, 51)]
    rows, _ = read(write(*(batch(step) for step in steps)))
    assert attempts(rows) == [(1, step) for step in range(1, 41)] + [(2, step) for step in range(30, 51)]


def test_a_stray_line_of_an_old_step_in_the_middle_does_not_become_the_run(write, batch):
    # given: steps 5 and 6 stand again after step 20, and the run goes on
    rows, _ = read(write(*(batch(step) for step in [*range(1, 21), 5, 6, *range(21, 26)])))
    expected = [(1, step) for step in range(1, 21)] + [(2, 5), (2, 6)] + [(1, step) for step in range(21, 26)]
    assert attempts(rows) == expected


def test_a_stray_line_between_the_micro_batches_of_a_step_does_not_either(write, batch):
    rows, _ = read(write(*(batch(step) for step in (1, 2, 3)), batch(1), batch(3, micro=1), batch(4)))
    assert attempts(rows) == [(1, 1), (1, 2), (1, 3), (2, 1), (1, 4)]
    assert rows.attempt.tolist() == [1, 1, 1, 2, 1, 1]


def test_strays_after_a_stray_lead_back_all_the_way(write, batch):
    rows, _ = read(write(*(batch(step) for step in [*range(1, 21), 5, 6, 5, 21, 22])))
    assert rows.attempt.tolist() == [1] * 20 + [2, 2, 3, 1, 1]


def test_a_resumed_run_stays_one_once_it_has_caught_up(write, batch):
    # given: resumed at 15 of 20, and at 24 of 26; micro-batches of one step part none of it
    steps = [*range(1, 21), *range(15, 27), *range(24, 30)]
    rows, notices = read(write(*(batch(step, micro=micro) for step in steps for micro in (0, 1))))
    assert rows.attempt.tolist() == [1] * 40 + [2] * 24 + [3] * 12
    assert any("3 attempts" in notice for notice in notices)


def test_a_run_that_logs_every_tenth_step_is_resumed_like_any_other(write, batch):
    rows, _ = read(write(*(batch(step) for step in (10, 20, 30, 40, 30, 40, 50))))
    assert rows.attempt.tolist() == [1, 1, 1, 1, 2, 2, 2]


def test_a_header_ends_every_attempt_before_it(write, header, batch):
    rows, _ = read(write(*(batch(step) for step in (1, 2, 3, 1)), header, batch(4)))
    assert rows.attempt.tolist() == [1, 1, 1, 2, 3]


def test_strays_are_told_apart_across_blocks_too(write, batch, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_BYTES", 300)
    rows, _ = read(write(*(batch(step) for step in [*range(-20, 21), -5, -4, *range(21, 40)])))
    assert rows.attempt.tolist() == [1] * 41 + [2, 2] + [1] * 19


def test_a_run_whose_steps_pass_by_the_last_one_is_an_attempt_all_the_same(write, batch):
    # given: the first stopped off its pace, and was logged there
    rows, _ = read(write(*(batch(step) for step in (10, 20, 25, 10, 20, 30, 40))))
    assert rows.attempt.tolist() == [1, 1, 1, 2, 2, 2, 2]
    rows, _ = read(write(*(batch(step) for step in [*range(5, 1006, 5), *range(510, 2001, 10)])))
    assert rows.attempt.tolist() == [1] * 201 + [2] * 150
