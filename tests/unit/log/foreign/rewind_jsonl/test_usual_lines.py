"""Typed by shape or letter by letter, a `rewind.jsonl` holds the same."""

import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trimtab.log.foreign.rewind_jsonl.source import RewindSource
from trimtab.log.foreign.rewind_jsonl.usual_lines import UsualLines

ODD_VALUES = (
    *("1e999", "-1e999", "1e-999", "007", "1.", ".5", "-0", "-", "--1", "1-2", "2.4", "1e3", "1E+3", "-5", "1 2"),
    *("10000000000000000000", "9" * 45, "1" + "0" * 400, "1000000000", "4294967296", "1." + "0" * 45 + "1"),
    *('"2"', '"nan"', "true", "null", "NaN", "Infinity", "[1]", "{}", "1, 2", "1,", ",", "", " ", "\\u0031"),
)


def line(step, *, rows=(3, 4), losses=("1.5", "0.25"), tokens=("10", "20"), micro="0"):
    entries = ", ".join
    return (
        f'{{"kind": "batch", "step": {step}, "micro": {micro}, "rows": [{entries(map(str, rows))}], '
        f'"row_loss": [{entries(losses)}], "row_tokens": [{entries(tokens)}]}}'
    )


def read(path):
    source = RewindSource(path)
    blocks = list(source.row_blocks())
    columns = [np.concatenate(column).tolist() for column in zip(*blocks, strict=True)] if blocks else []
    return json.dumps(columns), source.notices()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """Reads lines by shape and letter by letter."""
    path = tmp_path_factory.mktemp("usual") / "rewind.jsonl"

    def read_both(lines):
        path.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape") + b"\n")
        by_shape = read(path)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(UsualLines, "_read_by_shape", lambda *arguments: None)
            return by_shape, read(path)

    return read_both


@st.composite
def odd_lines(draw):
    """A usual line with one of its values, or some of its letters, changed."""
    step = draw(st.integers(1, 40))
    if draw(st.booleans()):
        value = draw(st.sampled_from(ODD_VALUES))
        field = draw(st.sampled_from(["rows", "losses", "tokens", "micro", "step"]))
        if field == "step":
            return line(value)
        other = "0.5" if field == "losses" else "7"
        return line(step, **{field: value if field == "micro" else (value, other)})
    text = line(step)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(text)))
        put = draw(st.sampled_from([*'0123456789-+.eE,: "[]{}ntruk\\\r\t\u00e9\udc80', ""]))
        text = text[:at] + put + text[at + draw(st.integers(0, 2)) :]
    return text


@given(st.lists(st.one_of(st.integers(1, 40).map(line), odd_lines()), min_size=1, max_size=8))
@example([line(1).replace('"batch"', '"ba7tch"')])
@example([line(1).replace('"kind"', '"ki-nd"')])
@example([line(1).replace('"rows"', '"rows1"'), line(2)])
@example([line(1, losses=("null", "1.5")), line(2, losses=("[1]", "1.5"))])
@example([line(1, rows=(1, "2,"))])
@example([line(1, rows=(), losses=(), tokens=()), line(2)])
def test_no_line_is_read_otherwise_than_letter_by_letter(both, lines):
    by_shape, by_letter = both(lines)
    assert by_shape == by_letter


@pytest.mark.parametrize("value", ODD_VALUES)
@pytest.mark.parametrize("field", ["rows", "losses", "tokens", "micro", "step"])
def test_no_odd_value_is_read_otherwise_than_letter_by_letter(both, field, value):
    odd = line(value) if field == "step" else line(3, **{field: value if field == "micro" else (value, "7")})
    by_shape, by_letter = both([line(1), odd, line(5)])
    assert by_shape == by_letter


@pytest.mark.parametrize("compact", [False, True])
def test_lines_as_they_are_written_need_no_look_at_each_letter(tmp_path, monkeypatch, compact):
    # given: losses of every usual spelling, lines of several sizes, a line end of Windows, a header
    queries = []
    whole = UsualLines._type
    monkeypatch.setattr(
        UsualLines, "_type", lambda own, query, *rest: queries.append(query) or whole(own, query, *rest)
    )
    losses = ["1.5", "2", "1e-05", "1.5E+3", "-0.25", "null"]
    lines = ['{"kind": "header", "version": 1, "backend": "torch"}']
    lines += [
        line(step, rows=range(step % 4 + 1), losses=[losses[(step + n) % 6] for n in range(step % 4 + 1)],
             tokens=["9"] * (step % 4 + 1)) for step in range(1, 50)
    ]  # fmt: skip
    path = tmp_path / "rewind.jsonl"
    spelled = [text.replace(", ", ",").replace(": ", ":") if compact else text for text in lines]
    path.write_bytes("".join(text + "\r\n" for text in spelled).encode())

    # when
    columns, notices = read(path)

    # then
    assert notices == []
    assert len(json.loads(columns)[1]) == sum(step % 4 + 1 for step in range(1, 50))
    assert len(queries) == 1
    assert "regexp" not in queries[0]


def test_shapes_without_end_take_no_memory_without_end(monkeypatch):
    monkeypatch.setattr("trimtab.log.foreign.rewind_jsonl.usual_lines.MAX_SHAPES", 10)
    lines = UsualLines()
    for size in range(1, 40):
        text = line(1, rows=range(size), losses=["1.5"] * size, tokens=["1"] * size)
        assert lines.read(text.encode(), [text])["row"].size == size
    assert len(lines._shapes) <= 11
