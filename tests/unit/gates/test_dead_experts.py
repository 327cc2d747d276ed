"""The gate of the experts that get no token any more."""

from trimtab.gates.dead_experts import dead_experts


def test_experts_that_are_silent_as_chance_has_it_are_not_dead(run, make_layer, make_report):
    # given: 8 tokens over 8 experts at top 2
    few = (2, 3, 4, 2, 3, 2, 0, 0)
    run.attempt(1, 10, reports=lambda step: make_report(step, make_layer(counts=few)))
    gate = run.judge(dead_experts)
    assert (gate.status, gate.text) == ("passed", "none of 8 in 1 layer at step 10, 2 silent as chance has it")


def test_one_dead_expert_fails_and_is_named(run, make_layer, make_report):
    counts = (1_000,) * 5 + (0, 1_500, 1_500)
    run.attempt(1, 30, reports=lambda step: make_report(step, make_layer(), make_layer("moe.7", counts)))
    gate = run.judge(dead_experts)
    assert (gate.status, gate.figures["num_dead"], gate.figures["layers"]) == ("failed", 1, {"moe.7": [5]})
    assert "moe.7 (expert 5)" in gate.text


def test_names_of_layers_are_told_as_plain_text(run, make_layer, make_report):
    name = "moe\x1b[2J\u202e"
    counts = (1_000,) * 5 + (0, 1_500, 1_500)
    run.attempt(1, 10, reports=lambda step: make_report(step, make_layer(name, counts)))
    text = run.judge(dead_experts).text
    assert text.isascii()
    assert text.isprintable()
