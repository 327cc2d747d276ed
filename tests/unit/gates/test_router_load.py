"""The gate of the load: a balance that was lost, and counts that do not add up."""

import pytest

from trimtab import WatchConfig
from trimtab.gates.router_load import router_load


def test_a_young_router_may_find_its_balance_by_itself_and_an_old_one_has_lost_it(run, make_layer, make_report):
    # given: nearly all tokens on two experts of a router that is not sure of them
    def uneven(step):
        return make_report(step, make_layer(counts=(3_900, 3_900, 40, 40, 30, 30, 30, 30), load_balance=1.5))

    run.attempt(1, 100, reports=lambda step: uneven(step) if step == 10 else make_report(step, make_layer()))
    assert run.judge(router_load).status == "passed"
    run.attempt(101, 140, reports=lambda step: uneven(step) if step == 140 else make_report(step, make_layer()))
    assert run.judge(router_load).status == "failed"


def test_counts_that_do_not_add_up_fail_the_load(run, make_layer, make_report):
    # given: every token was counted twice
    run.attempt(1, 40, reports=lambda step: make_report(step, make_layer(counts=(2_000,) * 8, num_tokens=4_000)))
    gate = run.judge(router_load)
    assert gate.status == "failed"
    assert "2 times as many" in gate.text


@pytest.mark.parametrize("confidence", [{}, {"token_entropy": 2.03, "spread": 0.84}], ids=["sure", "hardly chooses"])
def test_an_expert_among_the_choices_of_all_tokens_fails_it_however_the_others_spread(
    run, make_layer, make_report, confidence
):
    # given: what a sweep over z weights has left of a layer: a load that no rule of a watch finds fault with
    counts = (22_740, 3_710, 4_407, 51_200, 5_077, 3_149, 11_831, 286)
    broken = make_layer("moe.1", counts, load_balance=1.38, **confidence)
    run.attempt(1, 40, reports=lambda step: make_report(step, make_layer(), broken))
    gate = run.judge(router_load)
    assert gate.status == "failed"
    assert gate.text.startswith("expert 3 gets all tokens of layer moe.1 (even: 25%);")


def test_one_that_most_tokens_choose_while_the_router_is_young_does_not(run, make_layer, make_report):
    counts = (41_984, 10_000, 10_000, 10_416, 10_000, 10_000, 5_000, 5_000)  # 82 % of the tokens choose the first
    run.attempt(1, 10, reports=lambda step: make_report(step, make_layer(counts=counts)))
    assert run.judge(router_load).status == "passed"


def test_an_expert_of_few_that_every_token_needs_is_no_collapse(run, make_layer, make_report):
    # given: three of four experts a token, so that each of them gets most tokens anyway
    uneven = make_layer(counts=(1_000, 700, 650, 650), num_experts=4, top_k=3, num_tokens=1_000)
    run.attempt(1, 10, reports=lambda step: make_report(step, uneven))
    assert run.judge(router_load).status == "passed"


def test_a_load_balance_above_the_bound_of_the_watch_fails_it(run, make_layer, make_report):
    config = WatchConfig(
        report_every=10, host_memory_floor_bytes=1, load_balance_high=1.2, load_balance_rising_above=1.1
    )
    run.attempt(1, 10, watch=config, reports=lambda step: make_report(step, make_layer(load_balance=1.21)))
    gate = run.judge(router_load)
    assert gate.status == "failed"
    assert "1.21" in gate.text
