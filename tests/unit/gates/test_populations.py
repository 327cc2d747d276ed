"""The gate of the populations: what is half of an even share, layer by layer."""

import pytest

from trimtab.gates.populations import populations


@pytest.mark.parametrize(
    ("least", "status"), [(999, "failed"), (1_000, "passed"), (1_001, "passed"), (0, "failed")], ids=str
)
def test_a_population_starves_below_half_of_its_even_share(run, make_layer, make_report, least, status):
    # given: 4,000 routed tokens, of which a quarter is half of an even share
    rest = 4_000 - least
    counts = (rest // 4 + rest % 4, rest // 4, rest // 4, rest // 4, least // 4 + least % 4, *(least // 4,) * 3)
    run.attempt(1, 10, reports=lambda step: make_report(step, make_layer(), make_layer("moe.1", counts)))
    gate = run.judge(populations)
    assert (gate.status, sum(gate.figures["shares"]["moe.1"])) == (status, pytest.approx(1.0))


def test_two_layers_that_starve_opposite_populations_do_not_pool_to_an_even_share(run, make_layer, make_report):
    one, other = (1_800,) * 4 + (200,) * 4, (200,) * 4 + (1_800,) * 4
    run.attempt(1, 10, reports=lambda step: make_report(step, make_layer("a", one), make_layer("b", other)))
    gate = run.judge(populations)
    assert gate.status == "failed"
    assert "and likewise in 1 more layer;" in gate.text


def test_a_small_share_of_few_tokens_is_unknown(run, make_layer, make_report):
    counts = (3, 2, 2, 2, 1, 0, 0, 0)
    run.attempt(1, 10, reports=lambda step: make_report(step, make_layer(counts=counts)))
    gate = run.judge(populations)
    assert (gate.status, "too few tokens" in gate.text) == ("unknown", True)


def test_one_population_has_nothing_to_share(run, make_report):
    run.attempt(1, 10, reports=lambda step: make_report(step, num_populations=1))
    assert run.judge(populations).status == "inapplicable"


def test_populations_that_do_not_divide_the_experts_are_unknown(run, make_report):
    run.attempt(1, 10, reports=lambda step: make_report(step, num_populations=3))
    assert run.judge(populations).status == "unknown"
