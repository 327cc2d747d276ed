"""The gate of the populations: what is half of an even share, layer by layer."""

import pytest

from trimtab.gates.populations import populations


def counts_of(least, *, total=4_000):
    """Counts of 8 experts of which the second population has so many tokens."""
    rest = total - least
    return (rest // 4 + rest % 4, *(rest // 4,) * 3, least // 4 + least % 4, *(least // 4,) * 3)


def judged(run, make_layer, make_report, *leasts):
    """The gate after reports of a sound layer, and of one whose second population has so many of 4,000 tokens."""
    run.attempt(
        1,
        10 * len(leasts),
        reports=lambda step: make_report(step, make_layer(), make_layer("moe.1", counts_of(leasts[step // 10 - 1]))),
    )
    return run.judge(populations)


@pytest.mark.parametrize(
    ("leasts", "status"),
    [
        ((868,), "passed"),
        ((868, 868), "passed"),
        ((868, 868, 868), "failed"),
        ((999, 999, 999), "failed"),
        ((999, 1_000, 999), "passed"),
        ((1_000, 1_000, 1_000), "passed"),
        ((100, 100, 100, 1_500), "passed"),
        ((249,), "failed"),
        ((250,), "passed"),
        ((499, 499), "failed"),
        ((499, 501), "passed"),
        ((501, 499), "passed"),
        ((0,), "failed"),
    ],
    ids=str,
)
def test_a_layer_is_starved_below_an_eighth_at_once_below_a_quarter_twice_and_below_half_where_it_lasts(
    run, make_layer, make_report, leasts, status
):
    # given: 2,000 of 4,000 tokens are an even share of two populations
    gate = judged(run, make_layer, make_report, *leasts)
    assert (gate.status, sum(gate.figures["shares"]["moe.1"])) == (status, pytest.approx(1.0))


def test_what_the_published_sound_run_showed_once_is_told_and_passes(run, make_layer, make_report):
    # given: the least shares of one layer of the recipe's smallest preset, seed 3, at steps 25, 50 and 75
    gate = judged(run, make_layer, make_report, 1_452, 1_096, 868)
    assert gate.status == "passed"
    assert gate.text.startswith(
        "each of 2 has 21.7 to 78.3 % of the tokens of a layer at step 30 (even: 50 %); less than"
    )
    assert "in moe.1, which fails if 3 reports in a row show it" in gate.text


def test_reports_of_the_chunk_before_count_as_well(run, make_layer, make_report):
    small = make_layer("moe.1", counts_of(800))
    run.attempt(1, 20, reports=lambda step: make_report(step, make_layer(), small))
    run.attempt(21, 30, reports=lambda step: make_report(step, make_layer(), small))
    gate = run.judge(populations)
    assert gate.status == "failed"
    assert "has 20 % of the tokens of layer moe.1 at step 30, less than half of its even share of 50 %, as" in gate.text


@pytest.mark.parametrize(("least", "status"), [(995, "failed"), (1_005, "passed")], ids=str)
def test_of_all_layers_together_one_report_is_enough(run, make_layer, make_report, least, status):
    layers = [make_layer(name, counts_of(least)) for name in ("a", "b")]
    run.attempt(1, 10, reports=lambda step: make_report(step, *layers))
    gate = run.judge(populations)
    assert gate.status == status
    assert ("of the tokens of all layers at step 10" in gate.text) is (status == "failed")


def test_two_layers_that_starve_opposite_populations_do_not_pool_to_an_even_share(run, make_layer, make_report):
    one, other = (1_800,) * 4 + (100,) * 4, (100,) * 4 + (1_800,) * 4
    run.attempt(1, 10, reports=lambda step: make_report(step, make_layer("a", one), make_layer("b", other)))
    gate = run.judge(populations)
    assert gate.status == "failed"
    assert "of layer a and likewise in 1 more layer at step 10" in gate.text


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
