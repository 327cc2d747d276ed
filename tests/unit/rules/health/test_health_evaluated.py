"""Which losses of an evaluation are judged, and under which name."""

import math

import pytest

from trimtab.rules.health.evaluated import evaluated_losses

CASES = {
    "a loss alone": ({"loss": 2.5, "accuracy": 0.5}, {"": 2.5}),
    "spelled as text": ({"loss": "inf"}, {"": math.inf}),
    "the same by its name": ({"loss": 2.5, "eval_loss": 2.5}, {"": 2.5}),
    "by its name alone": ({"eval/loss": 2.5}, {"": 2.5}),
    "two datasets": (
        {"loss": "nan", "eval_wiki_loss": 2.0, "eval_code_loss": 1.0},
        {"eval_wiki_loss": 2.0, "eval_code_loss": 1.0},
    ),
    "two datasets, the first told twice": (
        {"loss": 2.0, "val/wiki/loss": 2.0, "val/code/loss": 1.0},
        {"val/wiki/loss": 2.0, "val/code/loss": 1.0},
    ),
    "a mean beside its datasets": ({"loss": 1.5, "eval_code_loss": 1.0}, {"": 1.5, "eval_code_loss": 1.0}),
    "terms that are no evaluation": ({"loss": 2.5, "z_loss": 0.1, "train_loss": 2.0}, {"": 2.5}),
    "no number": ({"loss": True, "eval_loss": [1.0], "eval_code_loss": 10**400}, {}),
    "none": ({}, {}),
}


@pytest.mark.parametrize(("facts", "expected"), CASES.values(), ids=CASES.keys())
def test_each_loss_is_judged_once_by_the_name_of_its_data(facts, expected) -> None:
    assert dict(evaluated_losses(facts)) == expected


def test_a_loss_that_is_not_finite_is_an_evaluation_too() -> None:
    [(name, loss)] = evaluated_losses({"loss": math.nan, "runtime": 1.0})

    assert name == ""
    assert math.isnan(loss)
