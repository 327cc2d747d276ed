"""A safetensors file whose header and length fit together is taken; all else is refused, without reading a tensor."""

import json
import struct

import pytest
import torch
from safetensors.torch import save_file

from trimtab.resume.foreign.payload import Unsound
from trimtab.resume.foreign.safetensors_file import read_tensor_names


@pytest.fixture
def place(tmp_path):
    return tmp_path / "model.safetensors"


def write(place, header, data=b"", *, header_bytes=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    place.write_bytes(struct.pack("<Q", len(text) if header_bytes is None else header_bytes) + text + data)


def tensor(begin, end, *, dtype="U8", shape=None):
    return {"dtype": dtype, "shape": [end - begin] if shape is None else shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn])
def test_what_the_library_writes_is_taken(place, dtype):
    tensors = {
        "a": torch.zeros(3, 5, dtype=dtype),
        "b": torch.zeros((), dtype=dtype),
        "none": torch.zeros(0, dtype=dtype),
    }
    save_file(tensors, place, metadata={"format": "pt"})
    assert read_tensor_names(place) == set(tensors)


def test_no_prefix_is_taken(place):
    save_file({"a": torch.zeros(3), "b": torch.zeros(4)}, place)
    whole = place.read_bytes()
    for length in range(len(whole)):
        place.write_bytes(whole[:length])
        with pytest.raises(Unsound):
            read_tensor_names(place)


def test_a_truncated_file_says_what_is_missing(place):
    save_file({"a": torch.zeros(100)}, place)
    place.write_bytes(place.read_bytes()[:-100])
    with pytest.raises(Unsound, match="has 300 bytes of tensors where its header expects 400: it is truncated"):
        read_tensor_names(place)


def test_bytes_behind_the_last_tensor_are_seen(place):
    write(place, {"a": tensor(0, 4)}, b"12345")
    with pytest.raises(Unsound, match="something was written behind"):
        read_tensor_names(place)


@pytest.mark.parametrize(
    "header",
    [
        {"a": tensor(0, 4), "b": tensor(2, 6)},  # an overlap
        {"a": tensor(0, 2), "b": tensor(4, 6)},  # a gap
        {"a": tensor(0, 6, shape=[7])},  # more elements than bytes
        {"a": tensor(6, 0)},
        {"a": tensor(0, 6, shape=[True, 6])},
        {"a": tensor(0, 6, shape=[-1, -6])},
        {"a": tensor(0, 6, shape=[2**62] * 64)},
        {"a": {"dtype": "U8", "shape": [6]}},
        {"a": {"dtype": 3, "shape": [6], "data_offsets": [0, 6]}},
        {"a": [0, 6]},
        ["a"],
        b"{",
        b'{"a": ' + b"[" * 100_000,
        b'{"a": {"dtype": "U8", "shape": [6], "data_offsets": [0, 6]}, "a": 3}',
        b"\xff\xfe\x00",
    ],
)
def test_a_header_that_makes_no_sense_is_refused(place, header):
    write(place, header, b"123456")
    with pytest.raises(Unsound) as error:
        read_tensor_names(place)
    assert str(error.value).isascii()


@pytest.mark.parametrize("claimed", [2**63, 2**64 - 1, 1_000])
def test_a_header_longer_than_the_file_is_refused_and_not_read(place, claimed):
    write(place, b"{}", header_bytes=claimed)
    with pytest.raises(Unsound, match="truncated"):
        read_tensor_names(place)


def test_a_kind_of_number_that_is_not_known_yet_is_no_damage(place):
    write(place, {"a": tensor(0, 6, dtype="F3_FUTURE", shape=[16])}, b"123456")
    assert read_tensor_names(place) == {"a"}
