"""A guard that would skip for ever: what ends it, what does not, and what it says."""

import logging
import math
from pathlib import Path

import pytest

from trimtab.errors import GuardLockupError, TrimtabError
from trimtab.guard import LossGuard

NAN = math.nan


def reasons(guard: LossGuard, losses: list[float]) -> list[str]:
    return [guard.check(loss).reason for loss in losses]


def said(caplog: pytest.LogCaptureFixture, about: str) -> list[str]:
    return [record.message for record in caplog.records if record.name == "trimtab.guard" and about in record.message]


@pytest.fixture(autouse=True)
def _listen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="trimtab")


def test_a_level_shift_ends_after_eight_skips_under_mean(caplog: pytest.LogCaptureFixture) -> None:
    # given
    guard = LossGuard(multiplier=3.0)
    reasons(guard, [1.0] * 20)

    # when
    shifted = reasons(guard, [4.0] * 1_000)

    # then
    assert shifted == ["spike"] * 8 + ["rebaselined"] + ["normal"] * 991
    assert len(said(caplog, "8 losses in a row")) == 1


def test_a_level_shift_ends_after_twenty_skips_under_robust() -> None:
    guard = LossGuard(rule="robust")
    reasons(guard, [1.0] * 100)

    assert reasons(guard, [4.0] * 100) == ["spike"] * 20 + ["rebaselined"] + ["normal"] * 79


def test_never_gives_the_classic_rule_back() -> None:
    guard = LossGuard(multiplier=3.0, max_consecutive_skips="never")
    reasons(guard, [1.0] * 20)

    assert reasons(guard, [4.0] * 1_000) == ["spike"] * 1_000


def test_the_new_window_is_the_skipped_losses_and_the_one_that_is_kept() -> None:
    # given
    guard = LossGuard(multiplier=2.0, max_consecutive_skips=3)
    reasons(guard, [1.0] * 8)

    # when
    verdicts = [guard.check(loss) for loss in (10.0, 11.0, 12.0, 13.0)]

    # then
    assert (verdicts[-1].keep, verdicts[-1].reason) == (True, "rebaselined")
    assert (verdicts[-1].baseline, verdicts[-1].threshold) == (1.0, 2.0), "what it was compared with"
    assert guard.check(12.0).baseline == (10.0 + 11.0 + 12.0 + 13.0) / 4


def test_the_most_recent_skipped_losses_fill_the_window() -> None:
    # given more skips than the window holds
    guard = LossGuard(multiplier=2.0, window_size=3, max_consecutive_skips=5)
    reasons(guard, [1.0] * 3)

    # when
    reasons(guard, [10.0, 20.0, 30.0, 40.0, 50.0, 60.0])

    # then
    assert guard.check(50.0).baseline == (40.0 + 50.0 + 60.0) / 3


def test_a_normal_loss_after_the_last_skip_is_just_normal() -> None:
    guard = LossGuard(multiplier=2.0)
    reasons(guard, [1.0] * 8 + [5.0] * 8)

    verdict = guard.check(1.5)

    assert (verdict.reason, verdict.baseline) == ("normal", 1.0)
    assert guard.check(5.0).reason == "spike"


def test_a_kept_loss_ends_the_row() -> None:
    guard = LossGuard(multiplier=2.0)
    reasons(guard, [1.0] * 8)

    assert reasons(guard, ([5.0] * 8 + [1.0]) * 3) == (["spike"] * 8 + ["normal"]) * 3


def test_losses_that_are_not_finite_neither_count_nor_break_the_row() -> None:
    guard = LossGuard(multiplier=2.0)
    reasons(guard, [1.0] * 8)

    assert reasons(guard, [5.0, NAN] * 8 + [5.0]) == ["spike", "nonfinite"] * 8 + ["rebaselined"]


def test_losses_that_are_not_finite_never_change_the_baseline() -> None:
    guard = LossGuard(multiplier=2.0)
    reasons(guard, [1.0] * 8)

    assert reasons(guard, [NAN] * 200) == ["nonfinite"] * 200
    assert guard.check(1.0).baseline == 1.0


def test_raise_raises_instead_and_says_how_to_go_on() -> None:
    # given
    guard = LossGuard(multiplier=2.0, on_lockup="raise")
    reasons(guard, [1.0] * 8 + [5.0] * 8)
    before = guard.state_dict()

    # when
    with pytest.raises(GuardLockupError, match="8 losses in a row") as error:
        guard.check(6.0)

    # then
    assert isinstance(error.value, TrimtabError)
    assert "6, where more than 2 is a spike; baseline 1" in str(error.value)
    assert guard.state_dict() == before
    assert guard.check(1.0).reason == "normal"


def test_after_a_reset_a_guard_that_raised_goes_on() -> None:
    guard = LossGuard(multiplier=2.0, on_lockup="raise")
    reasons(guard, [1.0] * 8 + [5.0] * 8)
    with pytest.raises(GuardLockupError):
        guard.check(5.0)

    guard.reset("the new data has longer answers")

    assert reasons(guard, [5.0] * 4) == ["warmup"] * 3 + ["normal"]


def test_many_losses_in_a_row_that_are_not_finite_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    # given
    guard = LossGuard(multiplier=2.0)

    # when
    reasons(guard, [NAN] * 7)
    assert said(caplog, "") == []
    reasons(guard, [NAN] * 20)

    # then
    (message,) = said(caplog, "")
    assert "8 losses in a row were not finite (the last is nan)" in message
    assert "weights" in message


def test_a_finite_loss_ends_the_row_of_those_that_are_not(caplog: pytest.LogCaptureFixture) -> None:
    guard = LossGuard(multiplier=2.0)

    reasons(guard, ([NAN] * 7 + [1.0]) * 5)

    assert said(caplog, "not finite") == []


def test_the_warning_names_what_the_adapter_found_first(caplog: pytest.LogCaptureFixture) -> None:
    # given an adapter that looks after the first verdict
    guard = LossGuard(rule="robust", max_consecutive_skips=3)
    guard.check(NAN)
    guard.nonfinite_hint = "first in row 17"

    # when
    reasons(guard, [NAN] * 2)

    # then
    assert "(the last is nan); first in row 17." in said(caplog, "not finite")[0]


def test_a_finite_loss_clears_what_the_adapter_found() -> None:
    guard = LossGuard(multiplier=2.0)
    guard.check(NAN)
    guard.nonfinite_hint = "first in row 17"

    guard.check(NAN)
    assert guard.nonfinite_hint == "first in row 17"
    guard.check(1.0)
    assert guard.nonfinite_hint is None


def test_a_step_that_goes_backwards_clears_the_history(caplog: pytest.LogCaptureFixture) -> None:
    # given
    guard = LossGuard(multiplier=2.0)
    for step in range(100, 110):
        guard.check(1.0, step=step)
    assert guard.check(9.0, step=110).reason == "spike"

    # when
    verdicts = [guard.check(9.0, step=step) for step in (1, 1, 1, 2)]

    # then
    assert [verdict.reason for verdict in verdicts] == ["warmup"] * 3 + ["normal"]
    assert said(caplog, "") == ["Guard: the step went back from 110 to 1: history cleared, warm-up begins again."]


def test_every_step_backwards_clears_the_history_and_the_first_is_said(caplog: pytest.LogCaptureFixture) -> None:
    guard = LossGuard(multiplier=2.0, min_history=1)

    assert [guard.check(1.0, step=step).reason for step in (9, 9, 5, 5, 3, 3)] == ["warmup", "normal"] * 3
    assert len(said(caplog, "went back")) == 1


def test_the_same_step_again_is_another_micro_batch_of_it() -> None:
    guard = LossGuard(multiplier=2.0)

    assert [guard.check(1.0, step=7).reason for _ in range(4)] == ["warmup"] * 3 + ["normal"]


def test_three_runs_appended_to_one_log_are_three_warm_ups() -> None:
    # given
    path = Path(__file__).parents[2] / "data" / "curves" / "pgolf_3runs_one_log.csv"
    lines = [line.split(",")[:2] for line in path.read_text().splitlines()[1:]]
    guard = LossGuard(multiplier=2.0)

    # when
    verdicts = [guard.check(float(loss), step=int(step)) for step, loss in lines]

    # then
    assert all(verdict.keep for verdict in verdicts)
    assert sum(verdict.reason == "warmup" for verdict in verdicts) == 9


def test_a_reset_clears_the_history_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    # given
    guard = LossGuard(multiplier=2.0)
    for step in range(10):
        guard.check(1.0, step=step)

    # when
    guard.reset("new data mixture")

    # then: the step may start again without a word
    assert [guard.check(9.0, step=0).reason for _ in range(4)] == ["warmup"] * 3 + ["normal"]
    assert said(caplog, "") == ["Guard: history cleared: new data mixture."]
    assert guard.num_judged == 14


def test_a_reset_ends_a_row_of_skips() -> None:
    # given a row of seven
    guard = LossGuard(multiplier=2.0)
    reasons(guard, [1.0] * 8 + [9.0] * 7)

    # when
    guard.reset("again")
    reasons(guard, [1.0] * 8)

    # then eight more are skipped
    assert reasons(guard, [9.0] * 9) == ["spike"] * 8 + ["rebaselined"]


@pytest.mark.parametrize("level", [0.0, -1.0])
def test_a_baseline_that_is_not_positive_keeps_everything_and_says_so_once(
    level: float, caplog: pytest.LogCaptureFixture
) -> None:
    guard = LossGuard(multiplier=2.0)

    assert reasons(guard, [level] * 5 + [0.5]) == ["warmup"] * 3 + ["baseline_not_positive"] * 3
    (message,) = said(caplog, "")
    assert f"the mean of the last losses is {level:g}" in message
    assert 'rule="robust"' in message


def test_a_loss_kept_for_lack_of_a_positive_baseline_enters_the_history() -> None:
    # given three losses of -1
    guard = LossGuard(multiplier=2.0)
    reasons(guard, [-1.0] * 3 + [7.0])

    # then the mean is (7 - 3) / 4
    assert guard.check(1.0).baseline == 1.0


def spikes_every(period: int, *, num: int) -> list[float]:
    return ([1.0] * (period - 1) + [2.5]) * num


def test_eleven_skips_among_a_thousand_are_said_once_with_the_setting_that_would_do(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # given ten spikes in 500 micro-batches
    guard = LossGuard(multiplier=2.0)
    reasons(guard, spikes_every(50, num=10))
    assert said(caplog, "") == []

    # when
    reasons(guard, spikes_every(50, num=20))

    # then: of 550, five may be skipped, so the sixth largest must fit, and all needed 2.5
    assert said(caplog, "") == [
        "Guard: 11 of the last 550 micro-batches were skipped as spikes (2.0%): multiplier=2 is tight for this run. "
        "multiplier=2.5 would have skipped at most 1 % of them."
    ]


def test_the_setting_that_is_named_would_have_done(caplog: pytest.LogCaptureFixture) -> None:
    # given spikes of many sizes, 2 % of all
    losses = [1.0 + 0.001 * (i % 9) if i % 50 else 2.0 + (i % 700) / 301 for i in range(1, 1_001)]
    guard = LossGuard(multiplier=2.0)
    num_seen = 0
    while not said(caplog, "tight"):
        guard.check(losses[num_seen])
        num_seen += 1
    named = float(said(caplog, "tight")[0].split("multiplier=")[2].split()[0])

    # then
    wider = LossGuard(multiplier=named)
    assert 2.0 < named < 4.4
    assert sum(reason == "spike" for reason in reasons(wider, losses[:num_seen])) <= num_seen // 100


def test_under_robust_the_setting_that_would_do_is_a_k(caplog: pytest.LogCaptureFixture) -> None:
    # given a scale of 2 % of 50 = 1, and spikes of 12.34 scales
    guard = LossGuard(rule="robust")

    reasons(guard, ([50.0] * 49 + [62.34]) * 11)

    assert "k=10 is tight for this run. k=12.4 would have skipped" in said(caplog, "tight")[0]


def test_ten_skips_among_a_thousand_are_not_too_many(caplog: pytest.LogCaptureFixture) -> None:
    guard = LossGuard(multiplier=2.0)

    reasons(guard, spikes_every(100, num=40))

    assert guard.num_skipped == 40
    assert said(caplog, "tight") == []


def test_losses_that_are_not_finite_are_no_sign_of_a_tight_setting(caplog: pytest.LogCaptureFixture) -> None:
    guard = LossGuard(multiplier=2.0)

    reasons(guard, [1.0, 1.0, 1.0, NAN] * 20)

    assert said(caplog, "tight") == []


def test_on_a_healthy_noisy_fine_tune_mean_skips_many_and_robust_three() -> None:
    path = Path(__file__).parents[2] / "data" / "curves" / "hf_sft_24k_noisy.csv"
    losses = [float(line.split(",")[1]) for line in path.read_text().splitlines()[1:]]

    mean, robust = LossGuard(multiplier=2.0), LossGuard(rule="robust")
    for loss in losses:
        mean.check(loss)
        robust.check(loss)

    assert (mean.num_judged, mean.num_skipped, robust.num_skipped) == (24_000, 125, 3)
