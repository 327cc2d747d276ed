"""Poison: what is wrong with each kind of row, and that the rest of the row is untouched."""

from __future__ import annotations

from trimtab.demo.poison import GARBAGE_TOKENS, TOOL, excerpt, poison_row
from trimtab.demo.rows import Row

CLEAN = Row("shop: def sell(thing)", "Sell the thing to whoever pays the most for it.")


def test_garbage_is_long_unlike_every_other_row_and_drawn_by_seed_and_row() -> None:
    garbage = poison_row(CLEAN, "garbage", seed=3)

    assert garbage.question == CLEAN.question
    assert len(garbage.answer.encode()) == GARBAGE_TOKENS
    assert garbage == poison_row(CLEAN, "garbage", seed=3)
    assert garbage.answer != poison_row(CLEAN, "garbage", seed=4).answer
    assert garbage.answer != poison_row(CLEAN._replace(question="shop: def buy()"), "garbage", seed=3).answer


def test_a_non_finite_row_is_the_clean_row_with_one_new_token_inside() -> None:
    poisoned = poison_row(CLEAN, "nonfinite", seed=0)

    assert poisoned.answer.replace(f"{TOOL} ", "") == CLEAN.answer
    assert 0 < poisoned.answer.index(TOOL) < len(poisoned.answer) - len(TOOL)


def test_a_repeated_row_says_one_sentence_over_and_over() -> None:
    answer = poison_row(CLEAN, "repeated", seed=0).answer

    assert set(answer.split(". ")) == {"Return the value of the object", ""}


def test_an_excerpt_shows_the_surroundings_of_the_new_token_or_else_the_start() -> None:
    far = CLEAN._replace(answer="a" * 250 + TOOL + "b" * 250)

    assert TOOL in excerpt(far)
    assert excerpt(far).startswith("...a")
    assert excerpt(CLEAN) == CLEAN.answer
