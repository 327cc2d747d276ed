"""Whether two runs are the same to the last bit, and if not, where they part.

    find_logs -> open_log -> read_runs, digests for each -> columns of steps, columns of rows -> Differences

Enters: two logs. Leaves: `Differences`. Invariant: what was trained twice counts once, as the later attempt has it, as
in `rewind`; wall times, attempts and who recorded are no part of a run. A column that one of the logs knows nothing of
is said, and is no difference.

Shapes: N records of steps, one a step and rank; K of them in both runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.attempts import read_runs
from trimtab.analysis.comparison import LogName, NamedLog
from trimtab.analysis.difference import ROW_PREFIX, Cell, Difference, Differences, Lack
from trimtab.analysis.lookup import find_logs
from trimtab.analysis.previews import HOW_TO_PART
from trimtab.analysis.remarks import why_no_step
from trimtab.analysis.row_digests import RowDigests, bits_of, digests, placed, verdict_codes, verdict_in_words
from trimtab.analysis.rows import records_of
from trimtab.analysis.series import StepSeries
from trimtab.errors import LogError
from trimtab.log.columns import RowColumns, StepColumns
from trimtab.log.reader import Log, open_log
from trimtab.log.steps import UNKNOWN_REASON
from trimtab.values import STEP_REASONS

_OWN_FORMATS: Final = ("run", "journal")
"""Logs in which a count of 0 was counted; in others it may be that nobody did."""


class _Side(NamedTuple):
    """One of the two runs.

    Attributes:
        name: How it is called in a notice.
        log: Its log.
        series: The steps that count, and the attempt of each.
        records: (N,) their step records, by step and rank.
        rows: What its rows come to, step by step; None for a log without any.
        notices: What is to be said of reading it.
    """

    name: str
    log: Log
    series: StepSeries
    records: StepColumns
    rows: RowDigests | None
    notices: list[str]


class _Column(NamedTuple):
    """One column of step records (K), as it is shown and as it is compared, and where anything is known of it."""

    shown: NDArray[Any]
    bits: NDArray[np.integer | np.bool_]
    known: NDArray[np.bool_]


def compare_bits(a: LogName, b: LogName, *, progress: Callable[[int, int], None] | None = None) -> Differences:
    """Compares two runs bit by bit, and names the first step and column at which they part.

    Of each step: which ranks trained, loss, tokens, gradient norm, learning rate, what became of it and what was
    skipped; then, of each row in the order trained: rank, micro-batch, row, loss, tokens and the guard's verdict. NaN
    equals NaN.

    Args:
        a: A run, as for `rewind`.
        b: The run that it is compared with.
        progress: Called now and then with the bytes read so far and all there are to read.

    Returns:
        The first difference, and for every column the first step at which it differs.

    Raises:
        LogError: One of them cannot be read, holds no training step or several runs, or they have no column in common.
        UsageError: A name is none.

    Example:
        found = compare_bits("runs/uninterrupted", "runs/resumed")
        print(found.same, found.first)
    """
    return compare_logs_bits(open_named(a), open_named(b), progress=progress)


def open_named(name: LogName) -> NamedLog:
    """Opens the log behind a name, the newest where it stands for several. Raises as `compare_bits` does."""
    place, notices = find_logs(name).newest()
    return NamedLog(open_log(place), notices)


def compare_logs_bits(a: NamedLog, b: NamedLog, *, progress: Callable[[int, int], None] | None = None) -> Differences:
    """`compare_bits` for logs that are open already."""
    total, done = 2 * (a.log.size_bytes + b.log.size_bytes), 0
    sides = []
    for letter, named in zip("ab", (a, b), strict=True):
        sides.append(_read(named, letter=letter, progress=_after(progress, done=done, total=total)))
        done += 2 * named.log.size_bytes
    return _compare(sides[0], sides[1])


def _after(progress: Callable[[int, int], None] | None, *, done: int, total: int) -> Callable[[int], None] | None:
    return None if progress is None else lambda num_bytes: progress(done + num_bytes, total)


def _read(named: NamedLog, *, letter: str, progress: Callable[[int], None] | None) -> _Side:
    log, notices = named
    runs = read_runs(log, progress=progress)
    if len(runs) > 1:
        raise LogError(f"{log.path} holds {len(runs)} runs: {HOW_TO_PART}, then compare one of them.")
    (reading,) = runs
    if not reading.series.num_steps:
        raise LogError(f"{log.path}: {why_no_step(log.notices())}")
    series = reading.series
    records = log.step_columns()
    records = records.take(records.attempt == series.attempts_of(records.step))
    again = None if progress is None else lambda num_bytes: progress(log.size_bytes + num_bytes)
    blocks = log.row_blocks(progress=again)
    rows = digests(block.take(block.attempt == series.attempts_of(block.step)) for block in blocks)
    if reading.num_superseded:
        num, first, last = reading.num_superseded, reading.first_superseded, reading.last_superseded
        which = f"step {first} of an earlier attempt was" if num == 1 else f"{num} steps of earlier attempts were"
        where = "" if num == 1 else f", between {first} and {last}"
        notices = [*notices, f"{which} trained again{where}; the later attempt counts"]
    return _Side(
        name=letter,
        log=log,
        series=series,
        records=_last_by_rank(records),
        rows=rows if rows.step.size else None,
        notices=[*notices, *log.notices()],
    )


def _last_by_rank(records: StepColumns) -> StepColumns:
    """The last record of each step and rank, by step and rank."""
    records = records.take(np.lexsort((records.rank, records.step)))
    is_last = np.ones(records.num_records, np.bool_)
    is_last[:-1] = (records.step[1:] != records.step[:-1]) | (records.rank[1:] != records.rank[:-1])
    return records.take(is_last)


def _compare(a: _Side, b: _Side) -> Differences:
    in_a, in_b = _whole_steps(a, b), _whole_steps(b, a)
    both = np.intersect1d(in_a, in_b, assume_unique=True)
    notices = ["a and b are one log"] if a.log.path == b.log.path else []
    notices += [f"{side.name}: {notice}" for side in (a, b) for notice in side.notices]
    notices += _on_steps(a, b, both=both)
    of_steps: dict[str, Difference | None] = {"step": _missing_step(in_a, in_b)}
    of_steps |= _step_columns(a, b, both=both, notices=notices)
    of_rows = _row_columns(a, b, both=both, notices=notices)
    columns = {name: found.step if found is not None else None for name, found in of_steps.items()} | of_rows
    if both.size and not columns.keys() - {"step", "rank"}:
        raise LogError(f"{a.log.path} and {b.log.path} have nothing in common to compare: {'; '.join(notices)}.")
    # `min` keeps the first of equals, and the columns are in the order in which they are named.
    parted = min(
        ((step, name) for name, step in columns.items() if step is not None and name != "step"),
        key=lambda e: e[0],
        default=None,
    )
    missing = of_steps["step"]
    in_both = None
    if parted is not None:
        step, name = parted
        in_both = of_steps[name] if name in of_steps else _row_difference(a, b, step=step, column=name)
    first = min((found for found in (missing, in_both) if found is not None), key=lambda e: e.step, default=None)
    return Differences(
        a=a.log.path,
        b=b.log.path,
        num_steps=both.size,
        first=first,
        columns=columns,
        notices=tuple(notices),
        lacks=_lacks(in_a, in_b),
        first_in_both=in_both,
    )


def _whole_steps(side: _Side, other: _Side) -> NDArray[np.int64]:
    """The steps that a run holds: of one that writes step records, as the other does, those that have one.

    The rows of a step are written before its record, and a run that is killed may leave them alone.
    """
    steps: NDArray[np.int64] = side.series.step
    recorded, by_other = np.unique(side.records.step), np.unique(other.records.step)
    if not recorded.size:
        return steps
    return np.setdiff1d(steps, np.setdiff1d(by_other, recorded, assume_unique=True), assume_unique=True)


def _lacks(in_a: NDArray[np.int64], in_b: NDArray[np.int64]) -> tuple[Lack, ...]:
    """What each of the runs lacks of the other one."""
    found = []
    for name, own, others in (("a", in_a, in_b), ("b", in_b, in_a)):
        steps = np.setdiff1d(others, own, assume_unique=True)
        if steps.size:
            first, last = int(steps[0]), int(steps[-1])
            found.append(Lack(name, first, last, steps.size, is_end=not own.size or first > int(own[-1])))
    return tuple(found)


def _missing_step(in_a: NDArray[np.int64], in_b: NDArray[np.int64]) -> Difference | None:
    """The first step that one of the runs does not hold."""
    missing = np.setxor1d(in_a, in_b, assume_unique=True)
    if not missing.size:
        return None
    step = int(missing[0])
    is_in_a = bool(np.any(in_a == step))
    return Difference(step, "step", step if is_in_a else None, None if is_in_a else step)


def _on_steps(a: _Side, b: _Side, *, both: NDArray[np.int64]) -> list[str]:
    """What is to be said of the steps and ranks of the runs."""
    said = []
    if not both.size:
        said.append("the runs have no step in common")
    num_ranks = [np.unique(side.records.rank).size for side in (a, b)]
    if 0 not in num_ranks and num_ranks[0] != num_ranks[1]:
        said.append(f"a was trained on {num_ranks[0]} ranks, b on {num_ranks[1]}")
    return said


def _step_columns(a: _Side, b: _Side, *, both: NDArray[np.int64], notices: list[str]) -> dict[str, Difference | None]:
    """The first difference of each column of step records, of the steps that both runs hold."""
    records = [side.records.take(np.isin(side.records.step, both)) for side in (a, b)]
    if not all(found.num_records for found in records):
        notices += _on_unknown("step records", [bool(found.num_records) for found in records])
        return {}
    ranks = np.unique(np.concatenate([found.rank for found in records]))
    one_key, other_key = (
        np.searchsorted(both, found.step) * ranks.size + np.searchsorted(ranks, found.rank) for found in records
    )
    shared, *places = np.intersect1d(one_key, other_key, assume_unique=True, return_indices=True)
    differences: dict[str, Difference | None] = {"rank": _missing_rank(one_key, other_key, both=both, ranks=ranks)}
    sides = [
        _columns_of(found.take(place), is_own=side.log.format in _OWN_FORMATS)
        for found, place, side in zip(records, places, (a, b), strict=True)
    ]
    for name, one in sides[0].items():
        other = sides[1][name]
        is_known = [bool(column.known.any()) for column in (one, other)]
        if not all(is_known):
            notices += _on_unknown(name, is_known)
            continue
        differs = (one.known != other.known) | (one.known & (one.bits != other.bits))
        differences[name] = None
        if differs.any():
            index = int(np.argmax(differs))
            place, rank = divmod(int(shared[index]), ranks.size)
            cells = _cell(one, index), _cell(other, index)
            differences[name] = Difference(int(both[place]), name, *cells, rank=int(ranks[rank]))
    return differences


def _columns_of(records: StepColumns, *, is_own: bool) -> dict[str, _Column]:
    """The columns of step records, by name, in the order in which they are named."""
    has_reason = records.reason != UNKNOWN_REASON
    reasons = np.array([*STEP_REASONS, ""], object)[records.reason]
    stepped, clipped = records.reason == 0, records.clipped == 1
    skipped = {name: getattr(records, name) for name in ("num_skipped_micros", "num_skipped_tokens")}
    return {
        "loss": _real(records.loss, ~np.isnan(records.loss) | (records.num_tokens > 0)),
        "num_tokens": _Column(records.num_tokens, records.num_tokens, records.num_tokens >= 0),
        "grad_norm": _real(records.grad_norm, records.has_grad_norm),
        "lr": _real(records.lr, records.has_lr),
        "reason": _Column(reasons, records.reason, has_reason),
        "stepped": _Column(stepped, stepped, has_reason),
        "clipped": _Column(clipped, clipped, records.clipped >= 0),
        "loss_scale": _real(records.loss_scale, ~np.isnan(records.loss_scale)),
        **{name: _Column(count, count, np.full(count.size, is_own or count.any())) for name, count in skipped.items()},
    }


def _real(values: NDArray[np.float64], known: NDArray[np.bool_]) -> _Column:
    return _Column(values, bits_of(values), known)


def _cell(column: _Column, index: int) -> Cell:
    cell: Cell = column.shown[index : index + 1].tolist()[0] if column.known[index] else None
    return cell


def _missing_rank(
    one: NDArray[np.int64], other: NDArray[np.int64], *, both: NDArray[np.int64], ranks: NDArray[np.int32]
) -> Difference | None:
    """The first step and rank of which one of the runs has no record though it holds the step."""
    missing = np.setxor1d(one, other, assume_unique=True)
    if not missing.size:
        return None
    place, index = divmod(int(missing[0]), ranks.size)
    rank = int(ranks[index])
    in_one = bool(np.any(one == missing[0]))
    return Difference(int(both[place]), "rank", rank if in_one else None, None if in_one else rank, rank=rank)


def _row_columns(a: _Side, b: _Side, *, both: NDArray[np.int64], notices: list[str]) -> dict[str, int | None]:
    """The first step at which each column of row records differs, of the steps that both runs hold."""
    if a.rows is None or b.rows is None:
        notices += _on_unknown("rows", [side.rows is not None for side in (a, b)])
        return {}
    first: dict[str, int | None] = {}
    for name in RowDigests._fields[1:]:
        one, other = (_at(both, rows.step, getattr(rows, name)) for rows in (a.rows, b.rows))
        differs = np.flatnonzero(one != other)
        first[f"{ROW_PREFIX}{name}"] = int(both[differs[0]]) if differs.size else None
    return first


def _at(wanted: NDArray[np.int64], steps: NDArray[np.int64], digest: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The digest of each wanted step; 0 of one without rows."""
    found = np.zeros(wanted.size, np.uint64)
    _, place, index = np.intersect1d(wanted, steps, assume_unique=True, return_indices=True)
    found[place] = digest[index]
    return found


def _row_difference(a: _Side, b: _Side, *, step: int, column: str) -> Difference:
    """The first record of a step at which a column of rows differs: by rank, micro-batch, and place in that."""
    sides = [_by_place(records_of(side.log, series=side.series, steps=[step])) for side in (a, b)]
    # Of a rank, or a micro-batch, its first record stands for all.
    length = {"rows.rank": 1, "rows.micro": 2}.get(column, 3)
    firsts: list[dict[tuple[int, ...], _RowRecord]] = [{}, {}]
    for records, kept in zip(sides, firsts, strict=True):
        for place, record in records.items():
            kept.setdefault(place[:length], record)
    name = column.removeprefix(ROW_PREFIX)
    for place in sorted({*firsts[0], *firsts[1]}):
        found = [kept.get(place) for kept in firsts]
        one, other = (None if record is None else getattr(record, name) for record in found)
        # Spelled, NaN equals NaN, and 0.0 is not -0.0.
        if repr(one) != repr(other):
            known = next(record for record in found if record is not None)
            return Difference(step, column, one, other, rank=known.rank, micro=known.micro, row=known.row)
    return Difference(step, column, None, None)


class _RowRecord(NamedTuple):
    """A row record as plain values."""

    rank: int
    micro: int
    row: int
    loss_sum: float
    num_tokens: int
    verdict: str


def _by_place(records: RowColumns) -> dict[tuple[int, ...], _RowRecord]:
    """The records of one step by rank, micro-batch and position in that, as far as they were recorded."""
    found: dict[tuple[int, ...], _RowRecord] = {}
    for block, places in placed([records]):
        verdicts = map(verdict_in_words, verdict_codes(block).tolist())
        columns = (block.rank, block.micro, block.row, block.loss_sum, block.num_tokens)
        listed = zip(*(column.tolist() for column in columns), verdicts, places.position.tolist(), strict=True)
        for *fields, position in listed:
            record = _RowRecord(*fields)
            found[record.rank, record.micro, position] = record
    return found


def _on_unknown(what: str, is_known: list[bool]) -> list[str]:
    """That something was not compared, where one of the runs alone has it."""
    if any(is_known) == all(is_known):
        return []
    has, lacks = ("a", "b") if is_known[0] else ("b", "a")
    return [f"{what}: not compared, {lacks} has none and {has} does"]
