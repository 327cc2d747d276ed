"""Good journals, damaged in every way: never a wrong record, never an exception, always said where."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.log.folder import RunFolder
from trimtab.log.frames import HEADER_SIZE, MAGIC, parse_header
from trimtab.log.reader import Log, open_log

Write = Callable[..., Path]
Check = Callable[[Log], list[str]]


def frame_starts(data: bytes) -> list[int]:
    """Offsets of the frames of a good journal, by their own lengths."""
    starts, place = [], 0
    while place < len(data):
        header = parse_header(data[place : place + HEADER_SIZE], place)
        assert header is not None
        starts.append(place)
        place = header.end
    return starts


def steps_read(log: Log) -> list[int]:
    return log.step_columns().step.tolist()


def rows_read(log: Log) -> list[int]:
    return [row for block in log.row_blocks() for row in block.row.tolist()]


def test_a_good_journal_has_nothing_to_say(run_folder: RunFolder, write_journal: Write, wrong_records: Check) -> None:
    path = write_journal(run_folder, first_step=1, num_blocks=3)

    log = open_log(run_folder.path)

    assert wrong_records(log) == []
    assert steps_read(log) == [1, 2, 3, 4, 5, 6]
    assert len(rows_read(log)) == 18
    assert log.notices() == []
    assert log.size_bytes == path.stat().st_size


def test_a_file_cut_at_any_byte_of_its_last_blocks_is_read_up_to_there(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check
) -> None:
    path = write_journal(run_folder, first_step=1, num_blocks=2)
    data = path.read_bytes()
    starts = frame_starts(data)
    last_rows, last_steps, last_event = starts[-3:]

    for cut in range(last_rows, len(data)):
        path.write_bytes(data[:cut])
        log = open_log(run_folder.path)

        assert wrong_records(log) == []
        assert len(rows_read(log)) == (12 if cut >= last_steps else 6)
        assert steps_read(log) == ([1, 2, 3, 4] if cut >= last_event else [1, 2])
        if cut in starts:
            assert log.notices() == []
        else:
            torn = max(start for start in starts if start < cut)
            (line,) = log.notices()
            assert line.startswith(f"rank-00000.journal: the last write was cut off at byte {torn}: {cut - torn} bytes")


@pytest.mark.parametrize("num_zeros", [1, 55, 56, 57, 4096, 1_000_000])
def test_a_tail_of_zeros_is_said_and_the_rest_is_read(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check, num_zeros: int
) -> None:
    path = write_journal(run_folder, first_step=1, num_blocks=2)
    size = path.stat().st_size
    with path.open("ab") as file:
        file.write(bytes(num_zeros))

    log = open_log(run_folder.path)

    assert wrong_records(log) == []
    assert steps_read(log) == [1, 2, 3, 4]
    assert log.notices() == [
        f"rank-00000.journal: {num_zeros} zero bytes at the end, from byte {size} on: "
        "a write that never reached the disk"
    ]


def test_every_flipped_bit_costs_its_block_and_is_said(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check
) -> None:
    path = write_journal(run_folder, first_step=1, num_blocks=1)
    data = path.read_bytes()
    starts = [*frame_starts(data), len(data)]
    assert len(starts) == 5

    for bit in range(len(data) * 8):
        path.write_bytes(data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :])
        log = open_log(path)
        block = sum(start <= bit // 8 for start in starts) - 1

        assert wrong_records(log) == [], f"bit {bit}"
        num_read = (len(rows_read(log)), len(steps_read(log)), len(log.event_list()))
        assert num_read == tuple(0 if block == place else full for place, full in ((1, 6), (2, 2), (3, 1))), (
            f"bit {bit}"
        )
        (line,) = log.notices()
        place = re.search(r"byte (\d+)", line)
        assert place is not None, f"bit {bit}"
        assert int(place[1]) == starts[block], f"bit {bit}: {line}"


def test_damage_in_the_middle_names_the_place_and_what_was_lost(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check
) -> None:
    path = write_journal(run_folder, first_step=1, num_blocks=3)
    data = bytearray(path.read_bytes())
    starts = frame_starts(bytes(data))
    data[starts[4] + HEADER_SIZE + 3] ^= 0xFF

    path.write_bytes(data)
    log = open_log(run_folder.path)

    assert wrong_records(log) == []
    assert sorted({row // 1000 for row in rows_read(log)}) == [1, 2, 5, 6]
    assert steps_read(log) == [1, 2, 3, 4, 5, 6]
    assert log.notices() == [
        f"rank-00000.journal: damaged from byte {starts[4]} to byte {starts[5]}: "
        f"{starts[5] - starts[4]} bytes left out, 2 micro-batches of steps 3 to 4"
    ]


def test_a_piece_that_was_cut_out_costs_what_lay_behind_it_too_and_is_said(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check
) -> None:
    # What lies behind a hole stands at another offset than it names: it may belong elsewhere, and is not believed.
    path = write_journal(run_folder, first_step=1, num_blocks=3)
    data = path.read_bytes()
    starts = frame_starts(data)

    path.write_bytes(data[: starts[4]] + data[starts[5] :])
    log = open_log(run_folder.path)

    assert wrong_records(log) == []
    assert steps_read(log) == [1, 2]
    assert len(log.notices()) == 1
    assert f"damaged to the end, at byte {starts[4]}" in log.notices()[0]


def test_a_journal_inside_a_payload_is_no_record(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check
) -> None:
    # given a journal whose damaged middle is a copy of its own beginning
    path = write_journal(run_folder, first_step=1, num_blocks=3)
    data = path.read_bytes()
    starts = frame_starts(data)

    path.write_bytes(data[: starts[4]] + data[starts[1] : starts[4]] + b"x" + data[starts[4] :])

    assert steps_read(open_log(run_folder.path)) == [1, 2]


@pytest.mark.parametrize("cut", [1, 10, 55, 56, 57, 70])
def test_an_append_after_a_torn_tail_is_read(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check, cut: int
) -> None:
    # given an attempt that was killed in the middle of a write
    path = write_journal(run_folder, first_step=1, num_blocks=2)
    data = path.read_bytes()
    torn = frame_starts(data)[-3]
    path.write_bytes(data[: torn + cut])

    # when the run is continued
    write_journal(RunFolder(run_folder.path, run_folder.header, 2), first_step=2, num_blocks=1)

    # then both attempts are there, told apart, and the torn write is said
    log = open_log(run_folder.path)
    assert wrong_records(log) == []
    steps = log.step_columns()
    assert list(zip(steps.attempt.tolist(), steps.step.tolist(), strict=True)) == [(1, 1), (1, 2), (2, 2), (2, 3)]
    assert len(log.notices()) == 1
    assert f"a write that was cut off from byte {torn} to byte {torn + cut}: {cut} bytes left out" in log.notices()[0]


@pytest.mark.parametrize(
    "content",
    [b"", b"\x00", MAGIC, MAGIC * 5000, bytes(100_000), b'{"kind": "header"}\n', bytes(range(256)) * 40],
    ids=["empty", "zero", "magic", "magics", "zeros", "text", "bytes"],
)
def test_a_journal_of_something_else_is_said_and_raises_nothing(run_folder: RunFolder, content: bytes) -> None:
    (run_folder.path / "rank-00000.journal").write_bytes(content)

    log = open_log(run_folder.path)

    assert list(log.row_blocks()) == []
    assert not log.has_rows
    assert len(log.notices()) == (0 if content == b"" else 1)


def test_many_damaged_places_are_counted_and_not_listed_one_by_one(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check
) -> None:
    path = write_journal(run_folder, first_step=1, num_blocks=50)
    data = bytearray(path.read_bytes())
    starts = frame_starts(bytes(data))
    for start in starts[1::3]:
        data[start + HEADER_SIZE] ^= 0xFF

    path.write_bytes(data)
    log = open_log(run_folder.path)

    assert wrong_records(log) == []
    assert rows_read(log) == []
    assert len(steps_read(log)) == 100
    assert len(log.notices()) == 21
    assert log.notices()[-1] == "rank-00000.journal: 30 more damaged places"


def test_a_journal_of_another_run_is_left_out_and_said(
    run_folder: RunFolder, write_journal: Write, wrong_records: Check, tmp_path: Path
) -> None:
    from dataclasses import replace

    write_journal(run_folder, first_step=1, num_blocks=1)
    other = RunFolder(run_folder.path, replace(run_folder.header, run_id="b"), 1)
    write_journal(other, first_step=5, num_blocks=1, rank=1)

    log = open_log(run_folder.path)

    assert steps_read(log) == [1, 2]
    assert "rank-00001.journal: 4 blocks belong to another run and were left out" in log.notices()
