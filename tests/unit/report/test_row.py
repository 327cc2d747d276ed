"""What a person sees of one row."""

import dataclasses
import io

import pytest
from rich.console import Console

from trimtab.analysis.row_history import RowHistory, Visit
from trimtab.dataset.row_text import read_row
from trimtab.report.row import MAX_FIELD_CHARS, render_row

HOSTILE = "\x1b[31mred\x1b]8;;http://x\x07\u202eevil\u2066 [bold]markup[/bold] :smile: \udc80 \x00\x9b1m\ttab"
VISITS = (
    Visit(step=3, loss=2.0, tokens=10, left_out=False),
    Visit(step=9, loss=float("nan"), tokens=10, left_out=True),
    Visit(step=12, loss=None, tokens=0, left_out=False),
)
HISTORY = RowHistory(
    row=17, name=None, table_row=None, count=3, num_steps=3, mean_loss=2.0, best=VISITS[0], worst=VISITS[1],
    visits=VISITS, visits_left_out=0,
)  # fmt: skip


@pytest.fixture
def draw():
    def drawn(history=HISTORY, *, row=None, repetition=None, source=None, withheld=None, width=100):
        file = io.StringIO()
        console = Console(file=file, width=width, markup=False, emoji=False, highlight=False)
        text = read_row(row) if row is not None else None
        render_row(history, text=text, repetition=repetition, source=source, withheld=withheld, console=console)
        return file.getvalue()

    return drawn


def lines_of(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def test_where_a_row_occurred_is_told(draw):
    lines = lines_of(draw())
    assert lines[0] == "Row 17"
    assert "It occurs 3 times; mean loss 2, best 2 at step 3, worst nan at step 9." in lines
    assert "3 2 10" in lines
    assert "9 nan 10 left out by the guard" in lines
    assert "12 no supervised tokens 0" in lines


@pytest.mark.parametrize(("num_steps", "told"), [(2, "It occurs 3 times in 2 steps; mean loss 2,"), (1, "in 1 step;")])
def test_pieces_of_a_row_in_one_step_are_told_from_visits(draw, num_steps, told):
    assert told in draw(dataclasses.replace(HISTORY, num_steps=num_steps))


def test_its_other_names_are_told_as_text(draw):
    history = RowHistory(
        row=17,
        name=HOSTILE,
        table_row=4,
        count=0,
        num_steps=0,
        mean_loss=None,
        best=None,
        worst=None,
        visits=(),
        visits_left_out=0,
    )
    text = draw(history)
    assert lines_of(text)[0].startswith("Row 17 (id \\x1b[31mred")
    assert lines_of(text)[0].endswith(", row 4 of the table)")
    assert "It occurs nowhere in this log." in text


def test_the_whole_row_is_shown_field_by_field(draw):
    text = draw(row={"text": "first\n\nthird" + "x" * 5_000, "input_ids": list(range(100))}, repetition=0.25)
    assert "2 fields, repetition 0.25\n\ntext:\n    first\n    \n    third" + "x" * 5_000 + "\n" in text
    assert "\n\ninput_ids:\n    0 1 2 3 4 5 6 7 8 9 10 11 ... (100 numbers)\n" in text


def test_a_field_beyond_bounds_shows_its_start_and_end(draw):
    text = draw(row={"text": "A" + "x" * 100_000_000 + "Z"})
    assert len(text) < MAX_FIELD_CHARS + 5_000
    assert f"... {100_000_002 - MAX_FIELD_CHARS} characters are left out here ..." in text
    assert text.endswith("xZ\n")


def test_hostile_text_is_shown_as_escapes_and_no_line_of_it_stands_where_ours_do(draw):
    text = draw(row={"text": f"{HOSTILE}\nRow 18\rx", HOSTILE: "a\nb"}, withheld=HOSTILE)
    assert text.isascii()
    assert all(char == "\n" or " " <= char <= "~" for char in text)
    assert "\nRow 18" not in text
    assert "\n    Row 18\\rx\n" in text


def test_where_the_text_was_read_is_said(draw):
    text = draw(row={"text": "x"}, repetition=0.0, source=f"data/{HOSTILE}.jsonl")
    assert "\n1 field, repetition 0; read from data/\\x1b[31m" in text
    assert text.isascii()
    assert "read from" not in draw(row={"text": "x"}, repetition=0.0)


def test_why_the_text_is_missing_is_said(draw):
    assert "Preview withheld: the rows were only in memory; pass --data\n" in draw(
        withheld="the rows were only in memory; pass --data"
    )
    assert "withheld" not in draw()
