"""Evaluations: the streak of worse ones, what is no number, what never changes, and which is the best."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab import WatchConfig
from trimtab.rules.health import HealthRules, ObservedStep
from trimtab.watched import RouterReport

COLLAPSED = [(3250, 7.6066), (3500, 7.6406), (3750, 8.2422), (4000, 8.2717)]
HELD = [7.7371, 7.6486, 7.7053, 7.6502, 7.6116, 7.6323]


def test_the_run_whose_router_collapsed_is_warned_of_at_the_last_of_three_worse_ones_once(fed):
    fed.evaluations(COLLAPSED)

    assert fed.said == [("eval_regression", "warning", 4000)]
    (finding,) = fed.found
    assert finding.marks_unhealthy
    assert finding.figures["losses"] == [7.6066, 7.6406, 8.2422, 8.2717]
    assert finding.figures["best"] == 7.6066
    assert finding.figures["best_step"] == 3250
    assert fed.rules.unhealthy_because() == (f"eval_regression at step 4000: {finding.text}",)
    # and not again, however long it goes on
    assert len(fed.evaluations([(4250, 8.3), (4500, 8.4)]).found) == 1
    # while the reason has what was seen last
    (because,) = fed.rules.unhealthy_because()
    assert because.startswith(
        "eval_regression since step 4000, last seen at step 4500: the evaluation loss became worse 5 "
    )


def test_the_run_that_held_is_not_warned_of(fed):
    fed.evaluations(enumerate(HELD, start=1))

    assert fed.found == []
    assert fed.rules.figures()["evaluations"][""] == {"best": 7.6116, "best_step": 5, "num_worse": 1}


def evaluated_beside(rules, train_losses):
    found = []
    for (step, loss), train_loss in zip(COLLAPSED, train_losses, strict=True):
        found += rules.evaluation(step, loss, train_loss)
    return found


def test_a_train_loss_that_falls_over_the_same_evaluations_speaks_for_the_router_or_overfitting():
    rules = HealthRules()
    rules.router(RouterReport(step=3000, first_step=2951))

    (finding,) = evaluated_beside(rules, [6.1, 5.9, 5.7, 5.5])

    assert "train loss fell from 6.1 to 5.5" in finding.text
    assert finding.text.endswith("the router, or overfitting")
    assert finding.figures["train_losses"] == [6.1, 5.9, 5.7, 5.5]


def test_without_routers_none_is_blamed():
    (finding,) = evaluated_beside(HealthRules(), [6.1, 5.9, 5.7, 5.5])

    assert "router" not in finding.text
    assert "overfitting" in finding.text


def test_a_train_loss_that_rises_too_speaks_for_the_training():
    (finding,) = evaluated_beside(HealthRules(), [6.1, 6.2, 6.7, 6.8])

    assert "overfitting" not in finding.text
    assert "went from 6.1 to 6.8" in finding.text


def test_the_train_loss_is_that_of_the_steps_between_where_nobody_names_one(fed):
    # given ten steps before each evaluation, of losses 6.1, 5.9, 5.7 and 5.5; some lost, one of a dropped step
    for place, (_, loss) in enumerate(COLLAPSED):
        losses = [6.1 - place * 0.2] * 8 + [math.nan, 1000.0]
        fed.series(first=1 + 10 * place, loss=losses, reason=["stepped"] * 9 + ["dropped"])
        # and two datasets are laid beside the same steps
        fed.evaluations([(10 * place + 10, loss)], name="a").evaluations([(10 * place + 10, loss)], name="b")

    a, b = fed.found
    assert a.figures["train_losses"] == pytest.approx([6.1, 5.9, 5.7, 5.5])
    assert b.figures["train_losses"] == a.figures["train_losses"]


def test_a_streak_is_told_of_only_where_there_is_one(fed):
    fed.evaluations([(1, 7.6), (2, math.nan), (3, 7.6406), (4, math.inf)])

    without, within = fed.found
    assert "streak" not in without.text
    assert "the streak of worse ones goes on without it" in within.text


def test_nan_neither_ends_a_streak_nor_is_a_best(fed):
    fed.evaluations([(1, 7.6066), (2, 7.6406), (3, math.nan), (4, 8.2422), (5, math.inf), (6, 8.2717)])

    assert fed.said == [
        ("eval_nonfinite", "warning", 3),
        ("eval_nonfinite", "warning", 5),
        ("eval_regression", "warning", 6),
    ]
    assert fed.rules.figures()["evaluations"][""]["best"] == 7.6066


def test_a_nan_at_first_is_no_best(fed):
    fed.evaluations([(1, math.nan), (2, 1.0), (3, 0.8)])

    assert fed.rules.figures()["evaluations"][""]["best"] == 0.8
    assert fed.said == [("eval_nonfinite", "warning", 1)]
    assert fed.rules.standing() == ()


def test_of_weights_that_are_not_finite_nothing_is_a_best(fed):
    fed.evaluations([(1, 0.5), (2, 0.5), (3, 0.4)], weights_finite=False)

    assert fed.said == [("eval_nonfinite", "critical", 1)]
    assert fed.found[0].marks_unhealthy
    assert fed.rules.figures()["evaluations"][""]["best"] is None


def test_values_that_are_exactly_unchanged_replace_no_best_and_are_said(fed):
    fed.evaluations([(1, 0.5), (2, 0.5)])
    assert fed.found == []

    fed.evaluations([(3, 0.5), (4, 0.5)])

    assert fed.said == [("eval_unchanged", "notice", 3)]
    assert "3 times in a row" in fed.found[0].text
    assert fed.rules.figures()["evaluations"][""] == {"best": 0.5, "best_step": 1, "num_worse": 0}


def test_evaluating_once_more_after_the_last_step_is_nothing_new(fed):
    fed.evaluations([(1, 0.5), (1, 0.5), (1, 0.5), (1, 0.5)])

    assert fed.found == []


def test_several_datasets_are_judged_each_by_itself(fed):
    for step, loss in COLLAPSED:
        fed.evaluations([(step, loss)], name="eval_wiki_loss").evaluations([(step, 9 - loss)], name="eval_code_loss")

    assert [finding.figures["name"] for finding in fed.found] == ["eval_wiki_loss"]
    assert "eval_wiki_loss" in fed.found[0].text
    assert fed.rules.figures()["evaluations"]["eval_code_loss"]["num_worse"] == 0


def test_a_name_from_a_stranger_is_plain(fed):
    fed.evaluations(COLLAPSED, name="e\x1b[31m\u202e")

    assert fed.found[0].text.isascii()
    assert fed.found[0].text.isprintable()


@pytest.mark.parametrize(
    ("after", "is_over"),
    [([8.27, 8.26], False), ([8.27, 8.26, 8.25], True), ([7.6], True)],
    ids=["two better ones", "three better ones", "as good as before"],
)
def test_a_regression_is_over_as_it_began_or_when_it_is_as_good_as_before(fed, after, is_over):
    fed.evaluations(COLLAPSED)

    fed.evaluations(enumerate(after, start=5000))

    assert (fed.rules.unhealthy_because() == ()) is is_over
    assert len(fed.found) == 1


def test_worse_again_before_it_was_over_is_the_same_regression(fed):
    # given a regression from 7.6066, one better evaluation, and then tiny rises that alone would be a notice
    fed.evaluations(COLLAPSED)
    fed.evaluations(enumerate([8.27, 8.271, 8.272, 8.273, 8.0], start=5000))

    # then it still marks, and is over where it is as good as before it began
    assert len(fed.found) == 1
    assert fed.rules.unhealthy_because() != ()
    fed.evaluations([(6000, 8.1), (6001, 7.6)])
    assert fed.rules.unhealthy_because() == ()


def test_a_regression_of_evaluations_that_never_were_is_over(fed):
    # given rules that went on while the run resumed from before
    fed.evaluations(COLLAPSED)
    assert fed.rules.unhealthy_because() != ()

    fed.evaluations([(3500, 7.64)])

    assert fed.rules.unhealthy_because() == ()


def test_a_regression_that_was_over_is_said_again(fed):
    fed.evaluations(COLLAPSED)
    fed.evaluations([(4250, 7.5), (4500, 7.6), (4750, 7.7), (5000, 7.8)])

    assert [said[2] for said in fed.said] == [4000, 5000]


def test_a_streak_of_tiny_rises_is_a_notice_until_it_is_none(fed):
    fed.evaluations(enumerate([2.0, 2.001, 2.002, 2.003], start=1))

    assert fed.said == [("eval_regression", "notice", 4)]
    assert fed.rules.unhealthy_because() == ()

    fed.evaluations([(5, 2.011)])

    assert fed.said[1:] == [("eval_regression", "warning", 5)]
    assert fed.rules.unhealthy_because() != ()


def test_a_streak_is_held_against_the_rises_that_are_usual(fed):
    # given an evaluation that goes up and down by 0.1
    fed.evaluations(enumerate([2.0, 2.1] * 5, start=1))

    fed.evaluations([(11, 2.0), (12, 2.1), (13, 2.2), (14, 2.3)])
    assert fed.said == [("eval_regression", "notice", 14)]

    fed.evaluations([(15, 2.41)])
    assert fed.said[1:] == [("eval_regression", "warning", 15)]


def test_a_resume_from_before_begins_the_streak_anew(fed):
    fed.evaluations(COLLAPSED[:3])
    fed.evaluations([(3500, 7.64), (3750, 7.7), (4000, 7.8)])

    assert fed.found == []


def test_the_patience_is_a_setting():
    rules = HealthRules(WatchConfig(eval_patience=1, eval_rise=1e-6))

    assert [len(rules.evaluation(step, loss)) for step, loss in COLLAPSED] == [0, 1, 0, 0]


def test_a_long_streak_is_told_by_its_first_and_its_last(fed):
    losses = [(step, 1.0 + step / 1000) for step in range(1, 60)]
    fed.evaluations(losses)

    (notice, warning) = fed.found
    assert (notice.severity, warning.severity) == ("notice", "warning")
    assert len(str(fed.rules.state_dict())) < 20_000


@given(st.lists(st.one_of(st.floats(allow_nan=True), st.sampled_from([0.5, 1.0, 2.0])), max_size=60))
@settings(max_examples=100, deadline=None)
def test_the_streak_is_the_number_of_rises_in_a_row_over_what_is_finite(losses):
    # given an oracle that looks at the finite values alone
    finite = [loss for loss in losses if math.isfinite(loss)]
    streak = 0
    for before, now in itertools.pairwise(finite):
        streak = streak + 1 if now > before else (streak if now == before else 0)

    rules = HealthRules()
    for step, loss in enumerate(losses, start=1):
        rules.evaluation(step, loss)

    figures = rules.figures()["evaluations"].get("", {"best": None, "num_worse": 0})
    assert figures["num_worse"] == streak
    assert figures["best"] == min(finite, default=None)


def test_while_a_broken_step_stands_no_evaluation_is_a_best(fed):
    fed.evaluations([(1, 2.0)])
    fed.steps([ObservedStep(step=2, loss=0.0, grad_norm=math.nan)])

    fed.evaluations([(3, 0.0)])

    assert fed.rules.figures()["evaluations"][""]["best"] == 2.0
