"""Where two runs differ, in words."""

import io
import math

import pytest
from rich.console import Console

from trimtab.analysis.difference import Difference, Differences
from trimtab.report.differences import in_words, render


def draw(differences):
    file = io.StringIO()
    render(differences, console=Console(file=file, width=120, markup=False, emoji=False, highlight=False))
    return file.getvalue()


def found(**fields):
    return Differences(**{"a": "runs/a", "b": "runs/b", "num_steps": 60, "first": None, "columns": {}, **fields})


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (
            Difference(7, "loss", 2.0, 2.0000000000000004, rank=1),
            "The runs part at step 7, rank 1: loss is 2.0 in a, 2.0000000000000004 in b",
        ),
        (
            Difference(7, "rows.loss_sum", math.nan, 3.5, rank=0, micro=1, row=17),
            "The runs part at step 7, rank 0, micro-batch 1, row 17: rows.loss_sum is nan in a, 3.5 in b",
        ),
        (
            Difference(7, "reason", "stepped", None, rank=0),
            "The runs part at step 7, rank 0: reason is stepped in a, nothing in b",
        ),
        (Difference(10, "step", 10, None), "The runs part at step 10: b does not hold it"),
        (Difference(10, "step", None, 10), "The runs part at step 10: a does not hold it"),
    ],
)
def test_the_first_difference_is_one_sentence_with_both_values_whole(first, words):
    assert in_words(first) == words


def test_runs_that_are_the_same_are_said_to_be_with_what_was_compared():
    text = draw(found(columns={"loss": None, "rows.row": None}))
    assert "The same, bit for bit, in 60 steps: loss, rows.row\n" in text


def test_columns_that_differ_stand_in_a_table_and_the_others_in_a_line():
    first = Difference(7, "loss", 1.0, 2.0, rank=0)
    text = draw(found(first=first, columns={"loss": 7, "lr": None, "rows.row": 9}, notices=("b: is short",)))
    lines = [line.split() for line in text.splitlines()]
    assert ["loss", "7"] in lines
    assert ["rows.row", "9"] in lines
    assert "The same in 60 steps: lr\n" in text
    assert text.endswith("Note: b: is short\n")


def test_what_a_stranger_wrote_is_made_plain():
    text = draw(found(a="runs/\x1b[31ma", first=Difference(1, "reason", "\x1b[2J", "b", rank=0), columns={"reason": 1}))
    assert "\x1b" not in text
