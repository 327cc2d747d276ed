"""Payloads: what is encoded comes back, and what does not hold together is refused."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.blocks import (
    MicroColumns,
    decode_events,
    decode_rows,
    decode_steps,
    encode_events,
    encode_rows,
    encode_steps,
)
from trimtab.log.columns import StepColumns
from trimtab.log.planes import BadBlockError, encode_ints
from trimtab.values import Event

INT64 = st.integers(-(2**63), 2**63 - 1)
BITS32 = st.integers(-(2**31), 2**31 - 1)
BITS64 = st.sampled_from([0x7FF8000000000000, 0x7FF0000000000001, -0x10000000000000, 0x3FF0000000000000]) | INT64


@given(
    st.lists(
        st.tuples(
            INT64,
            st.integers(-(2**31), 2**31 - 1),
            st.integers(0, 7),
            st.booleans(),
            st.lists(st.tuples(INT64, st.integers(0, 2**31 - 1), BITS32), max_size=6),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_rows_come_back_bit_by_bit(micros: list) -> None:
    rows = [entry for micro in micros for entry in micro[4]]
    columns = MicroColumns(
        step=np.array([micro[0] for micro in micros], np.int64),
        micro=np.array([micro[1] for micro in micros], np.int64),
        num_rows=np.array([len(micro[4]) for micro in micros], np.int64),
        reason=np.array([micro[2] for micro in micros], np.int64),
        keep=np.array([micro[3] for micro in micros], np.bool_),
        row=np.array([row for row, _, _ in rows], np.int64),
        num_tokens=np.array([tokens for _, tokens, _ in rows], np.int64),
        loss_sum=np.array([bits for _, _, bits in rows], np.int32).view(np.float32),
    )

    block = encode_rows(columns)
    back = decode_rows(b"".join(block.parts))

    assert (block.num_records, block.first_step) == (len(micros), min(micro[0] for micro in micros))
    assert block.last_step == max(micro[0] for micro in micros)
    for there, here in zip(columns, back, strict=True):
        assert there.dtype == here.dtype
        assert there.tobytes() == here.tobytes()


@given(
    st.lists(st.tuples(INT64, st.integers(0, 5), st.sampled_from([-1, 0, 1]), *[BITS64] * 5), min_size=1, max_size=8)
)
def test_steps_come_back_bit_by_bit(steps: list) -> None:
    floats = [np.array([step[place] for step in steps], np.int64).view(np.float64) for place in range(3, 8)]
    columns = StepColumns(
        attempt=np.full(len(steps), 3, np.int32),
        rank=np.full(len(steps), 7, np.int32),
        step=np.array([step[0] for step in steps], np.int64),
        loss=floats[0],
        grad_norm=floats[1],
        has_grad_norm=np.array([step[1] > 2 for step in steps]),
        lr=floats[2],
        has_lr=np.array([step[1] % 2 == 0 for step in steps]),
        reason=np.array([step[1] for step in steps], np.uint8),
        clipped=np.array([step[2] for step in steps], np.int8),
        loss_scale=floats[3],
        wall_s=floats[4],
        num_tokens=np.array([step[0] for step in steps], np.int64),
        num_skipped_micros=np.arange(len(steps)),
        num_skipped_tokens=np.arange(len(steps))[::-1].copy(),
    )

    back = decode_steps(b"".join(encode_steps(columns).parts), attempt=3, rank=7)

    for there, here in zip(columns, back, strict=True):
        assert there.dtype == here.dtype
        assert there.tobytes() == here.tobytes()


def test_events_come_back() -> None:
    events = [Event("resume", 3, 1.5, {"from": 2, "names": ["a", None]}), Event("warning", 0, 0.0)]

    block = encode_events(events)

    assert (block.first_step, block.last_step, block.num_records) == (0, 3, 2)
    assert decode_events(b"".join(block.parts)) == events


def rows_payload(*, counts: tuple[int, int] = (1, 2), **columns: list[int]) -> bytes:
    usual = dict(step=[1], micro=[0], num_rows=[2], flags=[0x80], row=[5, 6], num_tokens=[1, 1], loss=[0, 0])
    parts = [struct.pack("<II", *counts)]
    for values in (usual | columns).values():
        parts += encode_ints(np.array(values, np.int64))
    return b"".join(parts)


def test_the_payload_that_the_refusals_below_change_is_good() -> None:
    assert decode_rows(rows_payload()).row.tolist() == [5, 6]


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        struct.pack("<II", 0, 0),
        struct.pack("<II", 1 << 20, 1),  # over the bound, before any array is made
        struct.pack("<II", 1, 0xFFFFFFFF),
        rows_payload() + b"\x00",
        rows_payload()[:-1],
        rows_payload(num_rows=[1]),  # the block has two rows
        rows_payload(num_rows=[-1]),
        rows_payload(counts=(2, 2), step=[1, 1], micro=[0, 1], num_rows=[3, -1], flags=[0, 0]),
        rows_payload(micro=[2**31]),
        rows_payload(flags=[8]),  # a reason that does not exist
        rows_payload(flags=[-1]),
        rows_payload(flags=[256]),
        rows_payload(num_tokens=[-1, 1]),
        rows_payload(num_tokens=[2**31, 1]),
        rows_payload(loss=[2**31, 0]),
    ],
)
def test_rows_that_do_not_hold_together_are_refused(payload: bytes) -> None:
    with pytest.raises(BadBlockError):
        decode_rows(payload)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"{}",
        b"[1]",
        b"[",
        b"[" * 100_000,
        b"\xff",
        b'[{"kind": 1, "step": 1, "time": 1}]',
        b'[{"kind": "a", "step": true, "time": 1}]',
        b'[{"kind": "a", "step": 1.5, "time": 1}]',
        b'[{"kind": "a", "step": 99999999999999999999, "time": 1}]',
        b'[{"kind": "a", "step": 1, "time": NaN}]',
        b'[{"kind": "a", "step": 1, "time": 1, "facts": []}]',
        b'[{"kind": "a", "step": ' + b"9" * 5000 + b', "time": 1}]',
    ],
)
def test_events_that_do_not_hold_together_are_refused(payload: bytes) -> None:
    with pytest.raises(BadBlockError):
        decode_events(payload)


@pytest.mark.parametrize(
    "payload", [b"", struct.pack("<I", 0), struct.pack("<I", 1 << 30), struct.pack("<I", 1) + bytes(8)]
)
def test_steps_that_do_not_hold_together_are_refused(payload: bytes) -> None:
    with pytest.raises(BadBlockError):
        decode_steps(payload, attempt=1, rank=0)
