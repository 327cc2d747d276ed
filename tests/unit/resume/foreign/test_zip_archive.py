"""Archives of torch's are read to the last byte; anything that torch did not write is refused."""

import io
import struct
import zipfile

import pytest
import torch

from trimtab.resume.foreign import zip_archive
from trimtab.resume.foreign.zip_archive import BadArchive, read_entries, read_entry, wrong_checksums


@pytest.fixture
def saved(states):
    """What torch writes of a small checkpoint."""
    stream = io.BytesIO()
    torch.save({**states, "step": 300}, stream)
    return stream.getvalue()


def zipped(*entries, method=zipfile.ZIP_STORED):
    """An archive by Python's own writer."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in entries:
            archive.writestr(name, data)
    return stream.getvalue()


def entries_of(data):
    return read_entries(io.BytesIO(data))


def is_sound(data):
    """Whether an archive is taken, every checksum included."""
    try:
        return not list(wrong_checksums(io.BytesIO(data), entries_of(data)))
    except BadArchive:
        return False


def test_the_entries_are_those_that_pythons_reader_finds(saved):
    expected = zipfile.ZipFile(io.BytesIO(saved))
    found = entries_of(saved)
    assert {entry.name: entry.crc32 for entry in found} == {info.filename: info.CRC for info in expected.infolist()}
    assert all(read_entry(io.BytesIO(saved), entry) == expected.read(entry.name) for entry in found)
    assert is_sound(saved)


def test_a_flipped_bit_of_the_payload_is_seen_that_torch_loads(saved):
    # given: a bit of a weight
    entry = next(entry for entry in entries_of(saved) if entry.name.endswith("/data/0"))
    damaged = bytearray(saved)
    damaged[entry.start] ^= 1
    # then: torch loads another weight, and says nothing
    torch.load(io.BytesIO(damaged), weights_only=True)
    assert [wrong.name for wrong in wrong_checksums(io.BytesIO(damaged), entries_of(bytes(damaged)))] == [entry.name]


def test_every_flipped_byte_is_seen_or_changes_nothing_that_is_loaded(saved, states):
    original = zipfile.ZipFile(io.BytesIO(saved))
    contents = {info.filename: original.read(info) for info in original.infolist()}
    entries = entries_of(saved)
    payload = {place for entry in entries for place in range(entry.start, entry.start + entry.size_bytes)}
    for place in range(len(saved)):
        if place in payload and place % 64:
            continue  # all of it is under checksums: some of its bytes say it
        damaged = bytearray(saved)
        damaged[place] ^= 0xFF
        if is_sound(bytes(damaged)):
            stream = io.BytesIO(damaged)
            assert {entry.name: read_entry(stream, entry) for entry in entries_of(bytes(damaged))} == contents, place
            # torch's own reader must see the same: of an entry marked as a folder it takes what stands in memory
            loaded = torch.load(io.BytesIO(damaged), weights_only=True)
            assert loaded["step"] == 300
            assert torch.equal(loaded["rng_state"], states["rng_state"])
            assert all(torch.equal(loaded["model"][name], states["model"][name]) for name in states["model"])


def test_no_prefix_is_taken(saved):
    assert not any(is_sound(saved[:length]) for length in range(len(saved)))


def test_what_was_written_behind_it_is_seen(saved):
    assert not is_sound(saved + b"\0")
    assert not is_sound(saved + saved)


def test_a_zip_bomb_is_refused_before_a_byte_is_inflated():
    bomb = zipped(("a/data.pkl", b"\0" * 10_000_000), method=zipfile.ZIP_DEFLATED)
    assert len(bomb) < 20_000
    with pytest.raises(BadArchive, match="compressed entry a/data"):
        entries_of(bomb)


def test_an_entry_that_hides_its_compression_is_refused():
    # given: a deflated entry whose directory says stored, with its real size
    bomb = bytearray(zipped(("a", b"\0" * 100_000), method=zipfile.ZIP_DEFLATED))
    central = bomb.rindex(b"PK\x01\x02")
    bomb[central + 10 : central + 12] = b"\0\0"
    with pytest.raises(BadArchive, match="compressed entry"):
        entries_of(bytes(bomb))


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "/etc/evil", "a\\..\\evil", "C:/evil", "a/\x1b[31m/../x"])
def test_a_name_that_leads_out_is_refused(name):
    # Python's writer would change some of these names: written as another one of the same length
    spelled = name.encode()
    data = zipped(("n" * len(spelled), b"x")).replace(b"n" * len(spelled), spelled)
    with pytest.raises(BadArchive, match="leads out of it") as error:
        entries_of(data)
    assert str(error.value).isascii()
    assert "\x1b" not in str(error.value)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_two_entries_of_one_name_are_refused():
    with pytest.raises(BadArchive, match="two entries of one name"):
        entries_of(zipped(("a/data.pkl", b"good"), ("a/data.pkl", b"bad")))


def test_entries_that_share_bytes_are_refused():
    # given: an archive whose one entry holds, as its data, another entry with header and all; the directory names both
    inner = zipped(("b", b"y" * 100))
    inner_entry, inner_directory = inner[: inner.index(b"PK\x01\x02")], inner[inner.index(b"PK\x01\x02") : -22]
    outer = zipped(("a", inner_entry))
    place = outer.rindex(b"PK\x01\x02")
    second = bytearray(inner_directory)
    second[42:46] = struct.pack("<I", outer.index(inner_entry))
    directory = outer[place:-22] + bytes(second)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), place, 0)
    # then
    with pytest.raises(BadArchive, match="entries that overlap, at b"):
        entries_of(outer[:place] + directory + end)


def test_a_directory_of_more_entries_than_torch_writes_is_not_read(saved):
    # given: an end record that claims a directory of 4 GB in an archive of some kilobytes
    data = bytearray(saved)
    data[-10:-6] = b"\xf0\xff\xff\xff"
    with pytest.raises(BadArchive, match="contradict each other"):
        entries_of(bytes(data))


def test_more_entries_than_the_limit_are_refused(saved, monkeypatch):
    monkeypatch.setattr(zip_archive, "MAX_ENTRIES", 3)
    with pytest.raises(BadArchive, match="more than 3 are not looked at"):
        entries_of(saved)


def test_an_encrypted_entry_is_refused():
    data = bytearray(zipped(("a", b"x")))
    central = data.rindex(b"PK\x01\x02")
    data[central + 8] |= 1
    with pytest.raises(BadArchive, match="encrypted"):
        entries_of(bytes(data))


def test_sizes_and_places_beyond_four_gigabytes_are_read_from_their_field():
    # given: an archive whose directory spells size, packed size and place in the zip64 field, as torch does beyond 4 GB
    payload = b"payload"
    data = zipped(("a/data/0", payload))
    central = data.index(b"PK\x01\x02")
    name_end = central + 46 + len("a/data/0")
    extra = struct.pack("<2H3Q", 1, 24, len(payload), len(payload), 0)
    header = bytearray(data[central:name_end])
    header[20:28] = b"\xff" * 8
    header[30:32] = struct.pack("<H", len(extra))
    header[42:46] = b"\xff" * 4
    directory = bytes(header) + extra
    end64 = struct.pack("<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 1, 1, len(directory), central)
    place64 = struct.pack("<4sLQL", b"PK\x06\x07", 0, central + len(directory), 1)
    end = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    large = data[:central] + directory + end64 + place64 + end
    # then: Python's reader, the oracle, reads it as well
    assert zipfile.ZipFile(io.BytesIO(large)).read("a/data/0") == payload
    (entry,) = entries_of(large)
    assert read_entry(io.BytesIO(large), entry) == payload
    assert is_sound(large)


def test_progress_adds_up_to_the_payload(saved):
    read = []
    entries = entries_of(saved)
    assert list(wrong_checksums(io.BytesIO(saved), entries, progress=read.append)) == []
    assert sum(read) == sum(entry.size_bytes for entry in entries)
