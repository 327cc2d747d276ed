"""One frame of a journal: 56 bytes that describe themselves, and a payload (FORMAT.md, "Frame").

Enters: raw bytes of a block and what it covers. Leaves: a frame, or a frame's header and raw bytes again. Invariant:
nothing is believed before its checksum is: the header's own, then the payload's, then the exact raw length; every
length is bounded before memory is taken.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

MAGIC: Final = b"\xf5TRM"  # 0xF5 occurs in no UTF-8 text, so a text file never looks like a journal
FORMAT_VERSION: Final = 1
HEADER_SIZE: Final = 56
MAX_PAYLOAD: Final = 16 << 20
MAX_RAW: Final = 64 << 20
MAX_ATTEMPT: Final = 0xFFFF
MAX_RANK: Final = 0xFFFF

KIND_ATTEMPT: Final = 1
KIND_ROWS: Final = 2
KIND_STEPS: Final = 3
KIND_EVENTS: Final = 4
KIND_IDS: Final = 5
KINDS: Final = frozenset((KIND_ATTEMPT, KIND_ROWS, KIND_STEPS, KIND_EVENTS, KIND_IDS))

CODEC_STORED: Final = 0
CODEC_DEFLATE: Final = 1

# Below this a part shares the Huffman table of its neighbours: a table of its own costs up to 80 bytes.
_OWN_TABLE_BYTES: Final = 256

_FIELDS: Final = struct.Struct("<4sBBBBHHIIIQqqI")
_CHECK: Final = struct.Struct("<I")


class FrameHeader(NamedTuple):
    """What the 56 bytes say. `payload_size` and `raw_size` are within their bounds, and not zero.

    Attributes:
        version: Format version of the payload.
        kind: What the payload holds.
        codec: How it is compressed.
        attempt: 1-based attempt of the run.
        rank: Rank that wrote it.
        num_records: Micro-batches, steps, events or ids in it.
        payload_size: Bytes after the header.
        raw_size: Bytes once decompressed.
        offset: Where the frame starts in its file.
        first_step: Lowest optimizer step in it.
        last_step: Highest optimizer step in it.
        payload_crc: CRC-32 of the payload.
    """

    version: int
    kind: int
    codec: int
    attempt: int
    rank: int
    num_records: int
    payload_size: int
    raw_size: int
    offset: int
    first_step: int
    last_step: int
    payload_crc: int

    @property
    def end(self) -> int:
        """Offset of the byte after the frame."""
        return self.offset + HEADER_SIZE + self.payload_size


class Block(NamedTuple):
    """What goes into one frame, before compression. `parts` joined are the raw bytes."""

    kind: int
    num_records: int
    first_step: int
    last_step: int
    parts: Sequence[bytes]


def pack_frame(block: Block, *, attempt: int, rank: int, offset: int) -> bytes:
    """The bytes of a frame that will start at `offset`; ValueError if the block is over the format's bounds."""
    raw_size = sum(map(len, block.parts))
    codec, payload = CODEC_DEFLATE, deflate(block.parts)
    if len(payload) >= raw_size:
        codec, payload = CODEC_STORED, b"".join(block.parts)
    if not 0 < raw_size <= MAX_RAW or len(payload) > MAX_PAYLOAD:
        raise ValueError(
            f"a block of {raw_size} bytes, {len(payload)} compressed, does not fit a frame: "
            f"at most {MAX_RAW} and {MAX_PAYLOAD}, and not empty"
        )
    fields = _FIELDS.pack(
        MAGIC, FORMAT_VERSION, block.kind, codec, 0, attempt, rank, block.num_records,
        len(payload), raw_size, offset, block.first_step, block.last_step, zlib.crc32(payload),
    )  # fmt: skip
    return b"".join((fields, _CHECK.pack(zlib.crc32(fields)), payload))


def parse_header(data: bytes, offset: int) -> FrameHeader | None:
    """The header at `offset` whose first 56 bytes are `data`; None if these are no header, or one from elsewhere."""
    if len(data) < HEADER_SIZE or not data.startswith(MAGIC):
        return None
    fields = data[: _FIELDS.size]
    if zlib.crc32(fields) != _CHECK.unpack_from(data, _FIELDS.size)[0]:
        return None
    _, version, kind, codec, _, attempt, rank, num_records, payload, raw, place, first, last, crc = _FIELDS.unpack(
        fields
    )
    if place != offset or not 0 < payload <= MAX_PAYLOAD or not 0 < raw <= MAX_RAW:
        return None
    return FrameHeader(version, kind, codec, attempt, rank, num_records, payload, raw, place, first, last, crc)


def deflate(parts: Sequence[bytes]) -> bytes:
    """A raw deflate stream of the parts, each long one with a Huffman table of its own.

    Run-length strategy and a table a byte plane: 6.9 bytes a row record and 1.1 us a micro-batch of 8 rows with random
    losses and row ids; one stream at level 1: 7.5 and 0.8; level 1 with a table a plane: 7.0 and 1.4; level 6: 6.9 and
    1.8 (benchmarks/journal.py). Repeated patterns that only a search would find hardly occur: slopes are differences.
    """
    packer = zlib.compressobj(1, zlib.DEFLATED, -15, 8, zlib.Z_RLE)
    out: list[bytes] = []
    waiting = 0
    for part in parts:
        if waiting and len(part) >= _OWN_TABLE_BYTES:
            out.append(packer.flush(zlib.Z_BLOCK))
            waiting = 0
        out.append(packer.compress(part))
        waiting += len(part)
        if waiting >= _OWN_TABLE_BYTES:
            out.append(packer.flush(zlib.Z_BLOCK))
            waiting = 0
    out.append(packer.flush())
    return b"".join(out)


def inflate(header: FrameHeader, payload: bytes) -> bytes | None:
    """The raw bytes of a payload whose checksum was right; None if the codec is unknown or the length is not exact."""
    if header.codec == CODEC_STORED:
        return payload if len(payload) == header.raw_size else None
    if header.codec != CODEC_DEFLATE:
        return None
    unpacker = zlib.decompressobj(-15)
    try:
        raw = unpacker.decompress(payload, header.raw_size)
        # At the exact length the end mark may still be unread; a byte more than announced is one too many.
        if len(raw) != header.raw_size or (not unpacker.eof and unpacker.decompress(unpacker.unconsumed_tail, 1)):
            return None
    except zlib.error:
        return None
    return raw if unpacker.eof and not unpacker.unused_data else None
