"""Makes the hostile logs of this folder: one function each, whose name is that of its line in README.md.

    python tests/format/attacks/make.py FOLDER [NAME]...

Each gets an empty folder, makes a log in it, and gives the path that is to be opened. Checksums are right throughout:
whoever means harm computes them too.
"""

import json
import os
import shutil
import struct
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np

from trimtab.log import records
from trimtab.log.frames import MAGIC
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import list_parts
from trimtab.log.planes import encode_ints
from trimtab.log.sealing import seal
from trimtab.values import Event, MicroBatch, RowIds, StepRow

ROWS, STEPS, EVENTS, IDS = 2, 3, 4, 5
HEADER = {"version": 1, "run_id": "a", "backend": "torch", "world_size": 1, "created": 1.0}

ATTACKS: dict[str, Callable[[Path], Path]] = {}


def attack(make: Callable[[Path], Path]) -> Callable[[Path], Path]:
    ATTACKS[make.__name__] = make
    return make


# ------------------------------------------------------------------------------------------------------------- tools


def run_json(folder: Path, **fields: object) -> Path:
    (folder / "run.json").write_text(json.dumps(HEADER | fields))
    return folder


def frame(payload: bytes, *, kind: int, offset: int = 0, raw_size: int | None = None, codec: int = 0) -> bytes:
    """A frame whose two checksums are right, whatever it claims."""
    raw_size = len(payload) if raw_size is None else raw_size
    fields = struct.pack(
        "<4sBBBBHHIIIQqqI", MAGIC, 1, kind, codec, 0, 1, 0, 1, len(payload), raw_size, offset, 1, 1, zlib.crc32(payload)
    )
    return fields + struct.pack("<I", zlib.crc32(fields)) + payload


def squeezed(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def journal_of(folder: Path, payloads: list[bytes], *, kind: int, raw_size: int | None = None, codec: int = 0) -> Path:
    run_json(folder)
    with (folder / "rank-00000.journal").open("wb") as file:
        for payload in payloads:
            file.write(frame(payload, kind=kind, offset=file.tell(), raw_size=raw_size, codec=codec))
    return folder


def column(*values: int) -> bytes:
    return b"".join(encode_ints(np.array(values, np.int64)))


def sealed(folder: Path) -> Path:
    """A good run of 20 steps with one sealed part; gives the segment."""
    run_json(folder)
    writer = JournalWriter(folder / "rank-00000.000001.journal")
    for step in range(1, 21):
        for blocks, _ in (
            records.row_blocks([MicroBatch(step, 0, [step, step + 100], [1.0, 2.0], [3, 4])]),
            records.step_blocks([StepRow(step, 1.5, 0.5, 1e-3)]),
            records.event_blocks([Event("e", step, float(step), {"loss": 0.5})]),
            records.id_blocks([RowIds([step], names=[f"row {step}"])]),
        ):
            for block in blocks:
                writer.append(block)
    writer.close()
    for _ in seal(folder, list_parts(folder)[0]):
        pass
    return folder / "segments" / "rank-00000.000001"


def info_of(segment: Path) -> dict:
    return json.loads((segment / "segment.json").read_bytes())


def sign(segment: Path, info: dict) -> None:
    rest = json.dumps({name: value for name, value in info.items() if name != "crc32"})[1:].encode()
    (segment / "segment.json").write_bytes(b'{"crc32": "%08x",\n' % zlib.crc32(rest) + rest)


def list_again(segment: Path, name: str) -> None:
    """Signs a file that was exchanged as if the recorder had written it."""
    data = (segment / name).read_bytes()
    info = info_of(segment)
    groups, rest, place = [], b"", 0
    found = duckdb.execute(
        "select any_value(row_group_num_rows), min(coalesce(dictionary_page_offset, data_page_offset)), "
        "max(coalesce(dictionary_page_offset, data_page_offset) + total_compressed_size) from parquet_metadata(?) "
        "group by row_group_id order by row_group_id",
        [str(segment / name)],
    ).fetchall()
    for num_records, start, end in found:
        rest += data[place:start]
        groups.append(
            {
                "offset": start, "size_bytes": end - start, "crc": zlib.crc32(data[start:end]),
                "num_records": num_records, "first_step": 1, "last_step": 20,
            }
        )  # fmt: skip
        place = end
    info["files"][name] = {"size_bytes": len(data), "rest_crc": zlib.crc32(rest + data[place:]), "groups": groups}
    sign(segment, info)


def other_parquet(folder: Path, name: str, query: str, options: str = "") -> Path:
    segment = sealed(folder)
    duckdb.execute(f"copy ({query}) to '{segment / name}' (format parquet, compression zstd{options})")
    list_again(segment, name)
    return folder


def all_rows(**columns: str) -> str:
    """A query of one row record with the columns of rows.parquet, some of them exchanged."""
    usual = {
        "attempt": "1::integer", "step": "1::bigint", "micro": "0::integer", "rank": "0::integer", "row": "7::bigint",
        "loss_sum": "1::float", "num_tokens": "1::integer", "finite": "true", "verdict": "'normal'", "keep": "true",
        "loss_sum_nan": "null::integer",
    }  # fmt: skip
    return "select " + ", ".join(f"{sql} as {name}" for name, sql in (usual | columns).items())


# ---------------------------------------------------------------------------------------------------------- journals


@attack
def journal_of_no_bytes(folder: Path) -> Path:
    run_json(folder)
    (folder / "rank-00000.journal").touch()
    return folder


@attack
def journal_is_a_pipe(folder: Path) -> Path:
    run_json(folder)
    os.mkfifo(folder / "rank-00000.journal")
    return folder


@attack
def journal_bomb_that_lies(folder: Path) -> Path:
    return journal_of(folder, [squeezed(bytes(48 << 20))], kind=ROWS, raw_size=1000, codec=1)


@attack
def journal_bomb_of_rows(folder: Path) -> Path:
    payload = struct.pack("<II", 1, 2**32 - 1) + column(0) * 7
    return journal_of(folder, [payload], kind=ROWS)


@attack
def journal_bomb_of_steps(folder: Path) -> Path:
    ints = [column(1)] * 6
    floats = [b"\x04" + column(0)] * 5
    payload = struct.pack("<I", 1 << 19) + b"".join(ints + floats)
    return journal_of(folder, [payload] * 1000, kind=STEPS)


@attack
def journal_bomb_of_events(folder: Path) -> Path:
    events = b",".join([b'{"kind":"e","step":1,"time":1,"facts":{}}'] * (60 << 14))
    payload = squeezed(b"[" + events + b"]")
    return journal_of(folder, [payload] * 20, kind=EVENTS, raw_size=len(events) + 2, codec=1)


@attack
def journal_bomb_of_many_events(folder: Path) -> Path:
    events = b",".join([b'{"kind":"e","step":1,"time":1,"facts":{}}'] * (15 << 14))
    payload = squeezed(b"[" + events + b"]")
    return journal_of(folder, [payload] * 200, kind=EVENTS, raw_size=len(events) + 2, codec=1)


@attack
def journal_bomb_of_names(folder: Path) -> Path:
    num_ids = 4_000
    raw = struct.pack("<I", num_ids) + column(1) + column(-1) + column(2) + column(0) + column(4096)
    raw += b"x" * 4096 * num_ids
    return journal_of(folder, [squeezed(raw)] * 200, kind=IDS, raw_size=len(raw), codec=1)


@attack
def journal_bomb_of_names_in_one(folder: Path) -> Path:
    num_ids = 15_000
    raw = struct.pack("<I", num_ids) + column(1) + column(-1) + column(2) + column(0) + column(4096)
    raw += b"x" * 4096 * num_ids
    return journal_of(folder, [squeezed(raw)], kind=IDS, raw_size=len(raw), codec=1)


@attack
def journal_with_numbers_that_json_lacks(folder: Path) -> Path:
    event = '[{"kind":"e","step":1,"time":1,"facts":{"loss":%s}}]'
    payloads = [(event % text).encode() for text in ("NaN", "Infinity", "1e999", "9" * 5000, "0.5")]
    return journal_of(folder, payloads, kind=EVENTS)


@attack
def journal_with_deep_json(folder: Path) -> Path:
    return journal_of(folder, [b"[" * 1_000_000, b'[{"kind":' * 100_000], kind=EVENTS)


@attack
def journal_that_talks_to_the_terminal(folder: Path) -> Path:
    run_json(folder)
    writer = JournalWriter(folder / "rank-00000.journal")
    nasty = "\x1b]0;owned\x07\x1b[2J\u202egnp.exe\x00\ud800</script>"
    for blocks, _ in (
        records.row_blocks([MicroBatch(1, 0, [1], [1.0], [1])]),
        records.event_blocks([Event(nasty, 1, 1.0, {nasty: nasty})]),
        records.id_blocks([RowIds([1], names=[nasty])]),
    ):
        for block in blocks:
            writer.append(block)
    writer.close()
    return folder


# ---------------------------------------------------------------------------------------------------------- run.json


def one_row(folder: Path) -> Path:
    writer = JournalWriter(folder / "rank-00000.journal")
    writer.append(records.row_blocks([MicroBatch(1, 0, [1], [1.0], [1])])[0][0])
    writer.close()
    return folder


@attack
def header_that_climbs(folder: Path) -> Path:
    return one_row(run_json(folder, run_id="../../etc", out="/etc/passwd", experiment="../.."))


@attack
def header_of_impossible_numbers(folder: Path) -> Path:
    return one_row(run_json(folder, world_size=10**18, num_rows=-1, created=1e308, batch_size="8"))


@attack
def header_that_is_deep(folder: Path) -> Path:
    (folder / "run.json").write_bytes(b'{"a":' * 200_000)
    return one_row(folder)


@attack
def header_with_nan(folder: Path) -> Path:
    (folder / "run.json").write_bytes(b'{"version": 1, "run_id": "a", "backend": "torch", "created": NaN}')
    return one_row(folder)


@attack
def header_is_a_pipe(folder: Path) -> Path:
    os.mkfifo(folder / "run.json")
    return one_row(folder)


@attack
def header_is_endless(folder: Path) -> Path:
    (folder / "run.json").symlink_to("/dev/zero")
    return one_row(folder)


# ---------------------------------------------------------------------------------------------------------- segments


@attack
def segment_that_names_a_file_elsewhere(folder: Path) -> Path:
    segment = sealed(folder)
    info = info_of(segment)
    info["files"]["/etc/passwd"] = info["files"].pop("rows.parquet")
    sign(segment, info)
    return folder


@attack
def segment_that_climbs(folder: Path) -> Path:
    segment = sealed(folder)
    shutil.copy(segment / "rows.parquet", folder / "rows.parquet")
    info = info_of(segment)
    info["files"]["../../rows.parquet"] = info["files"].pop("rows.parquet")
    sign(segment, info)
    return folder


@attack
def segment_file_is_a_link(folder: Path) -> Path:
    segment = sealed(folder)
    (segment / "rows.parquet").rename(folder / "outside.parquet")
    (segment / "rows.parquet").symlink_to(folder / "outside.parquet")
    return folder


@attack
def segment_is_a_link(folder: Path) -> Path:
    segment = sealed(folder)
    segment.rename(folder / "outside")
    segment.symlink_to(folder / "outside")
    return folder


@attack
def segments_are_a_link(folder: Path) -> Path:
    sealed(folder)
    (folder / "segments").rename(folder / "outside")
    (folder / "segments").symlink_to(folder / "outside")
    return folder


@attack
def segment_file_is_a_pipe(folder: Path) -> Path:
    segment = sealed(folder)
    for name in ("rows.parquet", "events.jsonl"):
        (segment / name).unlink()
        os.mkfifo(segment / name)
    return folder


@attack
def segment_list_is_a_pipe(folder: Path) -> Path:
    segment = sealed(folder)
    (segment / "segment.json").unlink()
    os.mkfifo(segment / "segment.json")
    return folder


@attack
def segment_list_is_deep(folder: Path) -> Path:
    segment = sealed(folder)
    rest = b'"a":' + b"[" * 1_000_000
    (segment / "segment.json").write_bytes(b'{"crc32": "%08x",\n' % zlib.crc32(rest) + rest)
    return folder


@attack
def segment_that_stands_twice(folder: Path) -> Path:
    segment = sealed(folder)
    shutil.copytree(segment, segment.with_name("rank-00000.000002"))
    shutil.copytree(segment, segment.with_name("rank-00001.000001"))
    return folder


@attack
def segment_of_another_run(folder: Path) -> Path:
    segment = sealed(folder)
    sign(segment, info_of(segment) | {"run_id": "b"})
    return folder


@attack
def segment_of_huge_counts(folder: Path) -> Path:
    segment = sealed(folder)
    info = info_of(segment)
    for file in info["files"].values():
        file["groups"][0]["num_records"] = 2**62
    sign(segment, info)
    return folder


@attack
def segment_number_beyond_all(folder: Path) -> Path:
    segment = sealed(folder)
    sign(segment, info_of(segment) | {"number": 999_999})
    segment.rename(segment.with_name("rank-00000.999999"))
    return folder


@attack
def segment_events_with_nan(folder: Path) -> Path:
    segment = sealed(folder)
    line = b'{"attempt":1,"kind":"e","step":1,"time":NaN,"facts":{}}\n'
    (segment / "events.jsonl").write_bytes(line)
    info = info_of(segment)
    group = {"offset": 0, "size_bytes": len(line), "crc": zlib.crc32(line), "num_records": 1}
    info["files"]["events.jsonl"] = {
        "size_bytes": len(line), "rest_crc": 0, "groups": [group | {"first_step": 1, "last_step": 1}],
    }  # fmt: skip
    sign(segment, info)
    return folder


# ----------------------------------------------------------------------------------------------------------- Parquet


@attack
def parquet_of_other_columns(folder: Path) -> Path:
    return other_parquet(folder, "rows.parquet", "select 1 as a, 2 as b")


@attack
def parquet_of_other_types(folder: Path) -> Path:
    return other_parquet(folder, "rows.parquet", all_rows(row="'7'"))


@attack
def parquet_that_is_nested(folder: Path) -> Path:
    return other_parquet(folder, "rows.parquet", all_rows(row="{'deep': [{'er': 7}]}"))


@attack
def parquet_with_missing_values(folder: Path) -> Path:
    return other_parquet(folder, "rows.parquet", all_rows(loss_sum="null::float"))


@attack
def parquet_of_impossible_values(folder: Path) -> Path:
    return other_parquet(folder, "rows.parquet", all_rows(verdict="'none of yours'"))


@attack
def parquet_of_negative_tokens(folder: Path) -> Path:
    return other_parquet(folder, "rows.parquet", all_rows(num_tokens="-1::integer"))


@attack
def parquet_bomb_of_rows(folder: Path) -> Path:
    # 4 KB for a million records: constant columns take no room
    query = f"{all_rows()} from range({8 << 17})"
    return other_parquet(folder, "rows.parquet", query, f", row_group_size {1 << 17}")


@attack
def parquet_of_one_huge_group(folder: Path) -> Path:
    return other_parquet(folder, "rows.parquet", f"{all_rows()} from range(1000000)", ", row_group_size 1000000")


@attack
def parquet_bomb_of_names(folder: Path) -> Path:
    query = (
        "select i::bigint as row, null::bigint as table_row, null::bigint as digest, repeat('x', 4000000) as name "
        "from range(40) t(i)"
    )
    return other_parquet(folder, "ids.parquet", query, ", row_group_size 2048")


@attack
def parquet_that_is_a_text(folder: Path) -> Path:
    segment = sealed(folder)
    data = b"PAR1 not really\n" * 20
    (segment / "rows.parquet").write_bytes(data)
    info = info_of(segment)
    group = {"offset": 4, "size_bytes": 100, "crc": zlib.crc32(data[4:104]), "num_records": 40}
    info["files"]["rows.parquet"] = {
        "size_bytes": len(data), "rest_crc": zlib.crc32(data[:4] + data[104:]),
        "groups": [group | {"first_step": 1, "last_step": 20}],
    }  # fmt: skip
    sign(segment, info)
    return folder


def with_footer(folder: Path, footer: bytes) -> Path:
    segment = sealed(folder)
    data = b"PAR1" + bytes(40) + footer + struct.pack("<I", len(footer)) + b"PAR1"
    (segment / "rows.parquet").write_bytes(data)
    info = info_of(segment)
    group = {"offset": 4, "size_bytes": 40, "crc": zlib.crc32(bytes(40)), "num_records": 40}
    info["files"]["rows.parquet"] = {
        "size_bytes": len(data), "rest_crc": zlib.crc32(data[:4] + data[44:]),
        "groups": [group | {"first_step": 1, "last_step": 20}],
    }  # fmt: skip
    sign(segment, info)
    return folder


@attack
def parquet_whose_index_claims_two_billion_columns(folder: Path) -> Path:
    return with_footer(folder, b"\x15\x02\x19\xfc\xff\xff\xff\xff\x07" + bytes(100))


@attack
def parquet_whose_index_is_deep(folder: Path) -> Path:
    return with_footer(folder, b"\x15\x02" + b"\x1c" * 1_000_000)


@attack
def parquet_with_pages_that_lie(folder: Path) -> Path:
    # the sizes in the header of the first page are made as large as five bytes can say
    segment = sealed(folder)
    data = bytearray((segment / "rows.parquet").read_bytes())
    start = info_of(segment)["files"]["rows.parquet"]["groups"][0]["offset"]
    data[start : start + 12] = b"\x15\x04\x15\xfe\xff\xff\xff\x0f\x15\xfe\xff\xff"
    (segment / "rows.parquet").write_bytes(data)
    list_again(segment, "rows.parquet")
    return folder


# --------------------------------------------------------------------------------------------------- rewind.jsonl


def lines(folder: Path, *texts: bytes) -> Path:
    good = b'{"kind": "batch", "step": 1, "micro": 0, "rows": [1], "row_loss": [1.0], "row_tokens": [2]}'
    path = folder / "rewind.jsonl"
    path.write_bytes(b"\n".join((good, *texts, b"")))
    return path


@attack
def lines_that_are_deep(folder: Path) -> Path:
    return lines(folder, b"[" * 1_000_000, b'{"kind":' * 200_000)


@attack
def lines_of_impossible_numbers(folder: Path) -> Path:
    line = b'{"kind": "batch", "step": %s, "micro": 0, "rows": [%s], "row_loss": [%s], "row_tokens": [%s]}'
    return lines(
        folder,
        line % (b"9" * 5000, b"1", b"1.0", b"2"),
        line % (b"2", b"99999999999999999999", b"1.0", b"2"),
        line % (b"2", b"1", b"1e999", b"2"),
        line % (b"2", b"1", b"1.0", b"-2"),
        line % (b"true", b"1", b"1.0", b"2"),
    )


@attack
def line_without_an_end(folder: Path) -> Path:
    return lines(folder, b'{"kind": "batch", "rows": [' + b"1," * (40 << 20))


def main() -> None:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp(prefix="trimtab-attacks-"))
    for name in sys.argv[2:] or ATTACKS:
        folder = out / name
        folder.mkdir(parents=True)
        sys.stdout.write(f"{ATTACKS[name](folder)}\n")


if __name__ == "__main__":
    main()
