"""The gate of the load: a balance that was lost, and counts that do not add up."""

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
