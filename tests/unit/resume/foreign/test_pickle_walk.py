"""A pickle is read without running it: real ones are understood, hostile ones cost nothing."""

import collections
import os
import pickle
import pickletools
import struct
import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.resume.foreign.pickle_walk import BadPickle, Mark, Pickled, walk


class Runs:
    """Calls a function when it is loaded."""

    def __init__(self, function, *arguments):
        self._call = function, arguments

    def __reduce__(self):
        return self._call


PROTOCOL = b"\x80\x02"


def dumped(value):
    return pickle.dumps(value, protocol=2)


def test_the_keys_of_the_outermost_mapping_are_told_with_their_numbers():
    value = {"model": {"w": [1, 2]}, "step": 300, "loss": 1.5, "big": 2**40, "name": "a", "none": None}
    assert walk(dumped(value)).entries == {
        "model": Mark.MAPPING,
        "step": 300,
        "loss": 1.5,
        "big": 2**40,
        "name": "a",
        "none": Mark.OTHER,
    }


def test_a_key_that_was_spelled_before_is_told_too():
    # "step" stands first inside another mapping: the second one is a reference to that text
    assert walk(dumped({"optimizer": {"step": 1}, "step": 7})).entries["step"] == 7


def test_an_ordered_dict_is_a_mapping():
    value = collections.OrderedDict([("model", collections.OrderedDict()), ("step", 3)])
    found = walk(dumped(value))
    assert found.entries == {"model": Mark.MAPPING, "step": 3}
    assert found.names == ["collections.OrderedDict"]


@pytest.mark.parametrize("value", [[{"step": 1}], ("model",), 3, None, "text"])
def test_what_is_no_mapping_has_no_keys(value):
    assert walk(dumped(value)).entries is None


@given(
    st.dictionaries(
        st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=40),
        st.one_of(st.integers(-(2**60), 2**60), st.floats(allow_nan=False), st.lists(st.integers(), max_size=5)),
        max_size=30,
    )
)
def test_any_mapping_of_plain_values_is_read_as_python_reads_it(value):
    found = walk(dumped(value)).entries
    assert set(found) == set(value)
    assert all(found[key] == value[key] for key in value if isinstance(value[key], int | float))


def test_nothing_is_called(tmp_path):
    # given: a pickle that python would run
    witness = tmp_path / "ran"
    data = dumped({"model": Runs(os.system, f"touch {witness}")})
    # when
    found = walk(data)
    # then
    assert found.names == [f"{os.system.__module__}.system"]
    assert not witness.exists()


def test_nothing_is_imported(tmp_path, monkeypatch):
    (tmp_path / "bomb_of_this_test.py").write_text("raise AssertionError('imported')\nclass Bomb: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = walk(PROTOCOL + b"cbomb_of_this_test\nBomb\n)R.")
    assert found.names == ["bomb_of_this_test.Bomb"]


def test_a_structure_inside_of_itself_is_read_once():
    value = {"step": 3}
    value["self"] = value
    value["list"] = [value]
    found = walk(dumped(value))
    assert found.entries == {"step": 3, "self": Mark.OTHER, "list": Mark.OTHER}


def bounded(data):
    """What became of a hostile pickle; it may take neither time nor memory beyond its own size."""
    tracemalloc.start()
    begin = time.process_time()
    try:
        return refusal_or_pickled(data)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 64e6 + 100 * len(data)
        assert time.process_time() - begin < 20


def test_a_place_in_the_memo_far_beyond_any_object_takes_no_room():
    data = PROTOCOL + b"}r" + struct.pack("<I", 2**32 - 1) + b"."
    assert bounded(data).entries == {}


def test_lists_nested_without_end_are_refused(monkeypatch):
    monkeypatch.setattr("trimtab.resume.foreign.pickle_walk.MAX_STACK", 10_000)
    assert "objects under way" in bounded(PROTOCOL + b"]" * 12_000 + b".")
    assert "objects under way" in bounded(PROTOCOL + b"(" * 12_000 + b".")


def test_lists_nested_deeper_than_python_can_recurse_are_read():
    assert bounded(PROTOCOL + b"]" * 50_000 + b"a" * 49_999 + b".").entries is None


def test_a_text_that_claims_more_bytes_than_there_are_is_damage():
    for opcode, size in ((b"X", struct.pack("<I", 2**31)), (b"U", b"\xff"), (b"\x8a", b"\xff")):
        assert "damaged" in bounded(PROTOCOL + opcode + size + b"abc")


def test_a_pickle_larger_than_any_checkpoint_has_is_not_looked_at(monkeypatch):
    monkeypatch.setattr("trimtab.resume.foreign.pickle_walk.MAX_PICKLE_BYTES", 1_000)
    assert "not looked at" in bounded(PROTOCOL + b"N" * 2_000)


def test_a_pickle_of_opcodes_without_end_stops(monkeypatch):
    monkeypatch.setattr("trimtab.resume.foreign.pickle_walk.MAX_OPCODES", 10_000)
    assert "opcodes" in bounded(PROTOCOL + b"}q\0" + b"h\0b" * 10_000 + b".")


def test_names_without_end_are_refused():
    data = PROTOCOL + b"".join(b"cm\nn%d\n" % number for number in range(2_000)) + b"."
    assert "names" in bounded(data)


def test_texts_without_end_are_refused(monkeypatch):
    monkeypatch.setattr("trimtab.resume.foreign.pickle_walk.MAX_REMEMBERED", 1_000)
    texts = (b"X\x04\0\0\0%04d" % number + b"r" + struct.pack("<I", number) for number in range(2_000))
    assert "texts" in bounded(PROTOCOL + b"".join(texts) + b".")


@pytest.mark.parametrize("protocol", [0, 4, 5])
def test_what_weights_only_does_not_load_needs_pickle(protocol):
    # another protocol than torch's spells its objects with opcodes that the restricted loader does not know
    with pytest.raises(BadPickle, match="needs pickle: its opcode"):
        walk(pickle.dumps({"step": [1, "a", b"b"]}, protocol=protocol))


def test_a_call_of_what_is_no_name_needs_pickle():
    with pytest.raises(BadPickle, match="not named"):
        walk(PROTOCOL + b"})R.")


def test_every_prefix_is_damage():
    data = dumped({"model": {"w": [1, 2.5, "text"]}, "step": 300})
    for length in range(len(data)):
        with pytest.raises(BadPickle, match=r"damaged|needs pickle"):
            walk(data[:length])


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    assert isinstance(refusal_or_pickled(PROTOCOL + data), str | Pickled)


def refusal_or_pickled(data):
    try:
        return walk(data)
    except BadPickle as error:
        return str(error)


def test_the_opcodes_are_those_of_the_restricted_loader_and_no_others():
    # oracle: torch's loader, opcode by opcode, each with nothing on its stack
    import io

    from torch import _weights_only_unpickler

    for opcode in pickletools.opcodes:
        byte = opcode.code.encode("latin1")
        if byte == pickle.STOP:
            continue
        try:
            _weights_only_unpickler.load(io.BytesIO(byte))
            torch_knows = True
        except Exception as error:  # noqa: BLE001 - any way of failing but this one means that it knows the opcode
            torch_knows = "Unsupported operand" not in str(error)
        try:
            walk(byte)
            known = True
        except BadPickle as error:
            known = "its opcode" not in str(error)
        assert known == torch_knows, opcode.name
