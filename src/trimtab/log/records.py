"""Turns what is handed to the recorder into blocks, in the writer thread.

Enters: `MicroBatch`, `StepRow`, `Event`, `RowIds` with arrays of any kind. Leaves: blocks for the journal, each of
which fits a frame, and a reason for each item that cannot be recorded. Invariant: one bad item costs that item and none
of its neighbours.

Policy: rows are int64, `num_tokens` 0 to 2**31 - 1, `loss_sums` are rounded to float32 (beyond its range: infinite). An
entry without tokens is recorded with loss 0. Nothing is clipped: an item outside these ranges is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from trimtab.errors import TrimtabError
from trimtab.log.blocks import (
    MAX_RECORDS,
    MicroColumns,
    encode_events,
    encode_rows,
    encode_steps,
    event_text,
)
from trimtab.log.columns import IdColumns, StepColumns
from trimtab.log.frames import MAX_PAYLOAD, Block
from trimtab.log.ids import MAX_NAME_BYTES, encode_ids
from trimtab.text import without_surrogates
from trimtab.values import (
    GRADIENTLESS,
    STEP_CODE,
    STEP_REASONS,
    VERDICT_REASONS,
    Event,
    MicroBatch,
    RowIds,
    StepRow,
    json_number,
)

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_MAX_FACTS_DEPTH: Final = 16

MAX_FACTS: Final = 1 << 20
"""Values that one event may hold."""

_Arrays = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
_Joined = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32], NDArray[np.int64]]


class RefusedError(Exception):
    """An item that cannot be recorded; the message says what was found."""


def row_blocks(items: Sequence[MicroBatch]) -> tuple[list[Block], list[str]]:
    """Rows blocks of the micro-batches in their order, and why some were refused."""
    return _all_but_the_bad(items, lambda some: [encode_rows(part) for part in _split(_gather(some))])


def step_blocks(items: Sequence[StepRow]) -> tuple[list[Block], list[str]]:
    """Steps blocks, and why some steps were refused."""
    return _all_but_the_bad(items, lambda some: [encode_steps(_gather_steps(some))])


def event_blocks(items: Sequence[Event]) -> tuple[list[Block], list[str]]:
    """Events blocks, as many as it takes for each to fit a frame, and why some events were refused."""
    plain, refused = _all_but_the_bad(items, lambda some: [_plain_event(event) for event in some])
    sized: list[tuple[Event, int]] = []
    for event in plain:
        size = len(event_text(event)) + 2  # in a list
        if size <= MAX_PAYLOAD:
            sized.append((event, size))
        else:
            refused.append(
                f"event {event.kind[:40]!r} of step {event.step} is {size} bytes as JSON, and a frame holds at most "
                f"{MAX_PAYLOAD}; write what it carries into a file of your own and record the file's name"
            )
    return [encode_events(group) for group in _groups(sized)], refused


def id_blocks(items: Sequence[RowIds]) -> tuple[list[Block], list[str]]:
    """Ids blocks of what is known of rows, and why some items were refused."""
    return _all_but_the_bad(items, lambda some: list(encode_ids(IdColumns.concat(map(_ids, some)))))


def spell_fault(fault: BaseException | str, *, max_length: int = 500) -> str:
    """What went wrong as one short line of printable ASCII, whatever the error holds and even if it has no words."""
    try:
        text = fault if isinstance(fault, str) else str(fault)
    except Exception:  # noqa: BLE001 - an error of somebody's own that cannot say what it is
        text = ""
    if not isinstance(fault, (str, RefusedError, TrimtabError, OSError)) or not text:
        text = f"{type(fault).__name__}: {text}" if text else type(fault).__name__
    cut = text[:max_length].encode("ascii", "backslashreplace").decode("ascii")
    line = "".join(char if " " <= char <= "~" else " " for char in cut)
    return line[:max_length] + ("..." if len(text) > max_length else "")


def _all_but_the_bad(
    items: Sequence[_Item], make: Callable[[Sequence[_Item]], list[_Made]]
) -> tuple[list[_Made], list[str]]:
    """All items at once; where that fails, one half and then the other, so that only the bad ones are left out."""
    if not items:
        return [], []
    try:
        return make(items), []
    except Exception as error:  # noqa: BLE001 - whatever a foreign array raises costs its item, never the recorder
        if len(items) == 1:
            return [], [spell_fault(error)]
    half = len(items) // 2
    made, refused = _all_but_the_bad(items[:half], make)
    more_made, more_refused = _all_but_the_bad(items[half:], make)
    return made + more_made, refused + more_refused


def _groups(sized: Sequence[tuple[Event, int]]) -> Iterator[list[Event]]:
    """The events with their sizes, in groups that fit a frame even where nothing compresses."""
    group: list[Event] = []
    total = 0
    for event, size in sized:
        if group and total + size > MAX_PAYLOAD:
            yield group
            group, total = [], 0
        group.append(event)
        total += size
    if group:
        yield group


def _gather(items: Sequence[MicroBatch]) -> MicroColumns:
    num_rows, row, loss_sum, num_tokens = _usual(items) or _unusual(items)
    if num_tokens.size and (num_tokens.min() < 0 or num_tokens.max() > _INT32_MAX):
        raise RefusedError(f"num_tokens from {num_tokens.min()} to {num_tokens.max()}, not 0 to {_INT32_MAX}")
    loss_sum[num_tokens == 0] = 0.0
    reason = _integers([item.reason for item in items], "reason", len(VERDICT_REASONS) - 1)
    if reason.min() < 0:
        raise RefusedError(f"reason {reason.min()}, not an index into VERDICT_REASONS")
    return MicroColumns(
        step=_integers([item.step for item in items], "step", _INT64_MAX),
        micro=_integers([item.micro for item in items], "micro", _INT32_MAX),
        num_rows=num_rows,
        reason=reason,
        keep=np.array([item.keep for item in items], np.bool_),
        row=row,
        num_tokens=num_tokens,
        loss_sum=loss_sum,
    )


def _usual(items: Sequence[MicroBatch]) -> _Joined | None:
    """The arrays of all items joined, if nothing about them is unusual: checked once a block, not once an item.

    Joined, they show it: only integers join to a signed integer, and only one-dimensional arrays to one dimension.
    """
    if len(items) == 1 or any(item.packed for item in items):
        return None
    rows = [np.asarray(item.rows) for item in items]
    sums = [np.asarray(item.loss_sums) for item in items]
    tokens = [np.asarray(item.num_tokens) for item in items]
    num_rows = [entry.size for entry in rows]
    row, loss_sum, num_tokens = np.concatenate(rows), np.concatenate(sums), np.concatenate(tokens)
    kinds = row.dtype.kind + loss_sum.dtype.kind + num_tokens.dtype.kind
    if kinds != "ifi" or not row.ndim == loss_sum.ndim == num_tokens.ndim == 1:
        return None
    if num_rows != [entry.size for entry in sums] or num_rows != [entry.size for entry in tokens]:
        return None
    return (
        np.array(num_rows),
        row.astype(np.int64, copy=False),
        _float32(loss_sum),
        num_tokens.astype(np.int64, copy=False),
    )


def _unusual(items: Sequence[MicroBatch]) -> _Joined:
    rows, sums, tokens = zip(*[_arrays(item) for item in items], strict=True)
    return (
        np.array([entry.size for entry in rows]),
        np.concatenate(rows, dtype=np.int64, casting="unsafe"),
        _float32(np.concatenate(sums)),
        np.concatenate(tokens, dtype=np.int64, casting="unsafe"),
    )


def _float32(values: NDArray[Any]) -> NDArray[np.float32]:
    with np.errstate(over="ignore", invalid="ignore"):
        return values.astype(np.float32, copy=False)


def _arrays(item: MicroBatch) -> _Arrays:
    rows, sums, tokens = np.asarray(item.rows), np.asarray(item.loss_sums), np.asarray(item.num_tokens)
    if not (rows.ndim == sums.ndim == tokens.ndim == 1 and rows.size == sums.size == tokens.size):
        raise RefusedError(
            f"step {item.step}, micro {item.micro}: rows of shape {rows.shape}, losses {sums.shape}, tokens "
            f"{tokens.shape}; expected three of the same length"
        )
    kinds = rows.dtype.kind + sums.dtype.kind + tokens.dtype.kind
    # An empty Python list becomes float64: nothing stands in it that could be wrong.
    if rows.size and (kinds[0] not in "iu" or kinds[1] not in "fiu" or kinds[2] not in "iub"):
        raise RefusedError(
            f"step {item.step}, micro {item.micro}: rows are {rows.dtype}, losses {sums.dtype}, tokens {tokens.dtype}; "
            "expected integers, floats, integers"
        )
    # Unsigned numbers above int64 would come out negative.
    for name, values in (("row", rows), ("num_tokens", tokens)):
        if values.dtype == np.uint64 and values.size and values.max() > _INT64_MAX:
            raise RefusedError(f"step {item.step}, micro {item.micro}: {name} {values.max()} is above int64")
    return _sum_by_row(rows, sums, tokens) if item.packed and rows.size else (rows, sums, tokens)


def _sum_by_row(rows: NDArray[Any], sums: NDArray[Any], tokens: NDArray[Any]) -> _Arrays:
    """Entries that are tokens of packed sequences, summed into one entry a row, in the order in which rows begin.

    Through a packed sequence a NaN goes forward: what stands first tells which row it may have come from.
    """
    if tokens.dtype.kind == "i" and tokens.min() < 0:
        raise RefusedError(f"num_tokens {tokens.min()}, not 0 to {_INT32_MAX}")
    ascending, begins, place = np.unique(rows, return_index=True, return_inverse=True)
    order = np.argsort(begins)
    row, place = ascending[order], np.argsort(order)[place]
    supervised = tokens > 0  # the others have no loss, whatever value stands there
    with np.errstate(invalid="ignore"):
        loss_sum = np.bincount(place[supervised], weights=sums[supervised], minlength=row.size)
    num_tokens = np.bincount(place, weights=tokens, minlength=row.size)
    return row, loss_sum, num_tokens.astype(np.int64)


def _split(columns: MicroColumns) -> Iterator[MicroColumns]:
    """The columns in parts that a block can hold; a micro-batch over the bound goes on in the next block."""
    if columns.row.size <= MAX_RECORDS:
        yield columns
        return
    ends = np.cumsum(columns.num_rows)
    starts = ends - columns.num_rows
    for low in range(0, columns.row.size, MAX_RECORDS):
        high = min(low + MAX_RECORDS, columns.row.size)
        inside = (starts < high) & (ends > low)
        yield MicroColumns(
            step=columns.step[inside],
            micro=columns.micro[inside],
            num_rows=np.minimum(ends[inside], high) - np.maximum(starts[inside], low),
            reason=columns.reason[inside],
            keep=columns.keep[inside],
            row=columns.row[low:high],
            num_tokens=columns.num_tokens[low:high],
            loss_sum=columns.loss_sum[low:high],
        )


def _gather_steps(items: Sequence[StepRow]) -> StepColumns:
    fields = dict(zip(StepRow._fields, zip(*items, strict=True), strict=True))
    reason = _integers(fields["reason"], "reason", len(STEP_REASONS) - 1)
    if reason.min() < 0:
        raise RefusedError(f"reason {reason.min()}, not an index into STEP_REASONS")
    with np.errstate(over="ignore"):
        # To float32, 60 ns in a second: half the bytes of a clock's noise.
        wall_s = _floats(fields["wall_s"], "wall_s").astype(np.float32).astype(np.float64)
    unsaid = np.zeros(len(items), np.int32)
    has_gradient = ~np.isin(reason, [STEP_CODE[gradientless] for gradientless in GRADIENTLESS])
    grad_norm, lr = _floats(fields["grad_norm"], "grad_norm"), _floats(fields["lr"], "lr")
    return StepColumns(
        attempt=unsaid,  # the journal's writer knows them, and writes them into the frame's header
        rank=unsaid,
        step=_integers(fields["step"], "step", _INT64_MAX),
        loss=_floats(fields["loss"], "loss"),
        grad_norm=np.where(has_gradient, grad_norm, np.nan),
        has_grad_norm=_known(fields["grad_norm"], grad_norm) & has_gradient,
        lr=lr,
        has_lr=_known(fields["lr"], lr),
        reason=reason.astype(np.uint8),
        clipped=np.where(has_gradient, _three_valued(fields["clipped"]), np.int8(-1)),
        loss_scale=_floats(fields["loss_scale"], "loss_scale"),
        wall_s=wall_s,
        num_tokens=_integers(fields["num_tokens"], "num_tokens", _INT64_MAX),
        num_skipped_micros=_integers(fields["num_skipped_micros"], "num_skipped_micros", _INT64_MAX),
        num_skipped_tokens=_integers(fields["num_skipped_tokens"], "num_skipped_tokens", _INT64_MAX),
    )


def _three_valued(values: Sequence[Any]) -> NDArray[np.int8]:
    """1, 0, or -1 for None."""
    return np.array([-1 if value is None else int(bool(value)) for value in values], np.int8)


def _ids(item: RowIds) -> IdColumns:
    row = _whole_numbers(item.rows, "rows")
    table_row = np.full(row.size, -1) if item.table_rows is None else _whole_numbers(item.table_rows, "table_rows")
    digest = np.full(row.size, None) if item.digests is None else np.asarray(item.digests)
    has_digest = np.ones(digest.shape, np.bool_)
    if digest.dtype == np.object_:  # some rows have none
        has_digest = np.array([entry is not None for entry in digest])
        digest = np.array([0 if entry is None else operator.index(entry) for entry in digest], np.int64)
    digest = _whole_numbers(digest, "digests")
    name = np.full(row.size, None, np.object_)
    if item.names is not None:
        name = np.fromiter((_name(entry) for entry in item.names), np.object_)
    if not row.size == table_row.size == digest.size == name.size:
        raise RefusedError(
            f"ids of {row.size} rows with {table_row.size} rows of the table, {digest.size} digests and {name.size} "
            "names; expected parts of the same length"
        )
    if row.size and table_row.min() < -1:
        raise RefusedError(f"ids: row {table_row.min()} of the table; expected -1 or more")
    return IdColumns(row, table_row, digest, has_digest, name)


def _name(entry: Any) -> str | None:
    """A name as UTF-8 holds it: a lone surrogate becomes a visible escape."""
    if entry is None:
        return None
    if not isinstance(entry, str):
        raise RefusedError(f"ids: a name is {type(entry).__name__}; expected str")
    name = without_surrogates(entry[: MAX_NAME_BYTES + 1])
    if len(name.encode()) > MAX_NAME_BYTES:
        raise RefusedError(f"ids: the name {name[:40]!r}... is over {MAX_NAME_BYTES} bytes; use shorter names")
    return name


def _whole_numbers(values: Any, name: str) -> NDArray[np.int64]:
    """One-dimensional integers within int64; an empty list has no type that could be wrong."""
    numbers = np.asarray(values)
    if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
        raise RefusedError(f"ids: {name} are {numbers.dtype} of shape {numbers.shape}; expected a list of integers")
    if numbers.dtype == np.uint64 and numbers.size and numbers.max() > _INT64_MAX:
        raise RefusedError(f"ids: {name} {numbers.max()} is above int64")
    return numbers.astype(np.int64, copy=False)


def _floats(values: Sequence[Any], name: str) -> NDArray[np.float64]:
    """The values as float64; None becomes NaN, a 0-d array or tensor its number."""
    numbers = np.array(values, np.float64)
    if numbers.ndim != 1:
        raise RefusedError(f"{name} of shape {numbers.shape[1:]}; expected a number")
    return numbers


def _known(values: Sequence[Any], numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which of the values are not None; looked at one by one only where a number is NaN, as None has become."""
    known = ~np.isnan(numbers)
    return known if known.all() else np.array([value is not None for value in values])


def _integers(values: Sequence[Any], name: str, highest: int) -> NDArray[np.int64]:
    numbers = np.array(values)
    if numbers.dtype.kind not in "iu":  # tensors among numbers, or no integers at all: TypeError
        numbers = np.array([operator.index(value) for value in values])
    if numbers.dtype.kind not in "iu" or numbers.max() > highest or numbers.min() < -highest - 1:
        raise RefusedError(f"{name} from {min(values)} to {max(values)}: beyond {highest}")
    return numbers.astype(np.int64, copy=False)


def _plain_event(event: Event) -> Event:
    step = operator.index(event.step)
    if abs(step) > _INT64_MAX:
        raise RefusedError(f"event {event.kind!r}: step {step} is beyond int64")
    time = float(event.time)
    if not abs(time) < 1e300:
        raise RefusedError(f"event {event.kind!r}: time {time}")
    plain = _PlainFacts()
    return Event(str(event.kind), step, time, {str(key): plain.of(fact, 0) for key, fact in event.facts.items()})


class _PlainFacts:
    """Facts as strict JSON holds them; what JSON has no form for becomes text. One object an event: it counts."""

    def __init__(self) -> None:
        self._num_values = 0

    def of(self, fact: Any, depth: int) -> Any:
        """The plain form of one fact, `depth` containers deep."""
        self._num_values += 1
        if self._num_values > MAX_FACTS:  # a list that holds itself twice has no end
            raise RefusedError(f"an event holds more than {MAX_FACTS} values")
        if fact is None or isinstance(fact, (bool, str)):
            return fact
        if isinstance(fact, int):
            return int(fact) if abs(fact) <= _INT64_MAX else str(fact)
        if isinstance(fact, float):
            return json_number(float(fact))
        if depth < _MAX_FACTS_DEPTH:
            if isinstance(fact, dict):
                return {str(key): self.of(value, depth + 1) for key, value in fact.items()}
            if isinstance(fact, (list, tuple)):
                return [self.of(value, depth + 1) for value in fact]
        if hasattr(fact, "tolist"):  # numpy scalars, arrays, tensors
            return self.of(fact.tolist(), depth + 1) if depth < _MAX_FACTS_DEPTH else str(fact)
        return str(fact)
