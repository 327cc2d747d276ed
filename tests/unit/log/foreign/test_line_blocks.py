"""Blocks of whole lines: every line is in one of them, or said to be too long."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.foreign import line_blocks as module
from trimtab.log.foreign.line_blocks import line_blocks


@given(
    lines=st.lists(st.integers(0, 40).map(lambda size: b"x" * size), max_size=12),
    ended=st.booleans(),
    block_bytes=st.integers(1, 9),
)
def test_every_line_is_in_one_block_or_said_to_be_too_long(lines, ended, block_bytes):
    # given: blocks of a few bytes, and lines that a block does not hold
    data = b"\n".join(lines) + (b"\n" if ended and lines else b"")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "BLOCK_BYTES", block_bytes)
        patch.setattr(module, "MAX_LINE_BYTES", 16)
        blocks = list(line_blocks(io.BytesIO(data)))
    # then: line by line, with its number
    expected = dict(enumerate(data.split(b"\n"), 1))
    if not expected[len(expected)]:
        expected.popitem()
    for block in blocks:
        if block.too_long:
            assert len(expected.pop(block.first_line)) >= 16
            continue
        for number, line in enumerate(block.data.removesuffix(b"\n").split(b"\n"), block.first_line):
            assert expected.pop(number) == line
    assert expected == {}
    assert [block.end_byte for block in blocks] == sorted(block.end_byte for block in blocks)
    assert not blocks or blocks[-1].end_byte == len(data)


@pytest.mark.parametrize("block_bytes", [1, 2, 4, 100])
@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_byte_order_mark_leaves_in_front_of_the_first_line_only(monkeypatch, block_bytes, end):
    # given: a mark at the beginning, and another one further down
    monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
    mark = b"\xef\xbb\xbf"
    # when
    blocks = list(line_blocks(io.BytesIO(mark + b"ab\n" + mark + b"cd" + end)))
    # then
    assert b"".join(block.data for block in blocks) == b"ab\n" + mark + b"cd" + end
    assert blocks[0].first_line == 1
    assert blocks[-1].end_byte == len(mark + b"ab\n" + mark + b"cd" + end)
