"""Bytes that two readers could take for different values are refused."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.strict_json import loads

VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(value=VALUES)
def test_json_comes_back(value: object) -> None:
    assert loads(json.dumps(value, allow_nan=False).encode()) == value


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"NaN", b"[Infinity]", b"-Infinity", b"1e999", b'{"a": 1, "a": 1}', b'[{"a": {"b": 1, "b": 2}}]',
        b"\xff", b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b"[" * 100_000, b"9" * 5_000, b"{}{}",
    ],
)  # fmt: skip
def test_whatever_else_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        loads(data)
