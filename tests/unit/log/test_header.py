"""Run headers from files that anybody may have written."""

import json
from dataclasses import replace

import pytest

from trimtab.errors import LogError, UsageError
from trimtab.log.header import MAX_HEADER_SIZE, dump_header, load_header
from trimtab.values import RunHeader

HEADER = RunHeader(
    run_id="a", backend="torch", task="causal-lm", world_size=2, num_rows=10, batch_size=4, accumulation=3,
    dataset_fingerprint="f", row_index="line", created=1.5, out="/x", experiment="e", trimtab_version="0.1.0",
    dataset_files=("/data/a.arrow", "/data/b.arrow"), dataset_index_files=("/data/i.arrow",), dataset_columns=("text",),
)  # fmt: skip


def changed(**fields: object) -> bytes:
    return json.dumps(json.loads(dump_header(HEADER)) | fields).encode()


def test_a_header_comes_back() -> None:
    assert load_header(dump_header(HEADER), where="x") == (HEADER, [])


def test_text_beyond_ascii_comes_back() -> None:
    header = replace(HEADER, task="\u202e\x1b[31m\U0001f600", out="/tmp/\udcff")

    assert dump_header(header).isascii()
    assert load_header(dump_header(header), where="x") == (header, [])


def test_a_newer_version_is_named_with_what_to_do() -> None:
    with pytest.raises(LogError, match=r"^x: format version 7 was found, versions up to 1 are read; upgrade trimtab$"):
        load_header(changed(version=7), where="x")


def test_fields_that_a_newer_writer_added_are_left_alone() -> None:
    assert load_header(changed(colour="red"), where="x") == (HEADER, [])


def test_fields_that_an_older_writer_lacked_have_their_defaults() -> None:
    header, wrong = load_header(b'{"version": 1, "run_id": "a", "backend": "torch"}', where="x")

    assert header == RunHeader(run_id="a", backend="torch")
    assert wrong == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("run_id", "../../etc"),
        ("run_id", ""),
        ("run_id", 5),
        ("run_id", "a\u0000"),
        ("backend", None),
        ("task", 3),
        ("world_size", 0),
        ("world_size", True),
        ("world_size", 2.0),
        ("num_rows", -1),
        ("num_rows", 10**40),
        ("batch_size", "4"),
        ("accumulation", None),
        ("created", "yesterday"),
        ("created", 1e300),
        ("out", ["x"]),
        ("trimtab_version", {}),
        ("dataset_files", "/data/a.arrow"),
        ("dataset_files", {"a": 1}),
        ("dataset_files", ["/data/a.arrow", 5]),
        ("dataset_files", [["/data/a.arrow"]]),
        ("dataset_index_files", ["x" * 1_001]),
        ("dataset_columns", ["x"] * 501),
        ("dataset_columns", None),
    ],
)
def test_a_field_that_makes_no_sense_costs_itself_and_is_said(field: str, value: object) -> None:
    header, wrong = load_header(changed(**{field: value}), where="x")

    assert header is not None
    assert getattr(header, field) in (None, 0.0, 1, "", "unknown", ())
    assert replace(header, **{field: getattr(HEADER, field)}) == HEADER
    assert len(wrong) == 1
    assert f"x: {field} is not what it should be" in wrong[0]


@pytest.mark.parametrize("version", [None, "1", 1.0, True, 0, -3])
def test_a_header_without_a_version_is_read_and_said(version: object) -> None:
    assert load_header(changed(version=version), where="x") == (HEADER, ["x: no version; read as version 1"])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\x00" * 100,
        b"\xff\xfe",
        b'{"version": NaN}',
        b"[" * 100_000,
        b'{"created": ' + b"9" * 10_000 + b"}",
        b" " * (MAX_HEADER_SIZE + 1),
    ],
)
def test_what_is_no_header_is_left_out_and_said(data: bytes) -> None:
    header, wrong = load_header(data, where="x")

    assert header is None
    assert len(wrong) == 1
    assert wrong[0].startswith("x: ")


def test_a_header_that_a_log_cannot_hold_is_refused_when_written() -> None:
    with pytest.raises(UsageError, match="world_size is 0"):
        dump_header(replace(HEADER, world_size=0))
    with pytest.raises(UsageError, match="created is nan"):
        dump_header(replace(HEADER, created=float("nan")))
