"""Loops that are wired as they should be are proven, and each wrong one is told by its mistake; in one process."""

import pytest

from trimtab.proof.mistakes import Mistake

GOOD = ["run_loop", "token_run_loop", "scaled_run_loop", "tensor_guard_loop", "scalar_guard_loop", "kit_engine"]


def sample(case):
    return case.guard == "off" or case.fault in (None, "NaN")


@pytest.mark.parametrize("name", GOOD)
def test_a_loop_that_is_wired_right_is_proven(loops, proven, name):
    results = proven(loops(f"good:{name}"), only=sample)
    assert [result.text for result in results if result.outcome != "proven"] == []
    assert all("to the last bit" in result.text for result in results)
    assert len(results) == 6


@pytest.mark.long
@pytest.mark.parametrize("name", [*GOOD, "trainer"])
def test_every_case_of_a_loop_that_is_wired_right_is_proven(loops, proven, name):
    results = proven(loops(f"good:{name}"))
    assert [result.text for result in results if result.outcome != "proven"] == []
    assert len(results) == 22


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
BROKEN = {
    "zeroed_by_multiplication": {(fault, place) for fault in POISON for place in PLACES},
    "nonfinite_kept": {(fault, place) for fault in ("NaN", "Inf") for place in (*PLACES, "all")},
    "nan_in_history": {(fault, place) for fault in ("NaN", "Inf") for place in (*PLACES, "all")},
    "zero_gradients_stepped": {(fault, "all") for fault in (*SKIPPED, "no tokens")},
    "guard_after_backward": {(fault, place) for fault in SKIPPED for place in PLACES}
    | {(fault, "all") for fault in ("NaN", "Inf")},
    "aux_added_outside": {(fault, place) for fault in SKIPPED for place in PLACES}
    | {(fault, "all") for fault in ("NaN", "Inf")},
    "tokens_zeroed_too": {(fault, place) for fault in SKIPPED for place in PLACES}
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
