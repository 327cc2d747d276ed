"""One frame: its header, its two checksums, its bounds."""

import struct
import zlib

import pytest

from trimtab.log.frames import (
    HEADER_SIZE,
    KIND_ROWS,
    MAX_PAYLOAD,
    MAX_RAW,
    Block,
    FrameHeader,
    deflate,
    inflate,
    pack_frame,
    parse_header,
)

BLOCK = Block(KIND_ROWS, 3, 5, 9, [b"abc" * 200, b"x"])


def frame(*, offset: int = 0) -> bytes:
    return pack_frame(BLOCK, attempt=2, rank=7, offset=offset)


def header_like(**changes: int) -> FrameHeader:
    header = parse_header(frame(), 0)
    assert header is not None
    return header._replace(**changes)


def test_a_frame_says_what_it_was_given() -> None:
    data = frame(offset=1234)

    header = parse_header(data[:HEADER_SIZE], 1234)

    assert header is not None
    assert (header.kind, header.num_records, header.first_step, header.last_step) == (KIND_ROWS, 3, 5, 9)
    assert (header.attempt, header.rank, header.offset) == (2, 7, 1234)
    assert header.end == 1234 + len(data)
    assert inflate(header, data[HEADER_SIZE:]) == b"abc" * 200 + b"x"


def test_a_frame_read_at_another_offset_is_none() -> None:
    assert parse_header(frame(offset=1234), 1235) is None


def test_every_flipped_bit_of_a_header_is_noticed() -> None:
    data = frame()[:HEADER_SIZE]
    for bit in range(HEADER_SIZE * 8):
        broken = bytearray(data)
        broken[bit // 8] ^= 1 << bit % 8
        assert parse_header(bytes(broken), 0) is None


def test_fewer_bytes_than_a_header_are_none() -> None:
    assert all(parse_header(frame()[:size], 0) is None for size in range(HEADER_SIZE))


@pytest.mark.parametrize(("payload", "raw"), [(0, 1), (1, 0), (MAX_PAYLOAD + 1, 1), (1, MAX_RAW + 1)])
def test_lengths_of_nothing_and_over_the_bounds_are_refused_though_the_checksum_is_right(
    payload: int, raw: int
) -> None:
    fields = bytearray(frame()[: HEADER_SIZE - 4])
    struct.pack_into("<II", fields, 16, payload, raw)

    assert parse_header(bytes(fields) + struct.pack("<I", zlib.crc32(fields)), 0) is None


def test_bytes_that_do_not_compress_are_stored_as_they_are() -> None:
    noise = bytes(range(256))

    data = pack_frame(Block(KIND_ROWS, 1, 1, 1, [noise]), attempt=1, rank=0, offset=0)

    assert data[HEADER_SIZE:] == noise


@pytest.mark.parametrize("parts", [[], [b""], [bytes(MAX_RAW), b"1"]])
def test_a_block_outside_the_bounds_is_not_packed(parts: list[bytes]) -> None:
    with pytest.raises(ValueError, match="does not fit a frame"):
        pack_frame(Block(KIND_ROWS, 1, 1, 1, parts), attempt=1, rank=0, offset=0)


@pytest.mark.parametrize("raw_size", [600, 602, 1])
def test_a_payload_of_another_length_than_announced_is_refused(raw_size: int) -> None:
    payload = deflate(BLOCK.parts)

    assert inflate(header_like(raw_size=601), payload) is not None
    assert inflate(header_like(raw_size=raw_size), payload) is None


@pytest.mark.parametrize("payload", [b"", b"\x00\x01\x02", deflate([b"a" * 601])[:-1], deflate([b"a" * 601]) + b"\x00"])
def test_a_payload_that_is_no_whole_stream_is_refused(payload: bytes) -> None:
    assert inflate(header_like(raw_size=601), payload) is None


def test_an_unknown_codec_is_refused() -> None:
    assert inflate(header_like(codec=9), deflate(BLOCK.parts)) is None


def test_parts_with_tables_of_their_own_join_to_one_stream() -> None:
    parts = [b"ab" * 300, b"", b"z", b"\x00" * 1000, bytes(range(256)) * 2]

    assert zlib.decompress(deflate(parts), -15) == b"".join(parts)
