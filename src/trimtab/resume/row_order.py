"""Whether the rows of the first steps after a resume are the ones that were due.

Enters: the rows that a rank trained on before the checkpoint, in order; those that an earlier attempt recorded after
it; and the first ones after the resume. Leaves: a `Break`, or none. What was due is known where an earlier attempt went
past the checkpoint. Else only rows that come again can be told, and data that is the same in each epoch says so itself:
before such a place it repeats what came before the checkpoint. Pure, on arrays of integers.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from trimtab.resume.around import Around, Judged, Rows, RowsAround, Seen
from trimtab.resume.breaks import Break, Severity

MIN_FOUND: Final = 4
"""Rows in a row by which a place is known again, or all there are: two rows follow each other twice by chance."""

MIN_AT_END: Final = 2
"""As many are enough at the very end of what is recorded: a last step of two rows that comes again."""

MAX_PLACES: Final = 10_000
"""Places of the first resumed row that are looked at, the nearest first: one row may be all of the data."""

_WHOLE: Final = 0.9
"""Part of the dataset that an epoch holds at least, though its last rows may be dropped."""

_MIN_AGAIN: Final = 0.1
"""Part of the rows looked at that must have been seen in their epoch: drawing with replacement gives some."""

_MAX_CHANCE: Final = 1e-3
"""Chance of an order that was drawn anew to begin with as many new rows, below which the order is the run's own."""


def judge(around: Around, seen: Seen) -> Judged | None:
    """Judges the rows of one rank's first steps."""
    rows = around.rows
    if rows.is_empty:
        return Judged("rows", left_out=around.no_rows_because)
    if not seen.rows.size:
        return Judged("rows", left_out="those of the resumed steps are not recorded")
    breaks = judge_rows(rows, seen.rows, step=around.step)
    remark = None
    if not rows.to_checkpoint and rows.before.size and rows.before_steps[-1] < around.step - 1:
        remark = f"of the steps before the checkpoint the log holds those up to {rows.before_steps[-1]}"
    return Judged("rows", breaks, remark=remark)


def epoch_begins(before: Rows, *, num_ranks: int) -> tuple[int, ...]:
    """Where epochs begin in rows that begin with the run: where a row comes for the second time in one.

    Among several ranks an epoch deals the rows anew, and on one rank few of them come again: there none but the first
    beginning is known.
    """
    if num_ranks > 1:
        return (0,)
    begins, seen = [0], set[int]()
    for place, row in enumerate(before.tolist()):
        if row in seen:
            begins.append(place)
            seen.clear()
        seen.add(row)
    return tuple(begins)


def same_as_recorded(around: RowsAround, resumed: Rows) -> bool:
    """Whether the resumed rows are those that an earlier attempt recorded, as far as both go."""
    size = min(around.after.size, resumed.size)
    return size > 0 and bool(np.array_equal(around.after[:size], resumed[:size]))


def begins_epoch(around: RowsAround) -> bool:
    """Whether the checkpoint is known to be at the end of an epoch: of one rank, all of whose rows are known."""
    return around.num_ranks == 1 and around.num_rows is not None and _is_at_epoch_end(around)


def judge_rows(around: RowsAround, resumed: Rows, *, step: int) -> list[Break]:
    """Compares the first resumed rows with those that were due.

    Args:
        around: What the rank recorded around the checkpoint.
        resumed: (N,) int64 rows of the first steps after it, in order.
        step: The first of these steps.
    """
    if not resumed.size or around.is_empty or same_as_recorded(around, resumed):
        return []
    is_due_known = around.after.size > 0
    places = _places(around, resumed)
    if not is_due_known and any(_continues_a_period(around, int(place)) for place in places):
        return []
    if places.size:
        return [_at_place(around, int(places[0]), step=step, is_due_known=is_due_known)]
    num_again = _num_seen_in_epoch(around, resumed)
    if num_again >= max(2, _MIN_AGAIN * resumed.size):
        skipped = _skipped_in_epoch(around, resumed, step=step)
        if skipped is not None:
            return [skipped]
        text = (
            f"{num_again} of the first {resumed.size} resumed rows were trained on in this epoch already: the loader's "
            "order is not the one that the run had; restore its generator, or its sampler's epoch"
        )
        return [Break(kind="rows_repeated", severity="warning", step=step, text=text, num_rows=num_again)]
    if is_due_known:
        size = min(around.after.size, resumed.size)
        at = int(np.argmax(around.after[:size] != resumed[:size]))
        text = (
            f"other rows than an earlier attempt had from step {step} on: row {resumed[at]} in place {at + 1}, and "
            f"{around.after[at]} before: the loader's order is not the one that the run had"
        )
        return [Break(kind="rows_differ", severity="warning", step=step, text=text)]
    return []


def _places(around: RowsAround, resumed: Rows) -> Rows:
    """Where the resumed rows stand among the recorded ones, nearest to the checkpoint first; but not where due."""
    recorded = np.concatenate([around.before, around.after])
    due = around.before.size
    wanted = min(resumed.size, MIN_FOUND)
    at_end = min(resumed.size, MIN_AT_END)
    found = np.flatnonzero(recorded == resumed[0])
    found = found[np.argsort(np.abs(found - due), kind="stable")][:MAX_PLACES]
    return np.array(
        [
            place
            for place in found.tolist()
            if place != due
            and (size := min(resumed.size, recorded.size - place)) >= (at_end if place + wanted > due else wanted)
            and np.array_equal(recorded[place : place + size], resumed[:size])
        ],
        np.int64,
    )


def _continues_a_period(around: RowsAround, place: int) -> bool:
    """Whether what stands before a place is what stands before the checkpoint: data that is the same in each epoch."""
    due, size = around.before.size, min(place, around.before.size - place)
    return size > 0 and bool(np.array_equal(around.before[place - size : place], around.before[due - size :]))


def _at_place(around: RowsAround, place: int, *, step: int, is_due_known: bool) -> Break:
    due = around.before.size
    if place > due:
        num_rows = place - due
        text = f"{_rows(num_rows)} skipped: step {step} begins with row {around.after[num_rows]}, "
        text += f"which an earlier attempt had in step {around.after_steps[num_rows]}"
        return Break(kind="rows_skipped", severity="warning", step=step, text=text, num_rows=num_rows)
    num_rows = due - place
    least = "" if around.to_checkpoint else "at least "
    what = f"{least}{_rows(num_rows)} trained on again: step {step} begins with row {around.before[place]}, as did"
    epoch = _epoch_begun_at(around, place)
    if epoch is None:
        text = f"{what} step {around.before_steps[place]}"
        return Break(kind="rows_repeated", severity="warning", step=step, text=text, num_rows=num_rows)
    # A fresh epoch of data that is not shuffled begins just so, and one epoch is too few to tell.
    may_be_due = not is_due_known and epoch == 0 and (around.num_rows is None or _is_at_epoch_end(around))
    text = f"data order replayed: the rows of step {step} on are those of epoch {epoch}"
    if may_be_due:
        text += "; right where an epoch ended at the checkpoint and the data is not shuffled"
    severity: Severity = "notice" if may_be_due else "warning"
    return Break(kind="rows_replayed", severity=severity, step=step, text=text, num_rows=num_rows)


def _epoch_begun_at(around: RowsAround, place: int) -> int | None:
    """The 0-based epoch that begins at a place; None where none does, or nobody knows."""
    if not around.from_start:
        return None
    if place == 0:
        return 0
    return next((number for number, begin in enumerate(around.epochs) if begin == place), None)


def _is_at_epoch_end(around: RowsAround) -> bool:
    if not around.from_start or not around.to_checkpoint or around.num_rows is None:
        return False
    per_epoch = max(1, around.num_rows // around.num_ranks)
    if around.num_ranks == 1:
        return around.before.size - around.epochs[-1] >= per_epoch
    # Ranks round their shares up or down, each epoch anew.
    over = around.before.size % per_epoch
    return min(over, per_epoch - over) <= (1 - _WHOLE) / 2 * per_epoch


def _num_seen_in_epoch(around: RowsAround, resumed: Rows) -> int:
    """How many of the resumed rows that belong to the checkpoint's epoch were trained on in it already.

    0 where epochs are not known: among several ranks, of data of unknown size, or where rows are drawn with
    replacement, so that one comes again long before all have come.
    """
    if around.num_ranks > 1 or around.num_rows is None or not around.from_start:
        return 0
    lengths = np.diff(around.epochs)
    if lengths.size and lengths.min() < _WHOLE * around.num_rows:
        return 0
    seen = around.before[around.epochs[-1] :]
    # The rows of a last step that would not be full may be dropped, and the next epoch begins that much earlier.
    step_size = int(np.count_nonzero(around.before_steps == around.before_steps[-1]))
    left = max(0, around.num_rows - seen.size - (step_size - 1))
    return int(np.isin(resumed[:left], seen).sum())


def _skipped_in_epoch(around: RowsAround, resumed: Rows, *, step: int) -> Break | None:
    """The rows that an epoch lacks whose end comes too early; None where its order may be another one altogether.

    Such resumed rows begin with new ones, and rows come again only from the next epoch on; of an order that was drawn
    anew some would from the beginning.
    """
    assert around.num_rows is not None, "rows that come again in an epoch are counted where all of them are known"
    seen = around.before[around.epochs[-1] :]
    is_again = np.isin(resumed, seen)
    is_again[np.setdiff1d(np.arange(resumed.size), np.unique(resumed, return_index=True)[1])] = True
    num_new = int(np.argmax(is_again))
    unseen = around.num_rows - seen.size
    places = np.arange(min(num_new, unseen))
    if np.prod((unseen - places) / (around.num_rows - places)) > _MAX_CHANCE:
        return None
    # Epochs end with a step, one that is not full or the full one before it.
    step_size = int(np.count_nonzero(around.before_steps == around.before_steps[-1]))
    lengths = np.diff(around.epochs)
    per_epoch = int(lengths.max()) if lengths.size else around.num_rows
    left = (per_epoch // step_size) * step_size - seen.size
    num_new -= num_new % step_size
    if not 0 < num_new < left:
        return None
    text = (
        f"{_rows(left - num_new)} skipped: {left} of the epoch were left at step {step}, and the next one begins after "
        f"{num_new}"
    )
    return Break(kind="rows_skipped", severity="warning", step=step, text=text, num_rows=left - num_new)


def _rows(number: int) -> str:
    return "1 row is" if number == 1 else f"{number} rows are"
