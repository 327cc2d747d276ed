"""Plants: which rows are poisoned when, for every seed and size of run."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.demo.plant import GUARDED_KINDS, UNGUARDED_KINDS, Plant, draw_plants, planted_document
from trimtab.errors import UsageError


def shuffled_order(num_steps: int, *, accumulation: int = 2, batch_size: int = 4, seed: int = 0) -> list[list[int]]:
    rows = list(range(num_steps * accumulation * batch_size))
    random.Random(seed).shuffle(rows)
    return [rows[at : at + batch_size] for at in range(0, len(rows), batch_size)]


@given(seed=st.integers(0, 2**40), num_steps=st.integers(200, 400), order_seed=st.integers(0, 9))
def test_plants_lie_in_the_settled_part_twelve_steps_apart_and_where_the_order_says(
    seed: int, num_steps: int, order_seed: int
) -> None:
    order = shuffled_order(num_steps, seed=order_seed)

    plants = draw_plants(order, seed=seed, kinds=GUARDED_KINDS, accumulation=2)

    steps = [plant.step for plant in plants]
    assert all(0.4 * num_steps < step <= num_steps - 5 for step in steps)
    assert all(later - earlier >= 12 for earlier, later in pairwise(steps))
    assert all(plant.row in order[(plant.step - 1) * 2 + plant.micro] for plant in plants)
    assert len({plant.row for plant in plants}) == 6
    assert sorted(plant.kind for plant in plants) == sorted(GUARDED_KINDS)


@given(seed=st.integers(0, 10_000))
def test_without_a_guard_one_garbage_row_comes_before_the_non_finite_one(seed: int) -> None:
    plants = draw_plants(shuffled_order(360), seed=seed, kinds=UNGUARDED_KINDS, accumulation=2, until=0.65)

    assert [plant.kind for plant in plants] == ["garbage", "nonfinite"]
    assert 144 < plants[0].step <= plants[1].step - 12
    assert plants[1].step <= 234


def test_the_same_seed_draws_the_same_plants_and_other_seeds_draw_others() -> None:
    order = shuffled_order(360)

    draws = [
        tuple(draw_plants(order, seed=seed, kinds=GUARDED_KINDS, accumulation=2)) for seed in (*range(20), *range(20))
    ]

    assert draws[:20] == draws[20:]
    assert len(set(draws)) == 20


def test_every_step_of_the_settled_part_can_be_drawn() -> None:
    order = shuffled_order(200)

    drawn = {
        plant.step
        for seed in range(600)
        for plant in draw_plants(order, seed=seed, kinds=GUARDED_KINDS, accumulation=2)
    }

    assert drawn == set(range(81, 196))


def test_a_run_too_short_for_its_plants_is_refused_with_the_steps_it_would_need() -> None:
    with pytest.raises(UsageError, match="50 steps leave no room for 6 planted rows 12 steps apart"):
        draw_plants(shuffled_order(50), seed=0, kinds=GUARDED_KINDS, accumulation=2)


def test_the_document_holds_rows_and_steps_in_parallel_and_the_kind_of_each_row() -> None:
    plants = [Plant(150, 1, 17, "garbage"), Plant(170, 0, 4, "nonfinite")]

    assert planted_document(plants) == {
        "rows": [17, 4],
        "steps": [150, 170],
        "kinds": {"17": "garbage", "4": "nonfinite"},
    }
