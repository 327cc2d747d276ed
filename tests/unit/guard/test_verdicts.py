"""Verdicts of both guards: numbers worked by hand, and their order."""

import math

import numpy as np
import pytest
import torch

from trimtab.errors import UsageError
from trimtab.guard import LossGuard, PerTokenLossGuard

NAN, INF = math.nan, math.inf


def kept(guard: LossGuard, losses: list[float]) -> list[bool]:
    return [guard.check(loss).keep for loss in losses]


@pytest.mark.parametrize(
    ("losses", "settings", "expected"),
    [
        pytest.param([10.8, 7.5, 6.3, 30.0], {"min_history": 3}, [1, 1, 1, 0], id="three behind"),
        pytest.param([10.8, 7.5, 6.3, 30.0], {"min_history": 4}, [1, 1, 1, 1], id="warm-up"),
        pytest.param([1.0] * 4 + [2.0], {}, [1] * 5, id="strictly above"),
        pytest.param(
            [2.0] * 8 + [20.0] * 4 + [2.0] * 4 + [6.0], {}, [1] * 8 + [0] * 4 + [1] * 4 + [0], id="spikes stay out"
        ),
        pytest.param([2.0, 2.1, NAN, 2.0, 50.0], {}, [1, 1, 0, 1, 0], id="nan never enters"),
        pytest.param([2.0, INF, 2.0, 2.0, 50.0], {}, [1, 0, 1, 1, 0], id="inf in warm-up"),
        pytest.param([2.0, 1e39, 2.0, 2.0, 50.0], {}, [1, 0, 1, 1, 0], id="beyond float32"),
    ],
)
def test_the_classic_rule(losses: list[float], settings: dict[str, int], expected: list[int]) -> None:
    assert kept(LossGuard(multiplier=2.0, **settings), losses) == [bool(keep) for keep in expected]  # type: ignore[arg-type]


def test_a_warm_up_loss_enters_the_history() -> None:
    guard = LossGuard(multiplier=2.0, min_history=4)

    kept(guard, [10.8, 7.5, 6.3, 30.0])

    assert guard.check(1.0).baseline == pytest.approx((10.8 + 7.5 + 6.3 + 30.0) / 4, rel=1e-6)


def test_a_spike_never_enters_the_window() -> None:
    guard = LossGuard(multiplier=2.0)

    kept(guard, [2.0, 2.0, 2.0, 50.0, NAN])

    assert guard.check(2.0).baseline == 2.0


def test_the_window_forgets_all_but_the_last_eight() -> None:
    guard = LossGuard(multiplier=2.0)

    kept(guard, [100.0, *[1.0] * 8])

    assert guard.check(1.0).baseline == 1.0


def test_an_off_guard_keeps_everything_and_remembers_nothing() -> None:
    guard = LossGuard()

    verdicts = [guard.check(loss) for loss in (1.0, 1.0, 1.0, 100.0, NAN)]

    assert not guard.enabled
    assert {(verdict.keep, verdict.reason) for verdict in verdicts} == {(True, "off")}
    assert (verdicts[3].loss, guard.num_judged, guard.num_skipped) == (100.0, 0, 0)


def test_a_guard_counts_what_it_judged_and_skipped() -> None:
    guard = PerTokenLossGuard(multiplier=2.0)

    for loss_sum, num_tokens in ((20.0, 10), (20.0, 10), (20.0, 10), (0.0, 0), (90.0, 10), (NAN, 10), (20.0, 10)):
        guard.check(loss_sum, num_tokens)

    assert (guard.num_judged, guard.num_skipped) == (6, 2)


def test_robust_is_silent_on_rounding_and_skips_a_spike() -> None:
    guard = LossGuard(rule="robust")

    assert all(kept(guard, [2.5] * 100 + [2.5078]))
    assert guard.check(5.0).reason == "spike"


def test_a_loss_is_judged_by_token_not_by_its_sum() -> None:
    # given a baseline of 1.0
    guard = PerTokenLossGuard(multiplier=2.0)
    for _ in range(5):
        guard.check(100.0, 100)

    # then
    assert guard.check(500.0, 100).reason == "spike"
    assert guard.check(500.0, 400).reason == "normal"
    assert guard.check(NAN, 100).reason == "nonfinite"
    assert guard.check(INF, 100).reason == "nonfinite"


def test_the_global_figures_decide_alike_for_every_rank() -> None:
    # given a baseline of 1.0, and ranks with (30.0, 10 tokens) and (990.0, 990 tokens)
    guard = PerTokenLossGuard(multiplier=2.0)
    for _ in range(4):
        guard.check(100.0, 100)

    # then
    verdict = guard.check(30.0 + 990.0, 10 + 990)
    assert (verdict.keep, verdict.loss) == (True, float(np.float32(1.02)))
    assert guard.check(30.0 + NAN, 10 + 990).keep is False
    # and a rank without a token adds nothing: (20.0, 10) and (0.0, 0)
    assert guard.check(20.0 + 0.0, 10 + 0).loss == 2.0


def test_the_judged_loss_is_divided_in_float64_and_rounded_once() -> None:
    loss_sum, num_tokens = 0.9, 3

    verdict = PerTokenLossGuard(multiplier=2.0).check(loss_sum, num_tokens)

    assert verdict.loss == float(np.float32(np.float64(loss_sum) / num_tokens))
    assert verdict.loss != float(np.float32(loss_sum) / np.float32(num_tokens)), "or this case tells nothing apart"


@pytest.mark.parametrize("loss_sum", [0.0, 7.0, NAN, INF])
def test_without_tokens_there_is_no_loss_and_no_history(loss_sum: float) -> None:
    # given a row of skips, so that every part of the history holds something
    guard = PerTokenLossGuard(multiplier=2.0)
    for total in (100.0, 100.0, 100.0, 900.0, NAN):
        guard.check(total, 100, step=5)
    before = guard.state_dict()

    # when
    verdict = guard.check(loss_sum, 0, step=5)

    # then
    assert (verdict.keep, verdict.reason, verdict.loss) == (True, "no_tokens", 0.0)
    assert guard.state_dict() == before


def test_off_is_asked_before_everything_else() -> None:
    guard = PerTokenLossGuard()

    assert guard.check(NAN, 0).reason == "off"
    assert guard.check(NAN, 10).reason == "off"


def test_no_tokens_and_not_finite_are_asked_before_warm_up() -> None:
    guard = PerTokenLossGuard(rule="robust")

    assert [guard.check(NAN, 0).reason, guard.check(NAN, 1).reason, guard.check(1.0, 1).reason] == [
        "no_tokens",
        "nonfinite",
        "warmup",
    ]


@pytest.mark.parametrize("loss", [2, np.float32(2.0), np.array(2.0), torch.tensor(2.0), torch.tensor(2.0).bfloat16()])
def test_a_loss_may_come_as_anything_that_holds_one_number(loss: object) -> None:
    assert LossGuard(multiplier=2.0).check(loss).loss == 2.0
    assert PerTokenLossGuard(multiplier=2.0).check(loss, torch.tensor(4)).loss == 0.5


@pytest.mark.parametrize("loss", [True, "2.0", 2j, None, [1.0], torch.ones(4), np.ones(2)])
def test_a_loss_that_is_not_one_number_is_refused(loss: object) -> None:
    guard = LossGuard(multiplier=2.0)

    with pytest.raises(UsageError, match=r"^loss is .* expected one"):
        guard.check(loss)
    with pytest.raises(UsageError, match=r"^loss_sum is .* expected one"):
        PerTokenLossGuard().check(loss, 0)
    assert guard.num_judged == 0


@pytest.mark.parametrize("num_tokens", [-1, 2.0, True, "3", None, torch.tensor(2.0)])
def test_a_number_of_tokens_that_is_no_count_is_refused(num_tokens: object) -> None:
    with pytest.raises(UsageError, match=r"^num_tokens is .* expected one whole number"):
        PerTokenLossGuard(multiplier=2.0).check(1.0, num_tokens)
