"""Logs of released versions stay readable, and the format page describes them: a second reader from that page."""

import json
import math
import random
import struct
import zlib
from pathlib import Path

import pytest

from trimtab.log.reader import open_log
from trimtab.values import Event

GOLDEN = Path(__file__).with_name("golden")
VERSION_1 = GOLDEN / "version-1"


def spelled(loss: float) -> float | str:
    return "nan" if math.isnan(loss) else loss


# What was written, by hand: attempt, step, micro, row, loss sum, tokens, reason, keep.
FIRST_ROWS = [
    (1, 1, 0, 17, 45.0, 50, 3, True),
    (1, 1, 0, -(2**63), 2700.0, 300, 3, True),
    (1, 1, 0, 2**63 - 1, "nan", 1, 3, True),
    (1, 1, 1, 17, math.inf, 2**31 - 1, 2, False),
    (1, 1, 1, 17, 0.0, 0, 2, False),
]
BULK_ROWS = [
    (1, 2 + i // 2, i % 2, (k * 37 + i * 11) % 1000, (k * 53 + i * 7) % 64 / 8, (k * 5 + i) % 250 + 50, 7, True)
    for i in range(40)
    for k in range(8)
]
CHANCE = random.Random(1)
NOISE = [(CHANCE.getrandbits(64), CHANCE.getrandbits(32), CHANCE.getrandbits(31)) for _ in range(300)]
NOISY_ROWS = [  # does not compress: stored as it is
    (2, 3, 0, row - 2**63, spelled(struct.unpack("<f", struct.pack("<I", bits))[0]), tokens, 7, True)
    for row, bits, tokens in NOISE
]
LAST_ROW = (2, 2, 0, 5, 1.5, 2, 7, True)
ROWS = [*FIRST_ROWS, *BULK_ROWS, *NOISY_ROWS, LAST_ROW]


def test_version_1_is_read() -> None:
    log = open_log(VERSION_1)

    found = [
        (attempt, step, micro, row, spelled(loss), tokens, reason, keep)
        for block in log.row_blocks()
        for attempt, step, micro, _, row, loss, tokens, reason, keep in zip(*(c.tolist() for c in block), strict=True)
    ]
    assert found == ROWS
    assert log.header.run_id == "golden-1"
    assert (log.header.num_rows, log.header.created, log.header.task) == (1000, 1764450000.0, "causal-lm")
    assert log.event_list() == [Event("evaluation", 2, 1764450001.5, {"loss": "nan", "name": "eval"})]
    assert log.notices() == []
    steps = log.step_columns()
    assert steps.step.tolist() == [1, 2]
    assert [spelled(loss) for loss in steps.loss.tolist()] == [7.5, "nan"]
    assert steps.grad_norm.tolist()[1] == math.inf
    assert (steps.has_grad_norm.tolist(), steps.has_lr.tolist()) == ([False, True], [False, True])
    assert (steps.lr[1], steps.reason.tolist(), steps.clipped.tolist()) == (1e-3, [0, 3], [-1, 1])
    assert (steps.loss_scale[1], steps.wall_s[1]) == (65536.0, 0.25)
    assert (steps.num_tokens[1], steps.num_skipped_micros[1], steps.num_skipped_tokens[1]) == (640, 1, 300)


# --------------------------------------------------------------- a second reader: FORMAT.md, and nothing of src/trimtab


def second_frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Kind, attempt and raw payload of each frame."""
    frames, place = [], 0
    while place < len(data):
        magic, version, kind, codec, _, attempt, rank, _, size, raw_size, offset, _, _, crc, head_crc = (
            struct.unpack_from("<4sBBBBHHIIIQqqII", data, place)
        )
        payload = data[place + 56 : place + 56 + size]
        assert (magic, version, rank, offset) == (b"\xf5TRM", 1, 0, place)
        assert zlib.crc32(data[place : place + 52]) == head_crc
        assert zlib.crc32(payload) == crc
        raw = zlib.decompress(payload, -15) if codec == 1 else payload
        assert len(raw) == raw_size
        frames.append((kind, attempt, raw))
        place += 56 + size
    return frames


def second_column(raw: bytes, place: int, count: int) -> tuple[list[int], int]:
    mode, width, base = struct.unpack_from("<BBq", raw, place)
    place += 10
    first = 0
    if mode == 1:
        (first,) = struct.unpack_from("<q", raw, place)
        place += 8
        count -= 1
    numbers = [
        sum(raw[place + plane * count + entry] << 8 * plane for plane in range(width)) + base for entry in range(count)
    ]
    if mode == 1:
        values = [first]
        for number in numbers:
            values.append(values[-1] + number)
        numbers = values
    return [(value + 2**63) % 2**64 - 2**63 for value in numbers], place + width * count


def second_rows(raw: bytes, attempt: int) -> list[tuple]:
    num_micros, num_rows = struct.unpack_from("<II", raw)
    place, columns = 8, []
    for count in [num_micros] * 4 + [num_rows] * 3:
        column, place = second_column(raw, place, count)
        columns.append(column)
    assert place == len(raw)
    entries = iter(zip(*columns[4:], strict=True))
    return [
        (
            attempt,
            step,
            micro,
            row,
            spelled(struct.unpack("<f", struct.pack("<i", bits))[0]),
            tokens,
            flags & 127,
            flags > 127,
        )
        for step, micro, num_rows, flags in zip(*columns[:4], strict=True)
        for row, tokens, bits in (next(entries) for _ in range(num_rows))
    ]


def test_a_reader_written_from_the_format_page_reads_the_same() -> None:
    frames = second_frames((VERSION_1 / "rank-00000.journal").read_bytes())

    assert [kind for kind, _, _ in frames] == [1, 2, 2, 3, 4, 1, 2, 2, 2]
    assert [row for kind, attempt, raw in frames if kind == 2 for row in second_rows(raw, attempt)] == ROWS
    assert [json.loads(raw)["run_id"] for kind, _, raw in frames if kind == 1] == ["golden-1"] * 2
    assert json.loads(frames[4][2])[0]["facts"] == {"loss": "nan", "name": "eval"}


def test_both_codecs_are_in_the_golden_journal() -> None:
    data = (VERSION_1 / "rank-00000.journal").read_bytes()
    places = [place for place in range(len(data)) if data.startswith(b"\xf5TRM", place)]

    assert {data[place + 6] for place in places} == {0, 1}


# ------------------------------------------------------------------------------------------- sealed and closed parts


SEALED = GOLDEN / "version-1-sealed"
PARTS = [(0, 1, 1, 3), (0, 1, 4, 5), (0, 2, 5, 6), (1, 1, 1, 5)]  # rank, attempt, first and last step, in order


def bits(loss: float) -> int:
    return struct.unpack("<I", struct.pack("<f", loss))[0]


def sealed_rows(rank: int, attempt: int, first: int, last: int) -> list[tuple]:
    """Attempt, step, rank, row, bits of the loss sum, tokens, keep, as they were put."""
    rows = []
    for step in range(first, last + 1):
        losses = [bits(step / 4), bits(rank + 0.5), bits(0.0)]
        if step == 2:
            losses = [0x7FC00000, 0xFFC00000, 0x7F800000]
        entries = zip((step * 10 + rank, step * 10 + rank + 2, -step), losses, (10 + step, 20, 5), strict=True)
        rows += [(attempt, step, rank, row, loss, tokens, step != 2) for row, loss, tokens in entries]
    return rows


def test_sealed_and_closed_parts_of_version_1_are_read() -> None:
    log = open_log(SEALED)

    found = [
        (attempt, step, rank, row, loss, tokens, keep)
        for block in log.row_blocks()
        for attempt, step, rank, row, loss, tokens, keep in zip(
            *(c.tolist() for c in (block.attempt, block.step, block.rank, block.row)),
            block.loss_sum.view("uint32").tolist(),
            *(c.tolist() for c in (block.num_tokens, block.keep)),
            strict=True,
        )
    ]
    assert found == [row for part in PARTS for row in sealed_rows(*part)]
    assert [(block.micro.tolist(), set(block.reason.tolist())) for block in log.row_blocks()][2] == ([0] * 6, {7})
    assert (log.header.run_id, log.header.world_size, log.notices()) == ("golden-1-sealed", 2, [])

    steps = log.step_columns()
    expected = [(attempt, rank, step) for rank, attempt, first, last in PARTS for step in range(first, last + 1)]
    assert list(zip(steps.attempt.tolist(), steps.rank.tolist(), steps.step.tolist(), strict=True)) == expected
    for place, (_, _, step) in enumerate(expected):
        assert steps.loss[place] == step / 2
        assert steps.has_grad_norm[place] == (step != 1)
        assert math.isnan(steps.grad_norm[place]) if step < 3 else steps.grad_norm[place] == step / 8
        assert (steps.lr[place], steps.has_lr[place]) == (1e-3 * step, True)
        assert steps.clipped[place] == (1 if step == 3 else -1)
        assert math.isnan(steps.loss_scale[place]) if step < 3 else steps.loss_scale[place] == 65536.0
        assert math.isnan(steps.wall_s[place]) if step == 1 else steps.wall_s[place] == 0.25
        assert steps.num_tokens[place] == (-1 if step == 1 else 35 + step)

    assert [(event.step, event.time, event.facts) for event in log.event_list()] == [
        (3, 1764450003.0, {"loss": "nan", "rank": 0}),
        (5, 1764450005.0, {"loss": "nan", "rank": 0}),
        (5, 1764450005.125, {"loss": "nan", "rank": 1}),
        (6, 1764450006.0, {"loss": "nan", "rank": 0}),
    ]
    ids = log.id_columns()
    assert ids.row.tolist() == [10, 11, 12, 13, 40, 42, 50, 52]
    assert ids.table_row.tolist() == [5, 5, -1, -1, 5, -1, 5, -1]
    assert ids.has_digest.tolist() == [False, False, True, True, False, True, False, True]
    assert set(ids.digest[ids.has_digest].tolist()) == {-(2**63)}
    assert ids.name.tolist() == ["row 1", "row 1", *["n\u00e9\x00"] * 2, "row 4", "n\u00e9\x00", "row 5", "n\u00e9\x00"]


@pytest.mark.parametrize(("rank", "first", "last"), [(0, 1, 3), (1, 1, 5)])
def test_another_reader_of_parquet_and_the_format_page_find_the_same_in_a_segment(
    rank: int, first: int, last: int
) -> None:
    import pyarrow.parquet

    segment = SEALED / "segments" / f"rank-0000{rank}.000001"
    text = (segment / "segment.json").read_bytes()
    info = json.loads(text)

    # segment.json: its first line is the checksum of all others; each file is groups, and a rest
    assert int(info["crc32"], 16) == zlib.crc32(text.partition(b"\n")[2])
    assert (info["version"], info["rank"], info["number"], info["run_id"]) == (1, rank, 1, "golden-1-sealed")
    for name, file in info["files"].items():
        data, rest, place = (segment / name).read_bytes(), b"", 0
        assert len(data) == file["size_bytes"]
        for group in file["groups"]:
            rest += data[place : group["offset"]]
            place = group["offset"] + group["size_bytes"]
            assert zlib.crc32(data[group["offset"] : place]) == group["crc"]
        assert zlib.crc32(rest + data[place:]) == file["rest_crc"]

    # rows: a NaN whose bits are not the usual ones has them beside
    rows = pyarrow.parquet.read_table(segment / "rows.parquet").to_pylist()
    assert [
        (
            row["attempt"], row["step"], row["rank"], row["row"],
            bits(row["loss_sum"]) if row["loss_sum_nan"] is None else row["loss_sum_nan"] % 2**32,
            row["num_tokens"], row["keep"],
        )
        for row in rows
    ] == sealed_rows(rank, 1, first, last)  # fmt: skip
    assert [row["verdict"] for row in rows[:4]] == ["normal"] * 3 + ["nonfinite"]
    assert [row["finite"] for row in rows[:6]] == [True] * 3 + [False] * 3
    steps = pyarrow.parquet.read_table(segment / "steps.parquet").to_pylist()
    assert [step["grad_norm"] is None for step in steps[:3]] == [True, False, False]
    assert [step["num_tokens"] for step in steps[:3]] == [None, 37, 38]
    names = pyarrow.parquet.read_table(segment / "ids.parquet").to_pylist()
    assert [(entry["table_row"], entry["digest"], entry["name"]) for entry in names] == [
        (5, None, "row 1"), (None, -(2**63), "n\u00e9\x00"),
    ]  # fmt: skip
    (event,) = map(json.loads, (segment / "events.jsonl").read_text().splitlines())
    assert (event["attempt"], event["kind"], event["facts"]) == (1, "evaluation", {"loss": "nan", "rank": rank})


@pytest.mark.parametrize(
    "folder", sorted(path for path in GOLDEN.iterdir() if path.is_dir()), ids=lambda path: path.name
)
def test_every_released_version_is_read_without_a_notice(folder: Path) -> None:
    log = open_log(folder)

    assert sum(block.num_records for block in log.row_blocks()) > 0
    assert log.notices() == []
