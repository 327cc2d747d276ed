"""Evaluations that become worse, of the published figures of a run whose router had collapsed and of one that held."""

import math

import pytest

from trimtab import WatchConfig
from trimtab.gates.eval_streak import eval_streak

COLLAPSED = {10: 7.6066, 20: 7.6406, 30: 8.2422, 40: 8.2717}
HELD = {10: 7.7371, 20: 7.6486, 30: 7.7053, 40: 7.6502, 50: 7.6116, 60: 7.6323}


def test_evaluations_that_go_up_and_down_pass_and_best_and_last_are_told(run):
    run.attempt(1, 60, evaluations=HELD)
    gate = run.judge(eval_streak)
    assert gate.status == "passed"
    assert gate.text == "streak 1 of the 3 that fail it, best 7.6116 at step 50, last 7.6323 at step 60"
    assert (gate.figures["streak"], gate.figures["best_step"], gate.figures["last_step"]) == (1, 50, 60)


@pytest.mark.parametrize(("last", "status"), [(30, "passed"), (40, "failed")], ids=["two", "three"])
def test_three_in_a_row_that_are_worse_than_the_one_before_fail(run, last, status):
    run.attempt(1, last, evaluations={step: loss for step, loss in COLLAPSED.items() if step <= last})
    gate = run.judge(eval_streak)
    assert (gate.status, gate.figures["streak"]) == (status, last // 10 - 1)
    if status == "failed":
        assert "became worse 3 times in a row" in gate.text
        assert "best 7.6066 at step 10, last 8.2717 at step 40" in gate.text
        assert "do not build on it" in gate.text


@pytest.mark.parametrize(("patience", "last", "status"), [(100, 40, "failed"), (100, 30, "passed"), (2, 30, "failed")])
def test_a_watch_that_is_more_patient_does_not_loosen_it_and_one_that_is_less_tightens_it(run, patience, last, status):
    config = WatchConfig(report_every=10, host_memory_floor_bytes=1, eval_patience=patience)
    run.attempt(1, last, evaluations={step: loss for step, loss in COLLAPSED.items() if step <= last}, watch=config)
    gate = run.judge(eval_streak)
    assert (gate.status, gate.figures["patience"]) == (status, min(3, patience))


def test_a_streak_runs_over_the_begin_of_the_chunk(run):
    run.attempt(1, 30, evaluations={10: 7.6, 20: 7.7, 30: 7.9}).attempt(31, 40, evaluations={40: 8.2})
    gate = run.judge(eval_streak)
    assert (gate.status, gate.figures["streak"], gate.figures["num_evaluations"]) == ("failed", 3, 1)


def test_a_regression_that_is_not_back_fails_though_the_last_was_a_little_better(run):
    run.attempt(1, 50, evaluations={**COLLAPSED, 50: 8.27})
    gate = run.judge(eval_streak)
    assert (gate.status, gate.figures["streak"]) == ("failed", 0)
    assert "is not back since" in gate.text


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf], ids=str)
def test_an_evaluation_that_is_no_number_fails(run, loss):
    run.attempt(1, 60, evaluations={20: 3.0, 40: loss, 60: 2.9})
    gate = run.judge(eval_streak)
    assert gate.status == "failed"
    assert gate.text.startswith(f"the evaluation at step 40 is {loss}")
    assert gate.figures["best"] == 2.9


def test_one_of_an_earlier_chunk_that_was_no_number_does_not(run):
    run.attempt(1, 30, evaluations={20: 3.0, 30: math.nan}).attempt(31, 60, evaluations={60: 2.9})
    assert run.judge(eval_streak).status == "passed"


def test_none_at_the_chunks_last_step_is_told(run):
    run.attempt(1, 65, evaluations=HELD)
    gate = run.judge(eval_streak)
    assert (gate.status, gate.text.endswith("; none at step 65, the chunk's last")) == ("passed", True)


def test_without_an_evaluation_it_is_unknown_and_it_says_how_to_record_one(run):
    run.attempt(1, 30, evaluations={30: 3.0}).attempt(31, 60)
    gate = run.judge(eval_streak)
    assert gate.status == "unknown"
    assert gate.text == "no evaluation in steps 31 to 60: run.evaluation(loss) records one"


def test_what_was_evaluated_on_a_way_that_was_left_counts_for_nothing(run):
    # given: a way on which the evaluations became worse, and a resume from before it that has not come as far
    run.attempt(1, 80, evaluations={20: 3.0, 40: 3.1, 60: 3.3, 80: 3.6}).attempt(31, 50, evaluations={50: 2.9})
    gate = run.judge(eval_streak)
    assert (gate.status, gate.figures["best"], gate.figures["streak"]) == ("passed", 2.9, 0)


def test_of_several_datasets_the_worst_is_told(run):
    facts = {20: 3.0, 30: 3.1, 40: 3.2, 50: 3.3}
    events = {
        step: ("evaluation", {"eval_code_loss": 1.0 - step / 100, "eval_wiki_loss": loss})
        for step, loss in facts.items()
    }
    run.attempt(1, 50, events=events)
    gate = run.judge(eval_streak)
    assert (gate.status, gate.figures["name"]) == ("failed", "eval_wiki_loss")
    assert "the evaluation of eval_wiki_loss became worse 3 times" in gate.text


def test_a_run_without_a_watch_has_its_evaluations_judged_all_the_same(run):
    run.attempt(1, 40, evaluations=COLLAPSED, watch=None)
    assert run.judge(eval_streak).status == "failed"


@pytest.mark.parametrize("facts", [{}, {"loss": None}, {"loss": [1]}, {"loss": True}, {"loss": 10**400}], ids=str)
def test_facts_that_hold_no_loss_are_no_evaluation(run, facts):
    run.attempt(1, 30, events={20: ("evaluation", facts)})
    assert run.judge(eval_streak).status == "unknown"
