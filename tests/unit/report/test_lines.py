"""How a line, a table and a text that is too long are drawn."""

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from trimtab.report.lines import draw_table, make_table, shortened, tell
from trimtab.text import plain


@pytest.fixture
def console():
    """A console that keeps what is drawn; `lines()` gives it."""

    def make(*, width, in_terminal=False):
        made = Console(file=io.StringIO(), width=width, force_terminal=in_terminal, color_system=None)
        made.lines = lambda: made.file.getvalue().splitlines()
        return made

    return make


def test_a_sentence_is_broken_between_words_in_a_terminal_alone(console):
    sentence = "Note: the rows were read from " + "/folder" * 20 + ", and the rest of this is prose as ever"
    terminal, pipe = console(width=40, in_terminal=True), console(width=40)
    tell(terminal, sentence)
    tell(pipe, sentence)
    assert pipe.lines() == [sentence]
    assert terminal.lines() == [
        "Note: the rows were read from",
        "/folder" * 20 + ",",
        "and the rest of this is prose as ever",
    ]


def test_a_row_of_a_table_is_one_line_with_nothing_behind_it(console):
    drawn = console(width=40)
    table = make_table([("row", True), ("a name", False), ("also", False)], console=drawn)
    table.add_row("1", "long name " * 10 + "end", "")
    table.add_row("22", "b", "c")
    draw_table(table, console=drawn, below=["    below", ""])
    assert drawn.lines() == [
        "row  a name" + " " * 97 + "  also",
        "-" * 114,
        "  1  " + "long name " * 10 + "end",
        "    below",
        " 22  b" + " " * 102 + "  c",
    ]


# Of what plain makes of these, every piece is told by its first character.
CHARS = {"\u4e2d": "\\u4e2d", "\x1b": "\\x1b", "\U0001f600": "\\U0001f600", "\n": "\\n", "z": "z", " ": " "}


@given(st.lists(st.sampled_from(sorted(CHARS)), max_size=60), st.integers(20, 90), st.booleans())
def test_a_text_is_cut_between_characters_and_never_inside_of_an_escape(chars, room, in_parts):
    # given
    text = "".join(chars)
    shown = plain(f"{text} ... {text}" if in_parts else text)
    # when
    cut = shortened(shown, room)
    # then
    assert len(cut) <= room
    pieces = re.sub(r"\\u4e2d|\\x1b|\\U0001f600|\\n", "", cut)
    assert set(pieces) <= set("z .")
    assert cut == shown or len(cut) >= room - 3 * len("\\U0001f600")


def test_a_backslash_of_the_text_itself_is_no_escape():
    assert shortened("\\" * 100, 20) == "\\" * 17 + "..."
