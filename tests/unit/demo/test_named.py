"""Planted against named: what counts as shown, and the table."""

from __future__ import annotations

import json
import math

import pytest

from trimtab.demo.named import Check, draw_checks
from trimtab.demo.plant import Kind, Plant

NAN = math.nan


def check(kind: Kind, *, finding: str | None, first_row: int | None, loss: float | None = 13.0) -> Check:
    return Check(plant=Plant(150, 1, 17, kind), finding=finding, first_row=first_row, loss=loss, share=0.94)


@pytest.mark.parametrize("kind", ["garbage", "nonfinite"])
def test_what_the_loss_can_show_must_be_a_finding_and_named_first(kind: Kind) -> None:
    assert check(kind, finding="spike", first_row=17).passed
    assert not check(kind, finding="spike", first_row=3).passed
    assert not check(kind, finding="spike", first_row=None).passed
    assert not check(kind, finding=None, first_row=17).passed


def test_a_repeated_row_is_not_asked_of_the_loss() -> None:
    assert check("repeated", finding=None, first_row=3).passed


def test_a_check_is_strict_json_also_where_the_loss_is_not_finite() -> None:
    document = check("nonfinite", finding="nonfinite", first_row=17, loss=NAN).to_dict()

    assert json.loads(json.dumps(document, allow_nan=False)) == {
        "step": 150,
        "row": 17,
        "kind": "nonfinite",
        "finding": "nonfinite",
        "first_row": 17,
        "named_first": True,
        "loss": "nan",
        "share": 0.94,
    }


def test_the_table_shows_a_line_and_the_text_of_each_row_in_even_columns() -> None:
    checks = [
        check("garbage", finding="spike", first_row=17),
        check("repeated", finding=None, first_row=None, loss=None),
    ]

    lines = draw_checks(checks, ['"one"', '"two"'])

    assert [line.split() for line in lines] == [
        ["step", "planted", "kind", "finding", "named", "first", "loss", "share"],
        ["150", "17", "garbage", "spike", "row", "17", "13.00", "94.0%"],
        ['"one"'],
        ["150", "17", "repeated", "-", "none", "-", "94.0%"],
        ['"two"'],
    ]
    assert len({len(line) for line in lines[::2][:1] + lines[1::2]}) == 1
