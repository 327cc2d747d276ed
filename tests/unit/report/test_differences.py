"""Where two runs differ, in words."""

import io
import math

import pytest
from rich.console import Console

from trimtab.analysis.difference import Difference, Differences, Lack
from trimtab.report.differences import in_words, lack_in_words, render


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
        (
            Difference(7, "rank", 1, None, rank=1),
            "The runs part at step 7: b has no record of the step from rank 1",
        ),
        (
            Difference(7, "rows.rank", None, 1, rank=1, micro=0, row=4),
            "The runs part at step 7: a has no rows from rank 1",
        ),
    ],
)
def test_the_first_difference_is_one_sentence_with_both_values_whole(first, words):
    assert in_words(first) == words


@pytest.mark.parametrize(
    ("lack", "words"),
    [
        (Lack("b", 41, 50, 10, is_end=True), "b lacks steps 41 to 50 (a run killed before its log was written?)"),
        (Lack("a", 41, 41, 1, is_end=True), "a lacks step 41 (a run killed before its log was written?)"),
        (Lack("a", 41, 50, 3, is_end=False), "a lacks 3 steps between 41 and 50"),
    ],
)
def test_steps_that_one_run_lacks_are_one_sentence(lack, words):
    assert lack_in_words(lack) == words


def test_steps_that_are_missing_are_said_first_and_what_differs_besides_after_them():
    # given
    missing, besides = Difference(41, "step", 41, None), Difference(7, "lr", 1.0, 2.0, rank=0)
    lacks = (Lack("b", 41, 50, 10, is_end=True),)
    columns = {"step": 41, "loss": None, "lr": 7}
    # when
    alone = draw(found(first=missing, lacks=lacks, columns={"step": 41, "loss": None})).splitlines()
    both = draw(found(first=besides, first_in_both=besides, lacks=lacks, columns=columns)).splitlines()
    # then
    headline = "b lacks steps 41 to 50 (a run killed before its log was written?)"
    assert alone[3:] == [headline, "", "The same in the 60 steps that both hold: loss"]
    assert both[3:5] == [headline, "The runs part besides at step 7, rank 0: lr is 1.0 in a, 2.0 in b"]


def test_runs_that_are_the_same_are_said_to_be_with_what_was_compared():
    text = draw(found(columns={"loss": None, "rows.row": None}))
    assert "The same, bit for bit, in 60 steps: loss, rows.row\n" in text


def test_columns_that_differ_stand_in_a_table_and_the_others_in_a_line():
    first = Difference(7, "loss", 1.0, 2.0, rank=0)
    text = draw(
        found(
            first=first, first_in_both=first, columns={"loss": 7, "lr": None, "rows.row": 9}, notices=("b: is short",)
        )
    )
    lines = [line.split() for line in text.splitlines()]
    assert ["loss", "7"] in lines
    assert ["rows.row", "9"] in lines
    assert "The same in 60 steps: lr\n" in text
    assert text.endswith("Note: b: is short\n")


def test_what_a_stranger_wrote_is_made_plain():
    first = Difference(1, "reason", "\x1b[2J", "b", rank=0)
    text = draw(found(a="runs/\x1b[31ma", first=first, first_in_both=first, columns={"reason": 1}))
    assert "\x1b" not in text
