"""Loops that are wired as they should be are proven, and each wrong one is told by its mistake; in one process."""

import pytest

from trimtab.errors import TrimtabError
from trimtab.proof.mistakes import Mistake

GOOD = ["run_loop", "token_run_loop", "scaled_run_loop", "tensor_guard_loop", "scalar_guard_loop", "kit_engine"]


def sample(case):
    return case.guard == "off" or case.fault in (None, "NaN")


@pytest.mark.parametrize("name", GOOD)
def test_a_loop_that_is_wired_right_is_proven(loops, proven, name):
    results = proven(loops(f"good:{name}"), only=sample)
    assert [result.text for result in results if result.outcome != "proven"] == []
    assert all("to the last bit" in result.text for result in results)
    assert len(results) == 7


@pytest.mark.long
@pytest.mark.parametrize("name", [*GOOD, "trainer"])
def test_every_case_of_a_loop_that_is_wired_right_is_proven(loops, proven, name):
    results = proven(loops(f"good:{name}"))
    assert [result.text for result in results if result.outcome != "proven"] == []
    assert len(results) == 25


def test_a_trainer_is_proven(loops, proven):
    [result] = proven(loops("good:trainer"), only=lambda case: case.fault == "NaN" and case.place == "last")
    assert result.outcome == "proven", result.text


@pytest.mark.parametrize("name", ["by_hand:by_hand", "broken:aux_left_out_as_well"])
def test_what_the_broken_loops_are_made_of_is_right(loops, proven, name):
    results = proven(loops(name))
    assert [result.text for result in results if result.outcome != "proven"] == []


# What fails, by fault and place; all that is not named is proven.
PLACES = ("first", "middle", "last")
POISON = ("NaN", "Inf", "inf derivative")
SKIPPED = ("finite spike", *POISON)
TWO = {(fault, "two") for fault in ("finite spike", "NaN")}
BROKEN = {
    "zeroed_by_multiplication": {(fault, place) for fault in POISON for place in PLACES} | {("NaN", "two")},
    "nonfinite_kept": {(fault, place) for fault in ("NaN", "Inf") for place in (*PLACES, "all")} | {("NaN", "two")},
    "nan_in_history": {(fault, place) for fault in ("NaN", "Inf") for place in (*PLACES, "all")} | {("NaN", "two")},
    "zero_gradients_stepped": {(fault, "all") for fault in (*SKIPPED, "no tokens")},
    "guard_after_backward": {(fault, place) for fault in SKIPPED for place in PLACES}
    | TWO
    | {(fault, "all") for fault in ("NaN", "Inf")},
    "aux_added_outside": {(fault, place) for fault in SKIPPED for place in PLACES}
    | TWO
    | {(fault, "all") for fault in ("NaN", "Inf")},
    "tokens_zeroed_too": {(fault, place) for fault in SKIPPED for place in PLACES}
    | TWO
    | {(fault, "all") for fault in ("NaN", "Inf")},
}


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_mistake_is_told_by_its_name_and_two_numbers_wherever_it_shows(loops, proven, mistake):
    # when
    results = proven(loops(f"broken:{mistake}"))
    # then it shows where it must, and nothing else is claimed
    failed = [result for result in results if result.outcome == "failed"]
    assert {(result.fault, result.place) for result in failed} == BROKEN[mistake]
    assert {result.mistake for result in failed} == {mistake}
    for result in failed:
        assert isinstance(result.found, float)
        assert isinstance(result.expected, float)
        assert result.found != result.expected
        assert result.text.startswith(Mistake[mistake].what)


# What fails and no entry of the catalogue need name; the first check that says so, and where.
WRONG = {
    "one_skip_a_window": ("finite spike", "two", "same as the oracle", None),
    "reports_nonsense": ("finite spike", "first", "reported loss", "spike_in_reported_loss"),
    "reports_a_bound": ("NaN", "last", "reported loss", "spike_in_reported_loss"),
    "reports_zero": ("NaN", "two", "reported loss", "spike_in_reported_loss"),
    "judged_twice": ("finite spike", "last", "micro-batches judged", "skipped_too_much"),
    "hardwired_multiplier": ("finite spike", "last", "skips counted", "settings_not_handed_on"),
    "fixed_threshold": ("finite spike", "last", "skips counted", "settings_not_handed_on"),
    "no_spike_skipped": ("NaN", "first", "skips counted", "not_skipped"),
    "moments_forgotten": ("finite spike", "first", "same as the oracle", None),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_loop_that_is_wrong_in_one_place_fails_there(loops, proven, name):
    fault, place, check, mistake = WRONG[name]
    is_lenient = mistake == "settings_not_handed_on"
    results = proven(
        loops(f"broken:{name}"),
        only=lambda case: (case.fault, case.place, case.guard == "lenient") == (fault, place, is_lenient),
    )
    assert [(result.outcome, result.check, result.mistake) for result in results] == [("failed", check, mistake)]
    assert results[0].found != results[0].expected


@pytest.mark.parametrize("name", ["hardwired_multiplier", "fixed_threshold", "one_skip_a_window"])
def test_what_one_case_alone_shows_no_other_claims(loops, proven, name):
    results = proven(loops(f"broken:{name}"))
    expected = 2 if name == "one_skip_a_window" else 1
    assert sum(result.outcome == "failed" for result in results) == expected


@pytest.mark.parametrize("name", ["still", "without_rate"])
@pytest.mark.filterwarnings("ignore:Seems like .optimizer.step:UserWarning")
def test_a_loop_that_moves_nothing_proves_nothing(loops, proven, name):
    with pytest.raises(TrimtabError, match=r"does not train: .* window 3 moved no parameter"):
        proven(loops(f"broken:{name}"), only=sample)


def test_moments_that_differ_alone_are_called_the_state_of_the_optimizer(loops, proven):
    [result] = proven(
        loops("broken:moments_forgotten"), only=lambda case: (case.fault, case.place) == ("finite spike", "first")
    )
    assert "the optimizer state (moments and step counts)" in result.text


# Losses that are not plain: what cannot be planted in them is said, and what can is proven.
NOT_APPLICABLE = {
    "of_log_probabilities": {"no tokens"},
    "of_a_margin": {"no tokens"},
    "capped": {"finite spike", "Inf", "inf derivative", "no tokens"},
    "of_normed_logits": {"finite spike", "inf derivative", "no tokens"},
    "contrastive": {"finite spike", "inf derivative", "no tokens"},
    "of_a_reward": {"finite spike", "Inf", "inf derivative", "no tokens"},
    "of_probabilities": {"finite spike", "NaN", "Inf", "inf derivative", "no tokens"},
    "with_two_optimizers": {"no tokens"},
    "with_skipped_tokens_removed": set(),
}


@pytest.mark.parametrize("name", NOT_APPLICABLE)
def test_a_sound_loop_whose_loss_is_not_plain_fails_nowhere(loops, proven, name):
    results = proven(loops(f"losses:{name}"))
    assert [result.text for result in results if result.outcome == "failed"] == []
    assert {result.fault for result in results if result.outcome == "not_applicable"} == NOT_APPLICABLE[name]


def test_tokens_that_are_taken_out_of_the_divisor_are_a_mistake_where_the_loop_does_not_say_so(loops, proven):
    def build(guard):
        loop = loops("losses:with_skipped_tokens_removed")(guard)
        loop.skipped_tokens = "counted"
        return loop

    [result] = proven(build, only=lambda case: (case.fault, case.place) == ("NaN", "middle"))
    assert result.mistake == "tokens_zeroed_too"


@pytest.mark.parametrize("counts", [True, False], ids=["counted", "not counted"])
@pytest.mark.parametrize(
    ("name", "mistake"),
    [("broken:zeroed_beside_a_kit", "zeroed_by_multiplication"), ("mutants:kept_nan", "nonfinite_kept")],
)
def test_a_window_that_is_dropped_for_its_norm_is_told_by_what_made_it_so(loops, proven, name, mistake, counts):
    # given: a host that drops a window whose norm is not finite, so that nothing that is not finite is left to be seen
    def build(guard):
        loop = loops(name)(guard)
        if not counts:
            loop.num_skipped = None
        return loop

    # when
    results = proven(build, only=lambda case: case.fault in (None, *SKIPPED) and case.place in (None, "last"))
    # then
    failed = [result for result in results if result.outcome == "failed"]
    assert {result.fault for result in failed} == {fault for fault, place in BROKEN[mistake] if place == "last"}
    assert {result.mistake for result in failed} == {mistake}


@pytest.mark.parametrize("mistake", ["last_backward_left_out", "per_rank_decision"])
def test_a_mistake_that_needs_two_ranks_is_none_in_one_process(loops, proven, mistake):
    results = proven(loops(f"broken:{mistake}"), only=lambda case: case.place in (None, "last"))
    assert [result.text for result in results if result.outcome != "proven"] == []


def test_the_numbers_of_a_divisor_are_the_ratio_of_the_tokens(loops, proven):
    # given 3 micro-batches of 7 tokens, one of them skipped
    [result] = proven(
        loops("broken:tokens_zeroed_too"), only=lambda case: (case.fault, case.place) == ("NaN", "middle")
    )
    # then 21 / 14
    assert result.found == pytest.approx(1.5, abs=1e-5)
    assert result.expected == 1.0


def test_the_term_outside_is_named_by_its_place_in_the_output(loops, proven):
    [result] = proven(
        loops("broken:aux_added_outside"), only=lambda case: (case.fault, case.place) == ("finite spike", "first")
    )
    assert "output['router_loss']" in result.text


@pytest.mark.parametrize("mistake", BROKEN)
def test_a_mistake_is_told_also_where_nobody_counts_skips(loops, proven, mistake):
    # given
    def build(guard):
        loop = loops(f"broken:{mistake}")(guard)
        loop.num_skipped = None
        return loop

    # when
    results = proven(build, only=lambda case: case.fault == "NaN")
    # then
    failed = [result for result in results if result.outcome == "failed"]
    assert {("NaN", result.place) for result in failed} == {one for one in BROKEN[mistake] if one[0] == "NaN"}
    assert {result.mistake for result in failed} == {mistake}
