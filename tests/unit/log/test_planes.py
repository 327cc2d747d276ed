"""Integer columns as byte planes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.planes import BadBlockError, decode_ints, encode_ints

INT64 = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(INT64, max_size=40), st.binary(max_size=5))
def test_any_int64_column_comes_back_and_nothing_behind_it_is_touched(numbers: list[int], behind: bytes) -> None:
    values = np.array(numbers, np.int64)

    raw = b"".join(encode_ints(values))
    back, end = decode_ints(raw + behind, 0, len(numbers))

    assert back.tolist() == numbers
    assert end == len(raw)


@pytest.mark.parametrize(
    ("numbers", "num_bytes"),
    [
        ([7] * 100, 10),  # constant: the head alone
        (list(range(1000, 1100)), 18),  # an even slope: the head and the first value
        ([0, 255] * 50, 110),
        ([0, 256] * 50, 210),
        ([-(2**63), 2**63 - 1] * 2, 21),  # the difference is -1 or 1 modulo 2**64: one plane of three
    ],
)
def test_a_column_takes_the_narrowest_width(numbers: list[int], num_bytes: int) -> None:
    raw = b"".join(encode_ints(np.array(numbers, np.int64)))

    assert len(raw) == num_bytes
    assert decode_ints(raw, 0, len(numbers))[0].tolist() == numbers


def test_the_low_bytes_of_all_values_stand_together() -> None:
    # 0x0102, 0x0304, 0x0009 above the lowest, which is 9 itself
    raw = b"".join(encode_ints(np.array([0x010B, 0x030D, 9, 0x0012], np.int64)))

    assert raw == bytes([0, 2, 9, 0, 0, 0, 0, 0, 0, 0]) + bytes([2, 4, 0, 9]) + bytes([1, 3, 0, 0])


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(9),
        bytes([2]) + bytes(9),  # a mode that does not exist
        bytes([0, 9]) + bytes(100),  # nine bytes a value
        bytes([0, 2]) + bytes(8) + bytes(5),  # planes that end early
        bytes([1, 1]) + bytes(8) + bytes(7),  # differences without their first value
    ],
)
def test_bytes_that_are_no_column_are_refused(raw: bytes) -> None:
    with pytest.raises(BadBlockError):
        decode_ints(raw, 0, 3)


def test_differences_of_fewer_than_two_values_are_refused() -> None:
    with pytest.raises(BadBlockError, match="differences of 1 values"):
        decode_ints(bytes([1, 0]) + bytes(16), 0, 1)
