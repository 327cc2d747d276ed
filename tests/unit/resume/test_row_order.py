"""Whether the rows after a resume are those that were due."""

import numpy as np
import pytest

from trimtab.resume.around import RowsAround
from trimtab.resume.row_order import begins_epoch, epoch_begins, judge_rows

PER_STEP = 4


def orders(num_rows: int, num_epochs: int, *, shuffled: bool = True) -> np.ndarray:
    source = np.random.default_rng(7)
    epochs = [source.permutation(num_rows) if shuffled else np.arange(num_rows) for _ in range(num_epochs)]
    return np.concatenate(epochs).astype(np.int64)


def around(order, saved: int, *, died: int | None = None, num_rows: int | None = 40, **more) -> RowsAround:
    """A run of `PER_STEP` rows a step that saved after `saved` rows and died after `died`."""
    before, after = order[:saved], order[saved : died or saved]
    step = np.arange(order.size) // PER_STEP + 1
    settings = dict(
        before_steps=step[:saved],
        after_steps=step[saved : died or saved],
        from_start=True,
        to_checkpoint=True,
        num_rows=num_rows,
        epochs=epoch_begins(before, num_ranks=1),
    )
    return RowsAround(before=before, after=after, **(settings | more))


def judged(known: RowsAround, rows, *, step: int = 99):
    found = judge_rows(known, np.asarray(rows, np.int64)[: 8 * PER_STEP], step=step)
    assert len(found) <= 1
    return found[0] if found else None


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("num_rows", [40, None])
@pytest.mark.parametrize("went_on", [0, 4, 60])
def test_a_run_that_goes_on_is_never_called_broken_wherever_it_was_saved(
    shuffled: bool, num_rows: int | None, went_on: int
) -> None:
    order = orders(40, 6, shuffled=shuffled)
    for saved in range(PER_STEP, 160, PER_STEP):
        found = judged(around(order, saved, died=saved + went_on, num_rows=num_rows), order[saved:])
        # One epoch that came in ascending order may be all there is, or the beginning of more.
        is_open = not shuffled and not went_on and saved == 40
        assert (found.severity if found else None) == ("notice" if is_open else None), (saved, found)


@pytest.mark.parametrize("went_on", [0, 24])
def test_an_epoch_that_is_replayed_is_named(went_on: int) -> None:
    order = np.array([12, 16, 5, 2, 11, 9, 3, 13, 10, 14, 13, 18, 0, 15, 11, 16, 2, 12, 14, 5, *range(20, 50)])
    found = judged(around(order, 20, died=20 + went_on), order)
    assert (found.kind, found.severity, found.num_rows) == ("rows_replayed", "warning", 20)
    assert found.text == "data order replayed: the rows of step 99 on are those of epoch 0"


def test_a_later_epoch_that_is_replayed_is_named_too() -> None:
    order = orders(40, 4)
    found = judged(around(order, 100, died=112), order[40:])
    assert found.text == "data order replayed: the rows of step 99 on are those of epoch 1"


def test_a_loader_from_the_start_is_told_in_the_first_epoch() -> None:
    order = orders(40, 2)
    found = judged(around(order, 24), order)
    assert (found.kind, found.severity, found.num_rows) == ("rows_replayed", "warning", 24)


@pytest.mark.parametrize(("by", "went_on"), [(2, 0), (4, 0), (12, 0), (1, 60), (4, 60), (12, 60)])
def test_rows_trained_on_again_are_counted(by: int, went_on: int) -> None:
    order = orders(40, 4)
    found = judged(around(order, 60, died=60 + went_on), order[60 - by :])
    assert (found.kind, found.severity, found.num_rows) == ("rows_repeated", "warning", by)
    assert f"{by} row" in found.text
    assert f"begins with row {order[60 - by]}, as did step {(60 - by) // PER_STEP + 1}" in found.text


@pytest.mark.parametrize("by", [1, 4, 12])
def test_rows_skipped_are_counted_where_an_earlier_attempt_had_them(by: int) -> None:
    order = orders(40, 4)
    found = judged(around(order, 60, died=100), order[60 + by :])
    assert (found.kind, found.severity, found.num_rows) == ("rows_skipped", "warning", by)
    assert f"begins with row {order[60 + by]}, which an earlier attempt had in step {(60 + by) // PER_STEP + 1}" in (
        found.text
    )


@pytest.mark.parametrize("dropped", [True, False], ids=["the last rows are dropped", "they are a short step"])
def test_rows_skipped_near_the_end_of_an_epoch_are_counted_by_where_the_next_one_begins(dropped: bool) -> None:
    # given 213 rows in steps of 4, in the first and in the third epoch
    source = np.random.default_rng(3)
    size = 212 if dropped else 213
    order = np.concatenate([source.permutation(213)[:size] for _ in range(4)])
    step = np.concatenate([np.arange(size) // PER_STEP + 54 * epoch for epoch in range(4)])
    for epoch in (0, 2):
        for by in (4, 8, 12, 20):
            for saved in range(size * epoch + 176, size * epoch + 190, PER_STEP):
                left = size // PER_STEP * PER_STEP - (saved - size * epoch)
                found = judged(around(order, saved, num_rows=213, before_steps=step[:saved]), order[saved + by :])
                if found is None:  # too few rows of the next epoch are seen
                    assert left - by > 24 or by == 4
                elif left > by + 4:
                    assert (found.kind, found.num_rows) == ("rows_skipped", by), (saved, by, found)
                    assert found.text.startswith(f"{by} rows are skipped: {left} of the epoch were left at step 99")


def test_rows_whose_end_was_lost_are_counted_at_least() -> None:
    order = orders(40, 4)
    found = judged(around(order, 60, to_checkpoint=False), order[48:])
    assert "at least 12 rows are trained on again" in found.text


def test_an_order_that_was_drawn_anew_is_told_by_the_rows_that_come_again_in_their_epoch() -> None:
    order, other = orders(40, 1), np.random.default_rng(8).permutation(40)
    found = judged(around(order, 24), other)
    due = other[: 40 - 24 - (PER_STEP - 1)]  # the rows of a step that would not be full may be dropped
    assert (found.kind, found.num_rows) == ("rows_repeated", int(np.isin(due, order[:24]).sum()))


def test_an_order_that_was_drawn_anew_is_told_by_the_rows_that_an_earlier_attempt_had() -> None:
    order = np.arange(1000)
    found = judged(around(order, 24, died=60, num_rows=None), np.random.default_rng(8).permutation(1000) + 5000)
    assert (found.kind, found.severity) == ("rows_differ", "warning")
    assert "and 24 before" in found.text


def test_an_epoch_whose_last_rows_are_dropped_ends_when_it_ends() -> None:
    # given epochs of 40 rows in batches of 13, of which one row is never trained on
    source = np.random.default_rng(11)
    order = np.concatenate([source.permutation(40)[:39] for _ in range(6)])
    for num_epochs in (1, 2, 3):
        for saved in range(39 * (num_epochs - 1) + 13, 39 * num_epochs + 1, 13):
            known = around(order, saved, before_steps=np.arange(saved) // 13)
            assert judge_rows(known, order[saved : saved + 104], step=9) == []


def test_rows_drawn_with_replacement_are_none_that_come_again() -> None:
    source = np.random.default_rng(3)
    order = source.integers(0, 40, 400)
    for saved in range(40, 300, 20):
        assert judged(around(order, saved), source.integers(0, 40, 40)) is None


def test_a_row_that_is_all_of_the_data_tells_nothing() -> None:
    order = np.zeros(4000, np.int64)
    for died in (2000, 2040):
        assert judged(around(order, 2000, died=died, num_rows=1), order) is None


def test_among_several_ranks_only_what_is_known_is_told() -> None:
    source = np.random.default_rng(5)
    epochs = [source.permutation(80)[:40] for _ in range(4)]
    order = np.concatenate(epochs)
    shared = dict(num_rows=80, num_ranks=2, epochs=epoch_begins(order[:60], num_ranks=2))
    assert judged(around(order, 60, **shared), order[60:]) is None
    assert judged(around(order, 60, **shared), source.permutation(80)) is None
    assert judged(around(order, 60, **shared), order).text.endswith("those of epoch 0")
    assert judged(around(order, 60, died=100, **shared), order[72:]).num_rows == 12


def test_the_end_of_an_epoch_is_known_where_all_rows_are() -> None:
    order = orders(40, 3)
    assert begins_epoch(around(order, 80)) is True
    assert begins_epoch(around(order, 76)) is False
    assert begins_epoch(around(order, 80, num_rows=None)) is False
    assert begins_epoch(around(order, 80, from_start=False)) is False


def test_nothing_is_told_of_nothing() -> None:
    order = orders(40, 1)
    assert judge_rows(RowsAround(), order, step=1) == []
    assert judge_rows(around(order, 24), order[:0], step=1) == []
