"""Files made to hurt: right checksums, wrong intentions. Memory and work stay bounded, and nothing wrong is read."""

import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trimtab.log.folder import RunFolder
from trimtab.log.frames import HEADER_SIZE, KIND_EVENTS, KIND_ROWS, KIND_STEPS, MAGIC
from trimtab.log.planes import encode_ints
from trimtab.log.reader import open_log
from trimtab.log.scan import Journal


def craft(
    payload: bytes, *, offset: int = 0, raw_size: int | None = None, payload_size: int | None = None,
    kind: int = KIND_ROWS, codec: int = 0, version: int = 1,
) -> bytes:  # fmt: skip
    """A frame whose two checksums are right, whatever it claims."""
    fields = struct.pack(
        "<4sBBBBHHIIIQqqI", MAGIC, version, kind, codec, 0, 1, 0, 1,
        len(payload) if payload_size is None else payload_size, len(payload) if raw_size is None else raw_size,
        offset, 1, 1, zlib.crc32(payload),
    )  # fmt: skip
    return fields + struct.pack("<I", zlib.crc32(fields)) + payload


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def peak_bytes_of_reading(folder: RunFolder, content: bytes) -> tuple[int, list[str]]:
    path = folder.path / "rank-00000.journal"
    path.write_bytes(content)
    tracemalloc.start()
    try:
        log = open_log(folder.path)
        assert [block for block in log.row_blocks() if block.num_records > 1_000_000] == []
        log.step_columns()
        log.event_list()
        lines = log.notices()
        return tracemalloc.get_traced_memory()[1], lines
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("payload_size", "raw_size"),
    [(2**32 - 1, 2**32 - 1), (16 << 20, 64 << 20), (16 << 20, 1), ((16 << 20) + 1, 10), (0, 0), (0, 10), (10, 0)],
)
def test_a_length_that_lies_takes_no_memory(run_folder: RunFolder, payload_size: int, raw_size: int) -> None:
    peak, lines = peak_bytes_of_reading(run_folder, craft(b"x" * 10, payload_size=payload_size, raw_size=raw_size))

    assert peak < 2 << 20
    assert len(lines) == 1


@pytest.mark.parametrize("kind", [KIND_ROWS, KIND_STEPS, KIND_EVENTS])
def test_a_zip_bomb_stops_at_the_length_that_it_announced(run_folder: RunFolder, kind: int) -> None:
    bomb = raw_deflate(bytes(48 << 20))

    peak, lines = peak_bytes_of_reading(run_folder, craft(bomb, raw_size=1000, codec=1, kind=kind))

    assert peak < 4 << 20
    assert len(lines) == 1
    assert "its compressed bytes are wrong or longer than it says" in lines[0]


def test_constant_columns_cannot_ask_for_more_rows_than_a_block_may_have(run_folder: RunFolder) -> None:
    columns = [encode_ints(np.zeros(1, np.int64))[0]] * 7
    payload = struct.pack("<II", 1, 2**32 - 1) + b"".join(columns)

    peak, lines = peak_bytes_of_reading(run_folder, craft(payload))

    assert peak < 2 << 20
    assert "4294967295 rows" in lines[0]


def test_a_file_full_of_magics_is_read_in_work_linear_in_its_size(tmp_path: Path) -> None:
    # Each candidate claims the largest payload there is: checking every one of them would be 16 MiB x 300,000.
    path = tmp_path / "j"
    path.write_bytes(MAGIC * 300_000)

    journal = Journal(path)
    journal.scan()

    assert journal.num_checked_bytes == 0
    assert "bytes" in journal.notices()[0]


def test_headers_that_claim_large_payloads_are_checked_up_to_a_bound_and_the_rest_is_left_out(tmp_path: Path) -> None:
    # given 4,000 headers with right checksums, each naming its own offset, over a payload that reaches to the end
    size = 4000 * HEADER_SIZE
    content = b"".join(
        craft(b"", offset=offset, payload_size=size - offset - HEADER_SIZE, raw_size=1)
        for offset in range(0, size - HEADER_SIZE, HEADER_SIZE)
    )
    path = tmp_path / "j"
    path.write_bytes(content.ljust(size, b"x"))

    # when it is read with little work to spare
    journal = Journal(path, spare_work=1 << 20)
    journal.scan()

    # then checksums cost about the file's size and the spare work, not 448 MB, and it is said
    assert journal.num_checked_bytes < size + (1 << 20) + size
    (line,) = journal.notices()
    assert line == f"j: damaged beyond repair: the rest from byte 0 on, {size} bytes, was left out"


def test_blocks_of_a_newer_writer_are_counted_and_the_others_read(
    run_folder: RunFolder, write_journal: Callable[..., Path], wrong_records: Callable[..., list[str]]
) -> None:
    path = write_journal(run_folder, first_step=1, num_blocks=1)
    with path.open("ab") as file:
        file.write(craft(b"a new kind", offset=path.stat().st_size, kind=9))
    with path.open("ab") as file:
        file.write(craft(b"a new version", offset=path.stat().st_size, version=2))
    write_journal(RunFolder(run_folder.path, run_folder.header, 2), first_step=3, num_blocks=1)

    log = open_log(run_folder.path)

    assert wrong_records(log) == []
    assert log.step_columns().step.tolist() == [1, 2, 3, 4]
    assert log.notices() == [
        "rank-00000.journal: 2 blocks were written by a newer trimtab (format version 2) and left out; "
        "upgrade trimtab to read them"
    ]


@pytest.mark.parametrize("kind", [KIND_ROWS, KIND_STEPS, KIND_EVENTS])
def test_noise_with_right_checksums_is_said_once_however_often_it_is_read(run_folder: RunFolder, kind: int) -> None:
    noise = np.random.default_rng(kind).bytes(500)
    (run_folder.path / "rank-00000.journal").write_bytes(craft(noise, kind=kind))
    log = open_log(run_folder.path)

    for _ in range(2):
        assert list(log.row_blocks()) == []
        assert log.step_columns().num_records == 0
        assert log.event_list() == []

    (line,) = log.notices()
    assert line.startswith("rank-00000.journal: the block at byte 0 does not hold together (")


def test_an_attempt_header_of_noise_is_said(run_folder: RunFolder) -> None:
    (run_folder.path / "rank-00000.journal").write_bytes(craft(b"{}{}", kind=1))

    assert open_log(run_folder.path).notices() == [
        "rank-00000.journal: the attempt header at byte 0: no JSON; left out"
    ]
