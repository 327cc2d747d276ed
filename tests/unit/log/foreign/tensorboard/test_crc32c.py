"""CRC-32C of many strings at once equals the definition, string by string."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.foreign.tensorboard.crc32c import crc32c


def by_definition(data):
    """The polynomial division, bit by bit."""
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = (register >> 1) ^ (0x82F63B78 * (register & 1))
    return register ^ 0xFFFFFFFF


def of_all(strings):
    data = np.frombuffer(b"\x55" + b"\xaa".join(strings) + b"\x55", np.uint8)
    sizes = np.array([len(string) for string in strings], np.int64)
    starts = 1 + np.cumsum(sizes + 1) - (sizes + 1)
    return crc32c(data, start=starts, size=sizes).tolist()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        # RFC 3720, appendix B.4, and the usual check value.
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(reversed(range(32))), 0x113FDB5C),
        (b"123456789", 0xE3069283),
    ],
)
def test_published_values_come_out(data, expected):
    assert of_all([data]) == [expected]


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=20))
def test_strings_of_all_lengths_side_by_side_come_out_as_alone(strings):
    assert of_all(strings) == [by_definition(string) for string in strings]


@pytest.mark.parametrize("size", [4095, 4096, 4097, 8191, 12_288, 40_001])
def test_long_strings_are_cut_into_lanes_and_put_together(size):
    data = bytes(np.random.default_rng(size).integers(0, 256, size, np.uint8))
    assert of_all([data, b"short", data[1:]]) == [by_definition(data), by_definition(b"short"), by_definition(data[1:])]


def test_no_strings_give_no_checksums():
    none = np.empty(0, np.int64)
    assert crc32c(np.empty(0, np.uint8), start=none, size=none).tolist() == []
