"""What the payloads hold (FORMAT.md, "Rows", "Steps", "Events"): columns to bytes, and bytes to columns.

Enters: checked columns. Leaves: a `Block` for a frame, or the columns again. Invariant: `decode_*` gives back exactly
what `encode_*` was given, or raises `BadBlockError`; it never guesses.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.log.columns import StepColumns
from trimtab.log.frames import KIND_EVENTS, KIND_ROWS, KIND_STEPS, MAX_PAYLOAD, Block
from trimtab.log.planes import BadBlockError, decode_ints, encode_ints
from trimtab.strict_json import loads
from trimtab.values import STEP_REASONS, VERDICT_REASONS, Event

MAX_RECORDS: Final = 1 << 19
"""Micro-batches, row records, steps in one block: 16 bytes each stay under the 16 MiB of a payload, and a hostile block
whose columns are all constant cannot ask for more than 21 MB."""

MAX_EVENTS_BYTES: Final = MAX_PAYLOAD + (1 << 20)
"""Bytes of one block of events as JSON: it is written only where it fits a frame uncompressed, and a segment's lines
hold a little more. As Python values they take ten times that."""

_COUNTS: Final = struct.Struct("<II")
_COUNT: Final = struct.Struct("<I")
_KEEP: Final = 0x80
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1

_HAS_GRAD_NORM: Final = 1
_HAS_LR: Final = 2
_CLIPPED_KNOWN: Final = 4
_CLIPPED: Final = 8


class MicroColumns(NamedTuple):
    """The row records of several micro-batches: M micro-batches, N rows, in the order recorded.

    Attributes:
        step: (M,) int64.
        micro: (M,) int64, within int32.
        num_rows: (M,) int64, rows of each micro-batch; they sum to N.
        reason: (M,) int64, index into `VERDICT_REASONS`.
        keep: (M,) bool.
        row: (N,) int64.
        num_tokens: (N,) int64, 0 to 2**31 - 1.
        loss_sum: (N,) float32.
    """

    step: NDArray[np.int64]
    micro: NDArray[np.int64]
    num_rows: NDArray[np.int64]
    reason: NDArray[np.int64]
    keep: NDArray[np.bool_]
    row: NDArray[np.int64]
    num_tokens: NDArray[np.int64]
    loss_sum: NDArray[np.float32]


def encode_rows(columns: MicroColumns) -> Block:
    """A rows block; at least one micro-batch."""
    flags = np.where(columns.keep, columns.reason + _KEEP, columns.reason)
    parts = [_COUNTS.pack(columns.step.size, columns.row.size)]
    loss_bits = columns.loss_sum.view(np.int32).astype(np.int64)
    for values in (columns.step, columns.micro, columns.num_rows, flags, columns.row, columns.num_tokens, loss_bits):
        parts += encode_ints(values)
    return Block(KIND_ROWS, columns.step.size, int(columns.step.min()), int(columns.step.max()), parts)


def decode_rows(raw: bytes) -> MicroColumns:
    """The columns of a rows block. Raises `BadBlockError` where it does not hold together."""
    num_micros, num_rows = _unpack(_COUNTS, raw)
    if not 0 < num_micros <= MAX_RECORDS or num_rows > MAX_RECORDS:
        raise BadBlockError(f"{num_micros} micro-batches, {num_rows} rows")
    offset = _COUNTS.size
    step, offset = decode_ints(raw, offset, num_micros)
    micro, offset = decode_ints(raw, offset, num_micros)
    counts, offset = decode_ints(raw, offset, num_micros)
    flags, offset = decode_ints(raw, offset, num_micros)
    row, offset = decode_ints(raw, offset, num_rows)
    num_tokens, offset = decode_ints(raw, offset, num_rows)
    loss_bits, offset = decode_ints(raw, offset, num_rows)
    _demand(offset == len(raw), "bytes are left over")
    _demand_within(micro, -_INT32_MAX - 1, _INT32_MAX, "micro")
    _demand_within(counts, 0, num_rows, "rows of a micro-batch")
    _demand(int(counts.sum()) == num_rows, "the micro-batches have other rows than the block")
    _demand_within(flags, 0, 0xFF, "flags")
    reason = flags & ~_KEEP
    _demand_within(reason, 0, len(VERDICT_REASONS) - 1, "reason")
    _demand_within(num_tokens, 0, _INT32_MAX, "tokens")
    _demand_within(loss_bits, -_INT32_MAX - 1, _INT32_MAX, "loss")
    loss_sum = loss_bits.astype(np.int32).view(np.float32)
    return MicroColumns(step, micro, counts, reason, (flags & _KEEP) != 0, row, num_tokens, loss_sum)


def encode_steps(columns: StepColumns) -> Block:
    """A steps block; at least one step. Attempt and rank are not in it: the frame's header says them."""
    flags = np.zeros(columns.step.size, np.int64)
    flags[columns.has_grad_norm] |= _HAS_GRAD_NORM
    flags[columns.has_lr] |= _HAS_LR
    flags[columns.clipped >= 0] |= _CLIPPED_KNOWN
    flags[columns.clipped > 0] |= _CLIPPED
    parts = [_COUNT.pack(columns.step.size)]
    for values in (
        columns.step,
        columns.reason.astype(np.int64),
        flags,
        columns.num_tokens,
        columns.num_skipped_micros,
        columns.num_skipped_tokens,
    ):
        parts += encode_ints(values)
    for floats in (columns.loss, columns.grad_norm, columns.lr, columns.loss_scale, columns.wall_s):
        parts += _encode_floats(floats)
    return Block(KIND_STEPS, columns.step.size, int(columns.step.min()), int(columns.step.max()), parts)


def decode_steps(raw: bytes, *, attempt: int, rank: int) -> StepColumns:
    """The columns of a steps block, in a frame of this attempt and rank.

    Raises:
        BadBlockError: The block does not hold together.
    """
    (num_steps,) = _unpack(_COUNT, raw)
    _demand(0 < num_steps <= MAX_RECORDS, f"{num_steps} steps")
    offset = _COUNT.size
    ints: list[NDArray[np.int64]] = []
    for _ in range(6):
        values, offset = decode_ints(raw, offset, num_steps)
        ints.append(values)
    floats: list[NDArray[np.float64]] = []
    for _ in range(5):
        numbers, offset = _decode_floats(raw, offset, num_steps)
        floats.append(numbers)
    _demand(offset == len(raw), "bytes are left over")
    step, reason, flags, num_tokens, num_skipped_micros, num_skipped_tokens = ints
    loss, grad_norm, lr, loss_scale, wall_s = floats
    _demand_within(reason, 0, len(STEP_REASONS) - 1, "reason")
    _demand_within(flags, 0, 0x0F, "flags")
    clipped = np.where(flags & _CLIPPED_KNOWN, (flags & _CLIPPED) != 0, -1).astype(np.int8)
    return StepColumns(
        attempt=np.full(num_steps, attempt, np.int32),
        rank=np.full(num_steps, rank, np.int32),
        step=step,
        loss=loss,
        grad_norm=grad_norm,
        has_grad_norm=(flags & _HAS_GRAD_NORM) != 0,
        lr=lr,
        has_lr=(flags & _HAS_LR) != 0,
        reason=reason.astype(np.uint8),
        clipped=clipped,
        loss_scale=loss_scale,
        wall_s=wall_s,
        num_tokens=num_tokens,
        num_skipped_micros=num_skipped_micros,
        num_skipped_tokens=num_skipped_tokens,
    )


def encode_events(events: Sequence[Event]) -> Block:
    """An events block; the facts are plain JSON already (`trimtab.log.records`)."""
    steps = [event.step for event in events]
    return Block(KIND_EVENTS, len(events), min(steps), max(steps), [f"[{','.join(map(event_text, events))}]".encode()])


def event_text(event: Event) -> str:
    """One event of an events block, as JSON in ASCII."""
    document = {"kind": event.kind, "step": event.step, "time": event.time, "facts": event.facts}
    return json.dumps(document, allow_nan=False, separators=(",", ":"))


def decode_events(raw: bytes) -> list[Event]:
    """The events of a block. Raises `BadBlockError` where it does not hold together."""
    _demand(len(raw) <= MAX_EVENTS_BYTES, f"events of {len(raw)} bytes")
    try:
        document = loads(raw)
    except ValueError as error:
        raise BadBlockError("no JSON") from error
    _demand(isinstance(document, list), "no list of events")
    return [_event(entry) for entry in document]


def _event(entry: Any) -> Event:
    _demand(isinstance(entry, dict), "an event that is no object")
    kind, step, time, facts = entry.get("kind"), entry.get("step"), entry.get("time"), entry.get("facts", {})
    _demand(isinstance(kind, str) and isinstance(facts, dict), "an event without kind or facts")
    _demand(type(step) is int and abs(step) <= _INT64_MAX, "an event without a step")
    _demand(type(time) in (int, float) and abs(time) < 1e300, "an event without a time")
    return Event(kind, step, float(time), facts)


def _encode_floats(values: NDArray[np.float64]) -> list[bytes]:
    """The bits of the values as integers: of float32 where every one of them survives it, else of float64."""
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = values.astype(np.float32)
    if np.array_equal(narrow.astype(np.float64).view(np.int64), values.view(np.int64)):
        head, *planes = encode_ints(narrow.view(np.int32).astype(np.int64))
        return [b"\x04" + head, *planes]
    head, *planes = encode_ints(values.view(np.int64))
    return [b"\x08" + head, *planes]


def _decode_floats(raw: bytes, offset: int, num_values: int) -> tuple[NDArray[np.float64], int]:
    width = raw[offset : offset + 1]
    bits, end = decode_ints(raw, offset + 1, num_values)
    if width == b"\x08":
        return bits.view(np.float64), end
    _demand(width == b"\x04", "a float of unknown width")
    _demand_within(bits, -_INT32_MAX - 1, _INT32_MAX, "float32")
    return bits.astype(np.int32).view(np.float32).astype(np.float64), end


def _unpack(fields: struct.Struct, raw: bytes) -> tuple[Any, ...]:
    _demand(len(raw) >= fields.size, "shorter than its counts")
    return fields.unpack_from(raw)


def _demand(holds: object, otherwise: str) -> None:
    if not holds:
        raise BadBlockError(otherwise)


def _demand_within(values: NDArray[np.int64], low: int, high: int, name: str) -> None:
    if values.size and (values.min() < low or values.max() > high):
        raise BadBlockError(f"{name} outside {low} to {high}")
