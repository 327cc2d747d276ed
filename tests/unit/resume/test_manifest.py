"""Manifests there and back, from later versions and from strangers."""

import json
import math
import os
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import CheckpointError, UsageError
from trimtab.resume.manifest import (
    MAX_SIZE_BYTES,
    FileEntry,
    Manifest,
    ResumedFrom,
    dump_manifest,
    load_manifest,
    manifest_checksum,
    read_manifest,
)

Spell = Callable[[Mapping[str, Any]], bytes]
Describe = Callable[..., dict[str, Any]]

MANIFEST = Manifest(
    saver="trimtab", step=900, run_id="run-a", serial=3, world_size=2, healthy=False,
    parts={"model": ("model.pt",), "optimizer": (), "rng": ("rank_0.pt", "a/b c.pt")},
    files=(
        FileEntry(path="model.pt", size_bytes=5, crc32=0xFFFFFFFF), FileEntry(path="rank_0.pt", size_bytes=0, crc32=0),
        FileEntry(path="a/b c.pt", size_bytes=2**53, crc32=1),
    ),
    unhealthy_because=("layer.weight: 3 NaN",), loss=0.1 + 0.2, lr=(3e-4, 0.0), saved_at=1.5,
    versions={"torch": "2.13"}, facts={"extra": [1, {"a": None}]}, resumed_from=ResumedFrom(step=800, serial=2),
)  # fmt: skip


def refused(data: bytes) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_manifest(data, where="FILE")
    message = str(caught.value)
    assert message.startswith("FILE: found ")
    assert message.isprintable()
    assert message.isascii()
    assert len(message) < 500
    return message


def test_a_manifest_comes_back() -> None:
    assert load_manifest(dump_manifest(MANIFEST), where="x") == MANIFEST


def test_what_is_written_is_what_the_format_says(spell: Spell) -> None:
    data = dump_manifest(MANIFEST)

    outer = json.loads(data)
    canonical = json.dumps(outer["manifest"], sort_keys=True, separators=(",", ":")).encode()
    assert outer["crc32"] == zlib.crc32(canonical)
    assert data == spell(outer["manifest"])
    assert outer["manifest"]["version"] == 1


def test_spaces_and_the_order_of_names_do_not_count() -> None:
    outer = json.loads(dump_manifest(MANIFEST))
    outer["manifest"] = dict(reversed(outer["manifest"].items()))

    assert load_manifest(json.dumps(outer, indent=3).encode(), where="x") == MANIFEST


@pytest.mark.parametrize("loss", [math.inf, -math.inf, -0.0, 5e-324, 1.7976931348623157e308, None])
def test_a_loss_comes_back_to_the_bit(loss: float | None) -> None:
    manifest = replace(MANIFEST, loss=loss)

    found = load_manifest(dump_manifest(manifest), where="x")

    assert repr(found.loss) == repr(loss)


def test_a_loss_that_is_no_number_comes_back() -> None:
    found = load_manifest(dump_manifest(replace(MANIFEST, loss=math.nan, lr=(math.nan,))), where="x")

    assert math.isnan(found.loss or 0)
    assert math.isnan(found.lr[0])


def test_what_a_later_version_added_is_left_alone(spell: Spell, describe: Describe) -> None:
    document = describe(5, {"model.pt": b"m"}, colour="red", sizes=[1.5])
    document["files"][0]["mode"] = 7
    data = spell(document)
    data = data.replace(b'{"manifest"', b'{"note": 1, "manifest"')

    assert load_manifest(data, where="x").step == 5


def test_fields_that_say_little_may_be_left_out(spell: Spell, describe: Describe) -> None:
    found = load_manifest(spell(describe(5, {"model.pt": b"m"})), where="x")

    assert (found.world_size, found.loss, found.lr, found.facts) == (1, None, (), {})


def test_a_newer_version_is_refused_by_name(spell: Spell, describe: Describe) -> None:
    message = refused(spell(describe(5, {}, version=7)))

    assert message == "FILE: found format version 7, expected a version up to 1; upgrade trimtab"


@pytest.mark.parametrize("byte", [1, 0x20, 0x80])
def test_each_byte_that_is_changed_is_noticed_or_changes_nothing(byte: int) -> None:
    good = dump_manifest(MANIFEST)
    num_noticed = 0

    for place in range(len(good)):
        data = bytearray(good)
        data[place] ^= byte
        try:
            found = load_manifest(bytes(data), where="x")
        except CheckpointError:
            num_noticed += 1
        else:
            assert found == MANIFEST, place
    assert num_noticed > 0.95 * len(good)


def test_each_prefix_is_noticed() -> None:
    good = dump_manifest(MANIFEST).rstrip()

    for length in range(len(good)):
        refused(good[:length])


def changed(document: dict[str, Any], **fields: object) -> dict[str, Any]:
    return {**document, **fields}


@pytest.mark.parametrize("number", [True, -1, 1.0, "5", None, 2**53 + 1, 10**400, [5], {"a": 5}])
@pytest.mark.parametrize("field", ["step", "serial", "world_size"])
def test_a_count_is_a_whole_number(spell: Spell, describe: Describe, field: str, number: object) -> None:
    assert f"{field} " in refused(spell(describe(5, {}, **{field: number})))


@pytest.mark.parametrize("number", [True, -1, 2**32, 0.5, None])
@pytest.mark.parametrize("field", ["size_bytes", "crc32"])
def test_the_numbers_of_a_file_are_checked(spell: Spell, describe: Describe, field: str, number: object) -> None:
    document = describe(5, {"model.pt": b"m"})
    document["files"][0][field] = number if (field, number) != ("size_bytes", 2**32) else 2**60

    assert field in refused(spell(document))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("saver", "someone"), ("saver", 5), ("run_id", "../a"), ("run_id", ""), ("run_id", 5), ("run_id", "a\x1b[31m"),
        ("run_id", "a" * 65), ("healthy", 1), ("healthy", None), ("files", {}), ("files", ["model.pt"]), ("parts", []),
        ("parts", {"model": "model.pt"}), ("parts", {"model": [5]}), ("parts", {"model": ["other.pt"]}),
        ("unhealthy_because", "no"), ("unhealthy_because", [5]), ("lr", 0.1), ("lr", ["0.1"]), ("lr", [True]),
        ("loss", "NaN"), ("loss", True), ("loss", 10**400), ("saved_at", None), ("versions", ["a"]),
        ("versions", {"a": 5}), ("facts", 5), ("resumed_from", 5), ("resumed_from", {"step": 5}),
        ("resumed_from", {"step": -1, "serial": 5}), ("version", 0), ("version", True), ("version", "1"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_what_it_should_be_is_named(
    spell: Spell, describe: Describe, field: str, value: object
) -> None:
    assert field.removesuffix("s") in refused(spell(describe(5, {}, **{field: value})))


@pytest.mark.parametrize("field", ["saver", "step", "run_id", "serial", "healthy", "parts", "files"])
def test_a_field_that_decides_must_be_there(spell: Spell, describe: Describe, field: str) -> None:
    document = describe(5, {})
    del document[field]

    assert refused(spell(document)) == f"FILE: found no {field}, expected one"


CLIMBING = [
    "../a", "a/../../b", "a/..", "..", ".", "./a", "/etc/passwd", "//a", "a//b", "a/", "", "a\\..\\b", "C:/a", "c:a",
    "a\0b", "a\nb", "a\x1b[2Jb", "a\x7f", "a\x9bb", "trimtab_manifest.json", "TRIMTAB_Manifest.json", "a" * 1025,
    "\ud800", None, 5, ["a"],
]  # fmt: skip


@pytest.mark.parametrize("path", CLIMBING)
def test_a_path_that_leads_out_or_acts_on_a_terminal_is_refused(spell: Spell, describe: Describe, path: object) -> None:
    document = describe(5, {"model.pt": b"m"}, parts={})
    document["files"][0]["path"] = path

    assert "file" in refused(spell(document))


@pytest.mark.parametrize(
    "path", ["a", ".metadata", "a b/c.pt", "...", "a..b", "\u00e9.pt", "\udcff", "sharded/__0_0.distcp"]
)
def test_any_other_path_is_taken(spell: Spell, describe: Describe, path: str) -> None:
    document = describe(5, {"model.pt": b"m"}, parts={"model": [path]})
    document["files"][0]["path"] = path

    assert load_manifest(spell(document), where="x").files[0].path == path


def test_a_file_that_is_listed_twice_is_refused(spell: Spell, describe: Describe) -> None:
    document = describe(5, {"model.pt": b"m"})
    document["files"] *= 2

    assert "the same file twice" in refused(spell(document))


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (b"{", "no JSON"),
        (b"\x80\x04", "no JSON"),
        (b"[1]", "JSON without a manifest in it"),
        (b'{"manifest": 5, "crc32": 5}', "JSON without a manifest in it"),
        (b'{"manifest": {}, "manifest": {}, "crc32": 5}', "no JSON"),
        (b'{"manifest": {"a": 1, "a": 1}, "crc32": 5}', "no JSON"),
        (b'{"manifest": {"a": NaN}, "crc32": 5}', "no JSON"),
        (b'{"manifest": {"a": 1e999}, "crc32": 5}', "no JSON"),
        (b'{"manifest": {"a": ' + b"9" * 5000 + b'}, "crc32": 5}', "no JSON"),
        (b'{"manifest": ' + b'{"a":' * 100_000, "no JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "no JSON"),
        ('{"manifest": {}, "crc32": 5}'.encode("utf-16"), "no JSON"),
        (b'\xef\xbb\xbf{"manifest": {}, "crc32": 5}', "no JSON"),
        (b'{"manifest": {}, "crc32": true}', "the checksum True"),
        (b'{"manifest": {}, "crc32": ' + b"9" * 4000 + b"}", "the checksum a number of more than 20 digits"),
        (b" " * (MAX_SIZE_BYTES + 1), "more than 16777216 bytes"),
    ],
)
def test_what_is_no_manifest_is_said(data: bytes, found: str) -> None:
    assert found in refused(data)


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_no_bytes_bring_it_down(data: bytes) -> None:
    refused(data)


def test_the_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"trimtab_manifest\.json: No such file or directory, expected the manifest"
    ):
        read_manifest(tmp_path)


def test_its_checksum_is_the_one_that_it_is_under(tmp_path: Path) -> None:
    (tmp_path / "trimtab_manifest.json").write_bytes(dump_manifest(MANIFEST))
    document = json.loads(dump_manifest(MANIFEST))
    spelled = json.dumps(document["manifest"], sort_keys=True, separators=(",", ":")).encode()
    assert manifest_checksum(tmp_path) == document["crc32"] == zlib.crc32(spelled)
    (tmp_path / "trimtab_manifest.json").write_bytes(json.dumps(document, indent=4).encode())
    assert manifest_checksum(tmp_path) == document["crc32"]


@pytest.mark.parametrize(
    "data",
    [None, b"", b"{}", dump_manifest(MANIFEST).replace(b"900", b"901")],
    ids=["none", "empty", "other JSON", "changed"],
)
def test_what_is_no_manifest_has_no_checksum(data: bytes | None, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / "trimtab_manifest.json").write_bytes(data)
    with pytest.raises(CheckpointError, match=r"trimtab_manifest\.json: "):
        manifest_checksum(tmp_path)


def test_a_huge_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "trimtab_manifest.json").open("wb") as file:
        file.truncate(1 << 40)

    with pytest.raises(CheckpointError, match="more than 16777216 bytes"):
        read_manifest(tmp_path)


def test_a_pipe_and_a_folder_are_not_waited_for(tmp_path: Path) -> None:
    (tmp_path / "a" / "trimtab_manifest.json").mkdir(parents=True)
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "trimtab_manifest.json")

    with pytest.raises(CheckpointError, match="is a folder, expected"):
        read_manifest(tmp_path / "a")
    with pytest.raises(CheckpointError, match="is no ordinary file, expected"):
        read_manifest(tmp_path / "b")


@pytest.mark.parametrize(
    "wrong",
    [
        {"step": -1}, {"run_id": "a/b"}, {"serial": 0}, {"facts": {"a": math.nan}}, {"facts": {"a": object()}},
        {"parts": {"model": ("none.pt",)}}, {"files": (FileEntry(path="../a", size_bytes=1, crc32=1),)},
    ],
)  # fmt: skip
def test_a_manifest_that_no_reader_would_take_is_not_written(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        dump_manifest(replace(MANIFEST, **wrong))
