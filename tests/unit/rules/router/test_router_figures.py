"""Figures from counts, against counting by hand and against drawing every case."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.rules.router.figures import (
    busiest_share,
    crowding_by_chance,
    load_entropy,
    load_share,
    max_vio,
    population_shares,
    silence_by_chance,
    silent_by_chance,
)


def test_max_vio_is_the_largest_load_over_the_mean_minus_1() -> None:
    assert max_vio((781, 548, 647, 600, 636, 566, 713, 629)) == pytest.approx(781 / 640 - 1)
    assert max_vio((64, 0, 0, 0, 0, 0, 0, 0)) == 7


def test_load_entropy_is_ln_e_at_balance_and_ln_k_where_all_go_to_the_same_k() -> None:
    assert load_entropy((5, 5, 5, 5)) == pytest.approx(math.log(4))
    assert load_entropy((9, 9, 0, 0)) == pytest.approx(math.log(2))
    assert load_entropy((3, 1)) == pytest.approx(0.75 * math.log(4 / 3) + 0.25 * math.log(4))


def test_the_share_of_the_possible_load_entropy_knows_k() -> None:
    assert load_share((9, 9, 0, 0), top_k=2) == 0
    assert load_share((9, 9, 0, 0), top_k=1) == pytest.approx(0.5)
    assert load_share((5, 5, 5, 5), top_k=2) == 1
    assert load_share((5, 5), top_k=2) is None


def test_the_busiest_expert_of_all_tokens_has_a_share_of_1_whatever_k() -> None:
    assert busiest_share((10, 5, 5), top_k=2) == 1.0
    assert busiest_share((4, 4, 4), top_k=1) == pytest.approx(1 / 3)


@pytest.mark.parametrize("figure", [max_vio, load_entropy], ids=["max_vio", "load_entropy"])
def test_no_token_at_all_tells_nothing(figure) -> None:  # type: ignore[no-untyped-def]
    assert figure((0, 0, 0)) is None


def test_populations_are_neighbours_of_one_size() -> None:
    assert population_shares((1, 2, 3, 4), num_populations=2) == (0.3, 0.7)
    assert population_shares((5, 5), num_populations=1) == (1.0,)


@pytest.mark.parametrize(
    ("counts", "num_populations"), [((0, 0), 2), ((1, 2, 3, 4, 100), 2), ((5, 5), 3), ((5, 5), 0), ((), 1)]
)
def test_without_tokens_or_with_an_uneven_rest_no_population_has_a_share(
    counts: tuple[int, ...], num_populations: int
) -> None:
    assert population_shares(counts, num_populations=num_populations) is None


def test_the_chance_that_one_of_eight_experts_is_silent_over_64_tokens() -> None:
    assert math.exp(silence_by_chance(64, num_experts=8, top_k=1)) == pytest.approx(8 * (7 / 8) ** 64)


def test_eight_tokens_over_64_experts_prove_nothing() -> None:
    silent = dict.fromkeys(range(8, 64), 8)

    assert silent_by_chance(silent, num_experts=64, top_k=1, chance=1e-6) == ()


@pytest.mark.parametrize(("num_experts", "top_k", "num_tokens"), [(3, 1, 4), (4, 2, 3), (4, 3, 2), (2, 1, 6)])
def test_no_chance_is_larger_than_its_bound(num_experts: int, top_k: int, num_tokens: int) -> None:
    # given every way in which a balanced router can send these tokens
    choices = list(itertools.combinations(range(num_experts), top_k))
    cases = list(itertools.product(choices, repeat=num_tokens))
    loads = [[sum(expert in chosen for chosen in case) for expert in range(num_experts)] for case in cases]

    for num_silent in range(1, num_experts):
        chance = sum(load.count(0) >= num_silent for load in loads) / len(cases)
        bound = silence_by_chance(num_tokens, num_experts=num_experts, top_k=top_k, num_silent=num_silent)
        assert chance <= math.exp(bound) + 1e-12
    for count in range(1, num_tokens + 1):
        chance = sum(max(load) >= count for load in loads) / len(cases)
        bound = crowding_by_chance(num_tokens, num_experts=num_experts, top_k=top_k, share=count / num_tokens)
        assert chance <= math.exp(bound) + 1e-12


def test_a_dead_expert_proves_nothing_about_its_neighbour() -> None:
    # given one expert of eight without a token for very long, and another that missed a few
    assert silent_by_chance({3: 10_000, 5: 40}, num_experts=8, top_k=1, chance=1e-6) == (3,)
    assert silent_by_chance({3: 10_000, 5: 200}, num_experts=8, top_k=1, chance=1e-6) == (3, 5)


def test_once_some_are_dead_the_rest_is_judged_as_a_router_over_the_others() -> None:
    # given two experts left alive, of which one is passed over by 25 tokens: 2 * (1 / 2)^25 is 6e-8
    silent = dict.fromkeys(range(6), 10_000) | {6: 25}

    assert silent_by_chance(silent, num_experts=8, top_k=1, chance=1e-6) == tuple(range(7))


def test_experts_that_are_silent_together_prove_more_than_each_alone() -> None:
    assert silent_by_chance({0: 64}, num_experts=8, top_k=1, chance=1e-6) == ()
    assert silent_by_chance(dict.fromkeys(range(6), 64) | {6: 70}, num_experts=8, top_k=1, chance=1e-6) == tuple(
        range(7)
    )
    assert silent_by_chance(dict.fromkeys(range(1, 8), 64), num_experts=8, top_k=1, chance=1e-6) == tuple(range(1, 8))


@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=64))
def test_figures_stay_within_their_bounds(counts: list[int]) -> None:
    if not sum(counts):
        return
    entropy, vio = load_entropy(counts), max_vio(counts)
    assert entropy is not None
    assert vio is not None
    assert -1e-12 <= entropy <= math.log(len(counts)) + 1e-9
    assert -1e-9 <= vio <= len(counts) - 1 + 1e-9
