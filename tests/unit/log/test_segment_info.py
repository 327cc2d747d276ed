"""`segment.json`: it comes back, and nothing in it that could not be is believed."""

import json
import zlib
from collections.abc import Callable

import pytest

from trimtab.log import segment_info
from trimtab.log.segment_info import BadSegmentError, FileInfo, Group, SegmentInfo, dump_info, load_info
from trimtab.values import RunHeader

INFO = SegmentInfo(
    run_id="a",
    rank=3,
    number=17,
    has_rows=True,
    attempts={1: RunHeader(run_id="a", backend="torch"), 2: None},
    files={
        "rows.parquet": FileInfo(
            900, 5, (Group(4, 96, 2**32 - 1, 7, -(2**63), 2), Group(100, 700, 0, 9, 3, 2**63 - 1))
        ),
        "events.jsonl": FileInfo(10, 0, (Group(0, 10, 1, 1, 1, 1),)),
    },
)


def document() -> dict:
    return json.loads(dump_info(INFO))


def signed(changed: object) -> bytes:
    """The document with a checksum that is right."""
    rest = json.dumps(changed)[1:].encode()
    return b'{"crc32": "%08x",\n' % zlib.crc32(rest) + rest


def test_it_comes_back() -> None:
    data = dump_info(INFO)

    assert load_info(data) == INFO
    assert json.loads(data)["version"] == 1
    assert data.isascii()


def test_a_flipped_bit_in_any_byte_is_found() -> None:
    data = dump_info(INFO)

    for place in range(len(data)):
        flipped = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
        with pytest.raises(BadSegmentError, match="wrong checksum"):
            load_info(flipped)


def test_every_cut_is_found() -> None:
    data = dump_info(INFO)

    for size in range(len(data)):
        with pytest.raises(BadSegmentError, match="wrong checksum"):
            load_info(data[:size])


def change(**fields: object) -> Callable[[dict], dict]:
    return lambda found: found | fields


def change_group(**fields: object) -> Callable[[dict], dict]:
    def make(found: dict) -> dict:
        found["files"]["rows.parquet"]["groups"][1] |= fields
        return found

    return make


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (change(version=2), "newer trimtab (version 2)"),
        (change(version="1"), "no version"),
        (change(version=True), "no version"),
        (change(run_id="../b"), "names no folder"),
        (change(run_id=["a"]), "names no folder"),
        (change(rank=-1), "no rank"),
        (change(rank=2**16), "no rank"),
        (change(number=0), "no number"),
        (change(number=10**9), "no number"),
        (change(has_rows=1), "has rows"),
        (change(files=[]), "names other files"),
        (change(files={"/etc/passwd": {}}), "names other files"),
        (change(files={"../rows.parquet": {}}), "names other files"),
        (change(files={"rows.parquet": 5}), "something else"),
        (change(files={"rows.parquet": {"size_bytes": 5, "groups": 5}}), "no groups"),
        (change(files={"rows.parquet": {"size_bytes": 1e300, "groups": []}}), "no size_bytes"),
        (change(attempts=None), "no attempts"),
        (change(attempts=[1]), "something else"),
        (change(attempts=[{"attempt": 2**16}]), "no attempt"),
        (change_group(offset=99), "overlap"),
        (change_group(offset=-1), "no offset"),
        (change_group(size_bytes=0), "no size_bytes"),
        (change_group(size_bytes=801), "beyond the end"),
        (change_group(num_records=2**18 + 1), "no num_records"),
        (change_group(num_records=0), "no num_records"),
        (change_group(crc=2**32), "no crc"),
        (change_group(first_step=2**63), "no first_step"),
        (change_group(last_step=0.5), "no last_step"),
    ],
)
def test_what_could_not_be_is_refused(make: Callable[[dict], dict], found: str) -> None:
    with pytest.raises(BadSegmentError) as caught:
        load_info(signed(make(document())))

    assert found in str(caught.value)


def test_what_is_no_strict_json_is_refused() -> None:
    for rest in (
        b"",
        b'"version": NaN}',
        b'"a": ' + b"[" * 100_000,
        b'"version": 1}}',
        b'"version": ' + b"9" * 5000 + b"}",
    ):
        with pytest.raises(BadSegmentError, match=r"no JSON|no version"):
            load_info(b'{"crc32": "%08x",\n' % zlib.crc32(rest) + rest)


def test_fields_that_are_not_known_are_ignored_and_a_header_from_a_newer_version_costs_itself() -> None:
    changed = document() | {"colour": "red"}
    changed["attempts"][0]["header"]["version"] = 9

    info = load_info(signed(changed))

    assert info.attempts == {1: None, 2: None}
    assert info.files == INFO.files


def test_more_than_a_reader_takes_is_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = dump_info(INFO)
    monkeypatch.setattr(segment_info, "MAX_INFO_SIZE", len(data) - 1)

    with pytest.raises(BadSegmentError, match="at most"):
        dump_info(INFO)
    with pytest.raises(BadSegmentError, match="more than"):
        load_info(data)
