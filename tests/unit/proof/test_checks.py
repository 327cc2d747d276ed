"""Each check fails where only it can see what is wrong, with the two numbers."""

import pytest


def by_hand_of(loop):
    return loop.num_skipped.__self__


def spike(case):
    return (case.fault, case.place) == ("finite spike", "last")


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
        loop.train = lambda windows: [loss + max(seen) for loss in train(windows)]

    [result] = proven(changed(change), only=spike)
    assert (result.check, result.mistake) == ("reported loss", "spike_in_reported_loss")
    assert result.expected > 5.0 * result.found


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


def test_a_loop_that_raises_under_a_guard_fails_with_the_last_line_of_its_error(changed, proven):
    def change(loop):
        def train(windows):
            raise RuntimeError("no such verdict")

        loop.train = train

    [result] = proven(changed(change), only=spike)
    assert (result.outcome, result.check) == ("failed", "comes to its end")
    assert "RuntimeError: no such verdict" in result.text


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
