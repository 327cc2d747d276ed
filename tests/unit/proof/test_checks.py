"""Each check fails where only it can see what is wrong, with the two numbers."""

from dataclasses import replace

import pytest
import torch

from trimtab.errors import TrimtabError
from trimtab.proof.cases import Case
from trimtab.proof.checks import judge
from trimtab.proof.trial import run_trial
from trimtab.proof.workers import RanksError


def by_hand_of(loop):
    return loop.num_skipped.__self__


def spike(case):
    return (case.fault, case.place, case.guard) == ("finite spike", "last", "on")


def healthy(case):
    return case.fault is None and case.guard == "on"


@pytest.fixture
def changed(loops):
    """The loop that is right, with something done to it after it was built under a guard that is on."""

    def change_of(change):
        def build(guard):
            loop = loops("by_hand:by_hand")(guard)
            if guard is not None and guard.enabled:
                change(loop)
            return loop

        return build

    return change_of


def counting(number):
    def change(loop):
        loop.num_skipped = lambda: number

    return change


@pytest.mark.parametrize(
    ("number", "mistake"), [(0, "not_skipped"), (2, "skipped_too_much")], ids=["too few", "too many"]
)
def test_a_count_that_is_wrong_fails(changed, proven, number, mistake):
    [result] = proven(changed(counting(number)), only=spike)
    assert (result.check, result.mistake) == ("skips counted", mistake)
    assert (result.found, result.expected) == (float(number), 1.0)


def test_a_reported_loss_that_is_not_finite_fails(changed, proven):
    def change(loop):
        train = loop.train
        loop.train = lambda windows: [loss if place != 2 else float("inf") for place, loss in enumerate(train(windows))]

    [result] = proven(changed(change), only=spike)
    assert (result.check, result.mistake) == ("reported loss", "spike_in_reported_loss")


def test_a_reported_loss_that_grows_with_the_fault_fails(changed, proven):
    def change(loop):
        train, seen = loop.train, []

        def judged(loss_sum, num_tokens):
            seen.append(loss_sum)
            return judge(loss_sum, num_tokens)

        by_hand = by_hand_of(loop)
        judge, by_hand.verdict = by_hand.verdict, judged
        loop.train = lambda windows: [
            loss + 1e-5 * max(seen) * (place == 2) for place, loss in enumerate(train(windows))
        ]

    [result] = proven(changed(change), only=spike)
    assert (result.check, result.mistake) == ("reported loss", "spike_in_reported_loss")
    assert result.expected > result.found
    assert "under a fault 10 times as large" in result.text


def test_a_schedule_that_stands_still_on_a_dropped_window_fails(changed, proven):
    def change(loop):
        by_hand, step = by_hand_of(loop), loop.scheduler.step
        loop.scheduler.step = lambda: step() if by_hand.kept_tokens else None

    [result] = proven(changed(change), only=lambda case: (case.fault, case.place) == ("finite spike", "all"))
    assert (result.check, result.mistake) == ("schedule and scaler", "schedule_held")
    assert result.found > result.expected


def test_a_guard_that_changes_a_healthy_training_fails(changed, proven):
    def change(loop):
        for group in loop.optimizer.param_groups:
            group["weight_decay"] = 0.2

    [result] = proven(changed(change), only=healthy)
    assert (result.check, result.mistake) == ("same as no guard", "healthy_run_changed")
    assert result.found > result.expected == 0.0


def test_a_guard_that_changes_the_buffers_alone_fails(changed, proven):
    def change(loop):
        loop.model.register_buffer("seen", torch.zeros(1))

    [result] = proven(changed(change), only=healthy)
    assert (result.check, result.mistake) == ("same as no guard", "healthy_run_changed")
    assert "buffers are others" in result.text


def test_gradients_that_point_elsewhere_are_no_matter_of_the_divisor(changed, proven):
    def change(loop):
        by_hand = by_hand_of(loop)
        scale = by_hand.scale_gradients

        def scale_and_turn():
            scale()
            if by_hand.num_skipped:
                bias = loop.model.inner.bias
                bias.grad = 3.0 * bias.grad

        by_hand.scale_gradients = scale_and_turn

    [result] = proven(changed(change), only=spike)
    assert (result.check, result.mistake) == ("same as the oracle", None)


def test_a_loop_that_raises_under_a_guard_fails_with_the_last_line_of_its_error(changed, proven):
    def change(loop):
        def train(windows):
            raise RuntimeError("no such verdict")

        loop.train = train

    [result] = proven(changed(change), only=spike)
    assert (result.outcome, result.check) == ("failed", "comes to its end")
    assert "RuntimeError: no such verdict" in result.text


@pytest.mark.parametrize("is_silent_alone", [True, False], ids=["none without a guard", "none under a guard"])
def test_a_loop_that_reports_losses_on_one_side_only_is_proven(loops, proven, is_silent_alone):
    # given
    def build(guard):
        loop = loops("by_hand:by_hand")(guard)
        if (guard is None) == is_silent_alone:
            train = loop.train
            loop.train = lambda windows: [train(windows), None][1]
        return loop

    # then
    results = proven(build, only=lambda case: healthy(case) or spike(case))
    assert [result.text for result in results if result.outcome != "proven"] == []


def test_a_loop_with_other_windows_under_a_guard_fails_with_both(loops, proven):
    def build(guard):
        loop = loops("by_hand:by_hand")(guard)
        if guard is not None:
            loop.windows = [*loop.windows, loop.windows[0]]
        return loop

    [result] = proven(build, only=spike)
    assert (result.outcome, result.check) == ("failed", "comes to its end")
    assert "[[3, 3, 3, 3, 3, 3, 3]] micro-batches on each rank, without a guard [[3, 3, 3, 3, 3, 3]]" in result.text


def test_an_optimizer_with_other_groups_under_a_guard_fails(changed, proven):
    def change(loop):
        group = loop.optimizer.param_groups[0]
        *kept, last = group["params"]
        group["params"] = kept
        loop.optimizer.add_param_group({**group, "params": [last]})
        loop.scheduler.base_lrs, loop.scheduler.lr_lambdas = loop.scheduler.base_lrs * 2, loop.scheduler.lr_lambdas * 2

    [result] = proven(changed(change), only=spike)
    assert (result.outcome, result.check) == ("failed", "schedule and scaler")
    assert (result.found, result.expected) == (2.0, 1.0)


def hanging(loops):
    """Runs trials on two ranks that wait for one another for ever under a guard."""

    def run(trial):
        if trial.guard != "none":
            raise RanksError("after 5 s neither rank was through. Call both on every rank.", hung=True)
        plants = tuple(replace(plant, ranks=(0,)) for plant in trial.plants)  # both are rank 0 here
        return [run_trial(loops("by_hand:by_hand"), replace(trial, plants=plants))] * 2

    return run


@pytest.mark.parametrize(
    ("case", "mistake"),
    [
        (Case(guard="on", processes=2), None),
        (Case(guard="on", processes=2, fault="NaN", place="last", ranks=(1,)), "per_rank_decision"),
        (Case(guard="on", processes=2, fault="NaN", place="last", ranks=(0, 1)), "collectives_unlike"),
    ],
    ids=lambda case: getattr(case, "name", None),
)
def test_ranks_that_wait_for_ever_are_told_by_whether_all_met_the_fault(loops, case, mistake):
    result = judge(case, hanging(loops))
    assert (result.outcome, result.check, result.mistake) == ("failed", "comes to its end", mistake)
    assert ".." not in result.text


def test_a_loop_that_fails_without_a_guard_is_no_result(loops):
    def run(trial):
        raise RuntimeError("out of rows.")

    with pytest.raises(
        TrimtabError, match=r"without a guard fails .*: RuntimeError: out of rows \(test_checks\.py:\d+\)\. Nothing can"
    ):
        judge(Case(guard="on", processes=1), run)


def test_batches_without_names_make_the_case_not_applicable(loops, proven):
    def build(guard):
        loop = loops("by_hand:by_hand")(guard)
        train = loop.train
        loop.windows = [[(batch["x"], batch["labels"]) for batch in window] for window in loop.windows]
        loop.train = lambda windows: train([[dict(x=x, labels=labels) for x, labels in window] for window in windows])
        return loop

    results = proven(build, only=lambda case: case.fault == "no tokens")
    assert {result.outcome for result in results} == {"not_applicable"}
    assert "which tokens are supervised" in results[0].text
