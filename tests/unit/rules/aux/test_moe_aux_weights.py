"""What auxiliary terms weigh: gradients put together by hand are taken apart, and numbers by hand are judged."""

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.rules.aux.factors import Sizes
from trimtab.rules.aux.held import Outside, held_in_ce
from trimtab.rules.aux.projection import project, scaled, without
from trimtab.rules.aux.values import TermWeight, told
from trimtab.rules.aux.weights import constant_terms, judge_weight, judge_weights

SIZES = Sizes(accumulation=4, num_layers=14, num_experts=48, top_k=3, over_layers="mean", is_divided=True)


def grams(*blocks):
    """Dot products of vectors; one list of vectors a micro-batch."""
    return [[[math.fsum(a * b for a, b in zip(u, v, strict=True)) for v in block] for u in block] for block in blocks]


def mixed(*parts):
    """The sum of weight x vector."""
    size = len(parts[0][1])
    return [math.fsum(weight * vector[i] for weight, vector in parts) for i in range(size)]


def term(name="z", *, stated=0.01, **numbers):
    numbers.setdefault("accumulated", numbers.get("found"))
    return TermWeight(name=name, stated=stated, sizes=numbers.pop("sizes", SIZES), **numbers)


def only(found):
    [finding] = judge_weight(found)
    return finding


# The projection.

CE, Z, LBL = [3.0, -1.0, 2.0, 0.5], [1.0, 1.0, 0.0, -2.0], [0.0, 2.0, 1.0, 1.0]


def test_weights_are_those_that_a_gradient_was_put_together_with():
    total = mixed((1.0, CE), (1e-3, Z), (0.25, LBL))
    fit = project(grams([total, CE, Z, LBL]), target=0, ce=1, terms=[2, 3])

    assert fit.weights == pytest.approx((1e-3, 0.25), rel=1e-9)
    assert fit.ce == pytest.approx((1.0,), rel=1e-9)
    assert fit.unexplained < 1e-6
    assert fit.size == pytest.approx(math.hypot(*total))


def test_ce_may_weigh_otherwise_in_each_micro_batch_and_the_terms_are_found_all_the_same():
    other_ce, other_z = [0.0, 1.0, 1.0, 1.0], [2.0, 0.0, 1.0, 0.0]
    blocks = ([mixed((0.1, CE), (0.5, Z)), CE, Z], [mixed((7.0, other_ce), (0.5, other_z)), other_ce, other_z])
    fit = project(grams(*blocks), target=0, ce=1, terms=[2])

    assert fit.weights == pytest.approx((0.5,))
    assert fit.ce == pytest.approx((0.1, 7.0))


def test_a_rest_makes_the_bound_as_wide_as_the_rest_could_weigh():
    total = mixed((1.0, [1.0, 0.0, 0.0]), (2.0, [0.0, 4.0, 0.0]), (1.0, [0.0, 0.0, 8.0]))
    fit = project(grams([total, [1.0, 0.0, 0.0], [0.0, 4.0, 0.0]]), target=0, ce=1, terms=[2])

    assert (fit.weights, fit.bounds, fit.unexplained) == ((2.0,), (2.0,), 8.0)
    assert fit.rest_share == pytest.approx(0.5)


def test_two_terms_that_are_nearly_parallel_are_both_unknown_and_the_third_is_not():
    twin = [value * (1.0 + 1e-9 * place) for place, value in enumerate(Z)]
    total = mixed((1.0, CE), (0.5, LBL))
    fit = project(grams([total, CE, Z, twin, LBL]), target=0, ce=1, terms=[2, 3, 4])

    assert fit.weights[:2] == (None, None)
    assert fit.weights[2] == pytest.approx(0.5, rel=1e-3)


@pytest.mark.parametrize("lost", [[0.0] * 4, [2.0 * value for value in CE]], ids=["no gradient", "parallel to ce"])
def test_a_term_without_a_direction_of_its_own_is_unknown(lost):
    fit = project(grams([mixed((1.0, CE), (0.5, Z)), CE, lost, Z]), target=0, ce=1, terms=[2, 3])

    assert fit.weights[0] is None
    assert fit.weights[1] == pytest.approx(0.5)


def test_three_terms_of_which_one_is_the_sum_of_the_others_are_all_unknown():
    fit = project(
        grams([CE, [0.0, 0.0, 0.0, 9.0], Z, LBL, mixed((1.0, Z), (1.0, LBL))]), target=0, ce=1, terms=[2, 3, 4]
    )

    assert fit.weights == (None, None, None)


def test_dot_products_of_sums_are_those_of_the_summed_gradients():
    [gram] = grams([CE, Z, LBL])

    [expected] = grams([mixed((1.0, CE), (-0.5, Z), (2.0, LBL)), Z, LBL])
    assert [value for row in without(gram, place=0, parts={1: 0.5, 2: -2.0}) for value in row] == pytest.approx(
        [value for row in expected for value in row]
    )
    [expected] = grams([mixed((3.0, CE)), Z, mixed((3.0, LBL))])
    assert scaled(gram, factor=3.0, places=(0, 2)) == expected


def outside(ce, *terms):
    [gram] = grams([ce, *terms, [0.0] * len(ce)])
    return Outside(gram=gram, num_free=1000, whole=100.0)


def test_a_term_that_makes_up_what_ce_should_not_have_is_held_in_it():
    # of the first kind z alone has a part, of the second both
    kinds = (outside(mixed((0.3, Z)), Z, [0.0] * 4), outside(mixed((0.3, Z), (0.2, LBL)), Z, LBL))
    held = held_in_ce([kinds], terms=[0, 1])

    assert {place: weight for place, (weight, _) in held.items()} == pytest.approx({0: 0.3, 1: 0.2})


NOT_HELD = {
    "ce has a part of its own": outside(mixed((1.0, Z), (0.4, [1.0, -1.0, 2.0, 0.0])), Z, LBL),
    "rounding": outside(mixed((1e-6, Z)), Z, LBL),
    "as few tokens as terms": Outside(gram=outside(mixed((0.3, Z)), Z, LBL).gram, num_free=3, whole=100.0),
    "no gradient": outside([0.0] * 4, Z, LBL),
}


@pytest.mark.parametrize("part", NOT_HELD.values(), ids=NOT_HELD)
def test_a_part_that_terms_do_not_surely_explain_is_held_by_none(part):
    assert held_in_ce([(part,)], terms=[0, 1]) == {}


number = st.floats(-2.0, 2.0)


@given(weights=st.tuples(number, number), ce=number)
def test_any_weights_come_back_within_the_bound(weights, ce):
    total = mixed((ce, CE), (weights[0], Z), (weights[1], LBL))
    fit = project(grams([total, CE, Z, LBL]), target=0, ce=1, terms=[2, 3])

    for found, put, bound in zip(fit.weights, weights, fit.bounds, strict=True):
        assert found == pytest.approx(put, abs=bound + 1e-9)


# A weight.


def test_a_weight_that_is_what_is_stated_is_no_finding():
    audit = judge_weights([term(found=0.0101, bound=1e-5, value=4.0, logged=4.0)], ce=1.0, ce_accumulated=1.0)

    assert (audit.findings, audit.notes, audit.is_sound) == ((), (), True)
    assert told(audit) == "z weighs 0.0101 (stated 0.01)"


def test_a_coefficient_inside_and_outside_is_named_as_its_square():
    # coef 0.01, internal 0.01, raw aux 4.0: the term that is logged is 0.0004.
    finding, of_log = judge_weight(term(found=1e-4, value=4.0, logged=0.0004))

    assert finding.kind == "weight_applied_twice"
    assert "weighs 0.0001 in the gradient, stated 0.01: it is the weight squared (0.01 x 0.01 = 0.0001)" in finding.text
    assert (finding.figures["found"], finding.figures["stated"]) == (1e-4, 0.01)
    assert of_log.kind == "logged_differs"
    assert "the weight squared (0.01 x 0.01) is in it" in of_log.text


def test_an_internal_hundredth_under_a_thousandth_is_a_factor_inside_and_outside():
    finding = only(term(stated=0.001, found=1e-5))

    assert finding.kind == "weight_applied_twice"
    assert "weighs 1e-05 in the gradient, stated 0.001: a factor of 0.01 stands inside the term" in finding.text


@pytest.mark.parametrize("equals", [True, False], ids=["total is ce", "something else is in it"])
def test_a_weight_that_is_not_applied_says_whether_the_loss_is_ce_alone(equals):
    [finding] = judge_weight(term(found=1e-12, bound=1e-9), total_equals_ce=equals)

    assert finding.kind == "weight_not_applied"
    assert ("the loss is ce alone" in finding.text) == equals


def test_a_term_whose_gradient_is_missing_and_whose_value_is_not_is_constant():
    finding = only(term(found=0.0, is_constant=True))

    assert finding.kind == "constant_aux"
    assert "detach" in finding.text


FACTORS = {
    "k times": (3.0, 'k = 3: it is not divided by k, as convention="hf" is not'),
    "summed over layers": (14.0, 'L = 14: it is the sum over layers, as over_layers="sum" is'),
    "both": (42.0, "k = 3: it is not divided by k"),
    "without E": (1 / 48, "1/48: it lacks the factor E = 48"),
    "not divided by the accumulation": (4.0, "4: it is not divided by the accumulation"),
    "divided twice": (0.25, "1/4: it is divided by the accumulation once too often"),
    "subtracted": (-1.0, "-1: it is subtracted"),
    "no known factor": (3.3, "3.3 times as much, which no known convention explains"),
}


@pytest.mark.parametrize(("factor", "words"), FACTORS.values(), ids=FACTORS)
def test_another_factor_is_named_by_the_convention_that_has_it(factor, words):
    finding = only(term("load_balance", found=0.01 * factor))

    assert finding.kind == "weight_differs"
    assert words in finding.text


def test_a_factor_that_two_conventions_have_is_named_by_both():
    sizes = Sizes(accumulation=2, num_layers=4, num_experts=4, top_k=4, over_layers="mean", is_divided=True)
    finding = only(term("load_balance", found=0.04, sizes=sizes))

    assert "k = 4" in finding.text
    assert "L = 4" in finding.text


def test_a_term_that_is_off_and_has_a_weight_is_told():
    assert only(term(stated=0.0, found=0.02)).kind == "weight_differs"
    assert judge_weight(term(stated=0.0, found=1e-12, bound=1e-10)) == []


def test_a_difference_within_what_the_measurement_leaves_open_is_a_note_and_no_finding():
    audit = judge_weights([term(found=0.03, bound=0.02)])

    assert audit.findings == ()
    assert not audit.is_sound
    [note] = audit.notes
    assert "0.03 to within 0.02, stated 0.01 (it may be 1 to 5 times that), too rough to judge" in note


@pytest.mark.parametrize(("rest", "words"), [("form", "another form of a term"), ("precision", "audit a float32 copy")])
def test_a_weight_is_known_to_a_tenth_and_a_wider_bound_says_what_it_may_be(rest, words):
    assert judge_weights([term(found=0.0101, bound=0.0009)]).is_sound
    audit = judge_weights([term(found=0.0101, bound=0.0025)], rest=rest)

    assert (audit.findings, audit.is_sound) == ((), False)
    assert "0.0101 to within 0.0025, stated 0.01 (it may be 0.76 to 1.3 times that)" in audit.notes[0]
    assert words in audit.notes[0]


def test_a_weight_of_0_is_known_where_what_it_may_be_is_nothing_in_the_gradient():
    assert judge_weights([term(stated=0.0, found=1e-9, bound=1e-6, noticed=1e-5)]).is_sound
    assert not judge_weights([term(stated=0.0, found=1e-9, bound=1e-4, noticed=1e-5)]).is_sound


def test_what_nothing_explains_is_not_sound_though_every_weight_is_known():
    audit = judge_weights([term(found=0.01, bound=1e-4)], rest="form", rest_share=0.02)

    assert (audit.findings, audit.is_sound, audit.to_dict()["is_explained"]) == ((), False, False)
    assert "0.02 of what the gradient holds beside ce" in audit.notes[0]
    assert judge_weights([term(found=0.01, bound=1e-4)], rest="form", rest_share=1e-4).is_sound


def test_an_absent_term_beside_something_unknown_is_not_said_to_be_missing():
    [finding] = judge_weight(term(found=1e-5, bound=2e-5), rest="form")

    assert finding.kind == "weight_differs"
    assert "1e-05 to within 2e-05, stated 0.01: no factor of the term as it is defined explains that" in finding.text


def test_two_weights_that_are_exchanged_are_told_as_that():
    both = [term("z", stated=1e-3, found=1e-2), term("load_balance", stated=1e-2, found=1e-3)]

    assert all("the two weights are swapped" in finding.text for finding in judge_weights(both).findings)
    assert "swapped" not in judge_weights([both[0], term("load_balance", stated=1e-2, found=1e-2)]).findings[0].text


def test_a_term_that_cannot_be_told_from_another_is_a_note():
    audit = judge_weights([term(found=None, bound=math.inf)])

    assert (audit.findings, audit.is_sound) == ((), False)
    assert "is not known" in audit.notes[0]


# The accumulation.


def test_an_aux_that_is_not_divided_weighs_four_times_as_much_in_a_window_of_four():
    finding = only(term(found=0.01, accumulated=0.04))

    assert finding.kind == "accumulation_dependent"
    assert "weighs 0.04 in a window of 4 micro-batches and 0.01 in one of 1" in finding.text
    assert "it is not divided by the accumulation" in finding.text


def test_an_aux_that_is_divided_by_a_number_of_its_own_depends_on_the_accumulation_too():
    finding = only(term(found=0.01, accumulated=0.02))

    assert finding.kind == "accumulation_dependent"
    assert "divide it by the number of micro-batches that the window really has" in finding.text


@pytest.mark.parametrize(("window", "words"), [(8.0, "not divided"), (0.125, "divided by the accumulation twice")])
def test_a_ce_that_is_off_by_the_accumulation_is_told(window, words):
    # A trainer that divides neither by the accumulation nor by the window's tokens has gradients 8 times too large.
    sized = term(found=0.01, sizes=Sizes(accumulation=8))
    [finding] = judge_weights([sized], ce=1.0, ce_accumulated=window).findings

    assert finding.kind == "accumulation_dependent"
    assert words in finding.text


def test_a_ce_that_is_divided_by_the_tokens_of_a_window_is_not_told():
    # Micro-batches of 10 and 1000 tokens: 2 x 10 / 1010 and 2 x 1000 / 1010 of ce, 1 on the mean.
    assert judge_weights([term(found=0.01)], ce=1.0, ce_accumulated=(20 / 1010 + 2000 / 1010) / 2).findings == ()


# What is logged.


def test_a_logged_z_a_hundredth_of_the_real_one_may_be_compared_within_its_scale_only():
    finding = only(term(stated=1e-3, found=1e-3, value=30.25, logged=0.3025))

    assert finding.kind == "logged_differs"
    assert "logged / real = 0.01" in finding.text
    assert "within one scale only" in finding.text


def test_a_logged_window_is_the_mean_of_its_micro_batches_and_not_their_sum():
    sizes = Sizes(accumulation=8)

    finding = only(term(found=0.01, value=1.02, logged_window=8.16, sizes=sizes))

    assert (
        "the logged value of a window of z is 8.16, the term is 1.02: it is the sum over 8 micro-batches"
        in finding.text
    )
    assert judge_weight(term(found=0.01, value=1.02, logged_window=1.02, sizes=sizes)) == []


def test_a_term_may_be_logged_times_its_weight():
    assert judge_weight(term(found=0.01, value=4.0, logged=0.04, logged_window=0.04)) == []


def test_a_logged_value_that_has_the_loss_own_factor_is_told_once():
    [finding] = judge_weight(term("load_balance", found=0.03, value=1.0, logged=3.0))

    assert finding.kind == "weight_differs"


def test_a_term_is_absent_where_the_measurement_knows_it():
    assert term(found=1e-9, bound=1e-6).is_absent
    assert not term(found=1e-9, bound=0.006).is_absent  # of 0.01 stated it could be half
    assert not term(found=None).is_absent


def test_constant_terms_are_the_fewest_that_make_up_the_rest():
    absent = {"z": 0.03, "load_balance": 0.01}

    assert constant_terms(0.0301, absent) == {"z"}
    assert constant_terms(0.04, absent) == {"z", "load_balance"}
    assert constant_terms(0.0, absent) == frozenset()
    assert constant_terms(0.0, {"z": 0.0}) == frozenset()


# What every finding is like.


def test_a_name_from_a_stranger_is_shown_plain_and_what_is_said_is_one_sentence():
    odd = "z\x1b[31m\u202e"
    findings = [
        *judge_weight(term(odd, found=3e-4, accumulated=9e-4, value=2.0, logged=5.0, logged_window=8.0)),
        *judge_weight(term(odd, found=0.0, is_constant=True)),
        *judge_weight(term(odd, found=0.01, other_form="another form")),
    ]

    assert len(findings) == 6
    for finding in findings:
        assert finding.text.isascii()
        assert finding.text.isprintable()
        assert not finding.text.endswith(".")
        assert ". " not in finding.text
        assert (finding.step, finding.severity, finding.marks_unhealthy) == (0, "warning", False)
    audit = judge_weights([term(odd, found=math.nan, bound=math.inf)])
    assert audit.to_dict()["weights"][0]["found"] == "nan"
    assert pickle.loads(pickle.dumps(audit)).notes == audit.notes  # it goes from one process to another
