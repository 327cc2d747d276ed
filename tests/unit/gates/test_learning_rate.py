"""The rates of a chunk against the schedule that its attempts stated; oracles are torch's formulas written out."""

import dataclasses
import math
import re

import pytest

from trimtab.gates.learning_rate import learning_rate
from trimtab.rules.schedule import Schedule

WARMUP, STEPS, BASE = 20, 200, 3e-4
COSINE = Schedule(form="cosine", lr=BASE, num_steps=STEPS, num_warmup_steps=WARMUP)


def cosine(step, *, base=BASE, num_steps=STEPS, warmup=WARMUP):
    """What the optimizer takes step `step` with, after step - 1 calls of `scheduler.step()`."""
    done = step - 1
    if done < warmup:
        return base * done / warmup
    return base * (1 + math.cos(math.pi * (done - warmup) / (num_steps - warmup))) / 2


def test_rates_as_the_schedule_says_pass(run):
    run.attempt(1, 60, rate=cosine)
    gate = run.judge(learning_rate)
    assert gate.status == "passed"
    schedule = "cosine, lr 0.0003, 200 steps, warm-up 20"
    assert gate.text == f"60 steps as stated, 0 to {cosine(60):.4g} ({schedule})"


@pytest.mark.parametrize(
    ("part", "status"), [(0.9e-6, "passed"), (1.1e-6, "failed"), (-0.9e-6, "passed"), (-1.1e-6, "failed")], ids=str
)
def test_the_bound_is_a_millionth_on_both_sides(run, part, status):
    run.attempt(21, 40, rate=lambda step: cosine(step) * (1 + (part if step == 30 else 0)))
    gate = run.judge(learning_rate, since=20)
    assert gate.status == status
    if status == "failed":
        found, expected = re.match(r"the rate of step 30 is (\S+), and (\S+) by the schedule", gate.text).groups()
        assert (float(found) - float(expected)) / cosine(30) == pytest.approx(part, rel=0.5), "told apart"


def test_a_schedule_that_has_come_to_its_end_may_leave_a_rounding_instead_of_nothing(run):
    run.attempt(190, 210, rate=lambda step: cosine(step) if step <= STEPS else 3e-20)
    assert run.judge(learning_rate, since=189).status == "passed"
    run.attempt(211, 220, rate=lambda step: 3e-10)
    assert run.judge(learning_rate).status == "failed"


@pytest.mark.parametrize(
    ("shift", "told"),
    [
        (-1, "off by one, that of the step before"),
        (1, "off by one, that of the step after"),
    ],
    ids=["late", "early"],
)
def test_a_rate_that_is_off_by_one_is_named(run, shift, told):
    run.attempt(1, 60, rate=cosine).attempt(61, 120, rate=lambda step: cosine(step + shift))
    gate = run.judge(learning_rate)
    assert (gate.status, gate.figures["num_wrong"], gate.figures["step"]) == ("failed", 60, 61)
    assert told in gate.text
    assert "scheduler.step()" in gate.text


def test_a_rate_that_was_asked_for_on_a_resume_and_kept_as_it_was_is_named(run):
    # given: saved at 3e-4, asked for 1e-4, and the scheduler put 3e-4 back
    asked = Schedule(form="cosine", lr=1e-4, num_steps=STEPS, num_warmup_steps=WARMUP)
    run.attempt(1, 60, rate=cosine).attempt(61, 120, rate=cosine, schedule=asked)
    gate = run.judge(learning_rate)
    assert gate.status == "failed"
    assert gate.figures["found"] == pytest.approx(cosine(61))
    assert gate.figures["expected"] == pytest.approx(cosine(61, base=1e-4))
    assert "the rates that attempt 1 asked for (cosine, lr 0.0003, 200 steps, warm-up 20)" in gate.text
    assert "was not taken over" in gate.text
    assert "lr=" in gate.text


def test_a_rate_that_was_asked_for_on_a_resume_and_taken_over_passes(run):
    asked = Schedule(form="cosine", lr=1e-4, num_steps=STEPS, num_warmup_steps=WARMUP)
    run.attempt(1, 60, rate=cosine).attempt(61, 120, rate=lambda step: cosine(step, base=1e-4), schedule=asked)
    assert run.judge(learning_rate).status == "passed"
    assert run.judge(learning_rate, since=0).status == "passed", "each step by the schedule of its own attempt"


def test_a_rate_that_is_another_multiple_throughout_is_told_as_such(run):
    run.attempt(21, 60, rate=lambda step: 1.5 * cosine(step))
    gate = run.judge(learning_rate, since=20)
    assert gate.status == "failed"
    assert "1.5 times as high" in gate.text
    assert "another parameter group" in gate.text


def test_one_wrong_step_among_thousands_is_found(run):
    constant = Schedule(form="constant", lr=1e-3)
    run.attempt(1, 3_000, schedule=constant, rate=lambda step: 2e-3 if step == 2_345 else 1e-3, watch=None)
    gate = run.judge(learning_rate)
    assert (gate.status, gate.figures["num_wrong"], gate.figures["step"]) == ("failed", 1, 2_345)
    assert gate.text.startswith("the rate of step 2345 is 0.002, and 0.001 by the schedule (constant, lr 0.001);")


def test_a_schedule_that_waits_where_no_step_was_taken_is_as_it_says(run):
    # given: the Trainer does not call the scheduler where the loss scaler left a step out
    out = {25: {"reason": "scaler_overflow", "grad_norm": math.inf}, 40: {"reason": "scaler_overflow"}}
    waits = dataclasses.replace(COSINE, waits_for_dropped=True)
    run.attempt(1, 60, steps=out, rate=lambda step: cosine(step - sum(step > one for one in out)), schedule=waits)
    gate = run.judge(learning_rate)
    assert (gate.status, gate.figures["num_steps_held"]) == ("passed", 2)
    assert "waits for steps that were not taken" in gate.text


def test_one_that_does_not_wait_is_wrong_where_it_did_and_one_that_waits_where_it_did_not(run):
    out = {25: {"reason": "scaler_overflow"}}
    run.attempt(1, 60, steps=out, rate=lambda step: cosine(step - (step > 25)))
    gate = run.judge(learning_rate)
    assert (gate.status, gate.figures["step"], gate.figures["num_steps_held"]) == ("failed", 26, 0)
    waits = dataclasses.replace(COSINE, waits_for_dropped=True)
    run.attempt(61, 90, rate=lambda step: cosine(step), schedule=waits)
    assert run.judge(learning_rate).status == "failed", "by the step before it, which the schedule was to wait for"


def test_for_how_many_steps_it_waited_in_another_log_nobody_knows(run):
    waits = dataclasses.replace(COSINE, waits_for_dropped=True)
    run.attempt(31, 60, rate=lambda step: cosine(step - 2), schedule=waits)
    gate = run.judge(learning_rate, since=30)
    assert gate.status == "unknown"
    assert gate.text.startswith("as stated if 2 steps before step 31 were not taken")


def test_no_such_steps_are_made_up_to_explain_another_rate(run):
    waits = dataclasses.replace(COSINE, waits_for_dropped=True)
    run.attempt(31, 60, rate=lambda step: 1.01 * cosine(step), schedule=waits)
    assert run.judge(learning_rate, since=30).status == "failed"


def test_two_schedules_in_one_attempt_make_it_unknown_whatever_comes_last(run):
    constant = Schedule(form="constant", lr=1e-3)
    run.attempt(1, 60, rate=lambda step: 1e-3, events={59: ("schedule", constant.to_facts())})
    gate = run.judge(learning_rate)
    assert (gate.status, gate.text) == ("unknown", "attempt 1 stated two schedules that differ")


def test_the_same_schedule_stated_twice_is_one(run):
    run.attempt(1, 60, rate=cosine, events={30: ("schedule", COSINE.to_facts())})
    assert run.judge(learning_rate).status == "passed"


def test_one_step_at_the_old_rate_after_a_resume_with_more_steps_is_told_as_such(run):
    # given: trained to the end of 60 steps, then asked for 200: a scheduler takes its first step at the rate it was
    # saved at, and goes on as that of 200
    short = Schedule(form="linear", lr=BASE, num_steps=60)
    longer = Schedule(form="linear", lr=BASE, num_steps=200)
    run.attempt(1, 60, schedule=short)
    run.attempt(61, 90, schedule=longer, rate=lambda step: 0.0 if step == 61 else longer.rate(step))
    gate = run.judge(learning_rate)
    assert (gate.status, gate.figures["num_wrong"]) == ("failed", 1)
    assert "this one step came at the rate that attempt 1 asked for (linear, lr 0.0003, 60 steps)" in gate.text
    assert "num_steps changed from 60 to 200" in gate.text
    assert "lr=" not in gate.text


def test_one_step_at_the_old_rate_after_a_resume_with_another_is_told_as_such(run):
    asked = dataclasses.replace(COSINE, lr=1e-4)
    run.attempt(1, 60, rate=cosine)
    run.attempt(61, 90, schedule=asked, rate=lambda step: cosine(step, base=BASE if step == 61 else 1e-4))
    gate = run.judge(learning_rate)
    assert (gate.status, gate.figures["num_wrong"]) == ("failed", 1)
    assert "this one step came at the rate that attempt 1 asked for" in gate.text


def test_a_warm_up_that_does_not_begin_at_0_is_named_as_what_it_may_be(run):
    run.attempt(1, 15, rate=lambda step: BASE * step / WARMUP)
    gate = run.judge(learning_rate)
    assert "off by one, that of the step after" in gate.text
    assert "the warm-up does not begin at 0: then state its warmup_from=" in gate.text


def test_a_rate_behind_as_many_steps_that_were_taken_is_wrong(run):
    run.attempt(1, 60, rate=lambda step: cosine(step - (step > 25)))
    assert run.judge(learning_rate).status == "failed"


def test_a_rate_that_is_nan_or_unknown_has_not_passed(run):
    run.attempt(1, 30, rate=lambda step: math.nan if step == 9 else cosine(step))
    assert run.judge(learning_rate).status == "failed"
    run.attempt(31, 60, rate=lambda step: None if step == 39 else cosine(step))
    gate = run.judge(learning_rate)
    assert (gate.status, gate.figures["num_steps_without_rate"]) == ("unknown", 1)


def test_without_a_schedule_nobody_knows_and_it_says_how_to_state_one(run):
    run.attempt(1, 30, schedule=None)
    gate = run.judge(learning_rate)
    assert gate.status == "unknown"
    assert "trimtab.Run(..., schedule=trimtab.Schedule(...))" in gate.text


def test_an_attempt_of_the_chunk_that_states_none_makes_it_unknown_unless_another_is_wrong(run):
    run.attempt(1, 30, rate=cosine, end="kill").attempt(31, 60, schedule=None)
    gate = run.judge(learning_rate)
    assert gate.status == "unknown"
    assert "attempt 2 stated no schedule" in gate.text
    run.attempt(61, 70, schedule=None, end="kill").attempt(71, 80, rate=lambda step: 1.0)
    assert run.judge(learning_rate).status == "failed"


@pytest.mark.parametrize(
    "facts",
    [{}, {"form": "cosine"}, {"form": "\x1b[31m", "lr": 1e-3}, {"form": "constant", "lr": "nan"}, {"lr": [1]}],
    ids=["empty", "no rate", "control characters", "nan", "list"],
)
def test_a_schedule_that_cannot_be_read_is_told_as_such(run, facts):
    run.attempt(1, 30, schedule=None, events={1: ("schedule", facts)})
    gate = run.judge(learning_rate)
    assert gate.status == "unknown"
    assert gate.text.startswith("the schedule in the log cannot be read: ")
    assert gate.text.isascii()
    assert gate.text.isprintable()
