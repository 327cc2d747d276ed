"""The rule as tensor code: cases worked out by hand, what it holds, and what it leaves alone."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import GuardLockupError
from trimtab.guard import GuardConfig, PerTokenLossGuard
from trimtab.rules.live import LIVE_RULES
from trimtab.torch.device_comparisons import COMPARISONS, exact_sum
from trimtab.torch.device_rule import DeviceRule, Ruling
from trimtab.values import VERDICT_REASONS


def figure(x: float) -> torch.Tensor:
    return torch.tensor(float(x), dtype=torch.float64)


def ruled(rule: DeviceRule, loss_sum: float, num_tokens: float, num_nonfinite: float = 0) -> Ruling:
    return rule.decide(figure(loss_sum), figure(num_tokens), figure(num_nonfinite))


def reasons_of(rule: DeviceRule, losses: list[float]) -> list[str]:
    return [VERDICT_REASONS[int(ruled(rule, loss, 1).reason)] for loss in losses]


def state_of(rule: DeviceRule) -> dict[str, torch.Tensor]:
    """What a rule holds on the device, constants too."""
    return {name: value for name, value in vars(rule).items() if isinstance(value, torch.Tensor)}


def test_every_rule_that_a_guard_can_be_given_has_tensor_code() -> None:
    assert COMPARISONS.keys() == LIVE_RULES.keys()


def test_the_classic_example_is_judged_as_on_the_page() -> None:
    losses = [10.8, 7.5, 6.3, 30.0]

    assert reasons_of(DeviceRule(GuardConfig(multiplier=2.0), device="cpu"), losses)[-1] == "spike"
    later = GuardConfig(multiplier=2.0, min_history=4)
    assert reasons_of(DeviceRule(later, device="cpu"), losses)[-1] == "warmup"


def test_a_tie_is_normal_whatever_the_order_of_summation() -> None:
    # given eight 1.1, whose plain sum in float64 is not eight times one of them
    rule = DeviceRule(GuardConfig(multiplier=2.0), device="cpu")

    assert reasons_of(rule, [1.1] * 8 + [2.2]) == ["warmup"] * 3 + ["normal"] * 6


def test_the_median_is_subtracted_before_anything_is_rounded() -> None:
    # given a margin below 0.5 by so little that 1.0 + margin is 1.5
    k = 24.999999999999993
    assert k * 0.02 < 0.5
    assert 1.0 + k * 0.02 == 1.5
    rule = DeviceRule(GuardConfig(rule="robust", k=k, window_size=3, min_history=3), device="cpu")

    assert reasons_of(rule, [1.0] * 3 + [1.5]) == ["warmup"] * 3 + ["spike"]


def test_a_level_shift_ends_after_eight_skips() -> None:
    rule = DeviceRule(GuardConfig(multiplier=3.0), device="cpu")

    reasons = reasons_of(rule, [1.0] * 8 + [4.0] * 12)

    assert reasons[8:] == ["spike"] * 8 + ["rebaselined"] + ["normal"] * 3


def test_losses_that_are_not_finite_neither_count_towards_a_lock_up_nor_end_a_row() -> None:
    rule = DeviceRule(GuardConfig(multiplier=3.0, max_consecutive_skips=2), device="cpu")

    reasons = reasons_of(rule, [1.0] * 3 + [4.0, math.nan, 4.0, math.inf, -math.inf, 4.0])

    assert reasons[3:] == ["spike", "nonfinite", "spike", "nonfinite", "nonfinite", "rebaselined"]


def test_without_tokens_a_micro_batch_is_kept_and_nothing_is_remembered() -> None:
    rule = DeviceRule(GuardConfig(multiplier=2.0), device="cpu")
    reasons_of(rule, [1.0, 2.0, 3.0, 9.0])
    before = {name: value.nan_to_num() for name, value in state_of(rule).items()}

    for loss_sum, num_nonfinite in ((0.0, 0), (math.nan, 0), (math.inf, 0), (5.0, 1)):
        ruling = ruled(rule, loss_sum, 0, num_nonfinite)

        assert (bool(ruling.keep), VERDICT_REASONS[int(ruling.reason)], float(ruling.loss)) == (True, "no_tokens", 0.0)
    assert all(torch.equal(value.nan_to_num(), before[name]) for name, value in state_of(rule).items())


def test_a_flag_of_another_rank_skips_though_the_sum_is_finite() -> None:
    rule = DeviceRule(GuardConfig(rule="robust"), device="cpu")

    ruling = ruled(rule, 5.0, 5, num_nonfinite=1)

    assert (bool(ruling.keep), VERDICT_REASONS[int(ruling.reason)]) == (False, "nonfinite")


def test_where_the_host_raises_the_device_goes_on_skipping() -> None:
    # given
    config = GuardConfig(multiplier=2.0, max_consecutive_skips=2, on_lockup="raise")
    rule, guard = DeviceRule(config, device="cpu"), PerTokenLossGuard.from_config(config)
    losses = [1.0, 1.0, 1.0, 5.0, 5.0, 5.0, 5.0, 1.5, 5.0]

    # when
    reasons = reasons_of(rule, losses)
    told = []
    for loss in losses:
        try:
            told.append(guard.check(loss, 1).reason)
        except GuardLockupError:
            told.append("spike")

    # then
    assert reasons == told == ["warmup"] * 3 + ["spike"] * 4 + ["normal", "spike"]


def test_a_reset_begins_with_warm_up_again() -> None:
    rule = DeviceRule(GuardConfig(multiplier=2.0, max_consecutive_skips=2), device="cpu")
    reasons_of(rule, [1.0] * 8 + [5.0])

    rule.reset()

    assert reasons_of(rule, [9.0, 9.0, 9.0, 9.0, 20.0, 20.0, 20.0]) == [
        *["warmup"] * 3,
        "normal",
        *["spike"] * 2,
        "rebaselined",
    ]


def test_a_history_that_was_loaded_replaces_the_one_before() -> None:
    config = GuardConfig(multiplier=2.0, max_consecutive_skips=2)
    rule, guard = DeviceRule(config, device="cpu"), PerTokenLossGuard.from_config(config)
    reasons_of(rule, [1.0] * 8 + [5.0])
    for loss in (10.0, 10.0, 10.0, 50.0):
        guard.check(loss, 1)

    rule.load(guard.history)

    assert reasons_of(rule, [19.0, 60.0, 61.0, 62.0]) == ["normal", "spike", "spike", "rebaselined"]


@pytest.mark.parametrize("config", [GuardConfig(multiplier=2.0), GuardConfig(rule="robust")])
def test_the_state_stays_where_it_is(config: GuardConfig) -> None:
    # given: a captured graph reads and writes the addresses that it saw first
    rule, guard = DeviceRule(config, device="cpu"), PerTokenLossGuard.from_config(config)
    places = {name: (id(value), value.data_ptr()) for name, value in state_of(rule).items()}

    # when
    reasons_of(rule, [1.0] * 30 + [9.0, math.nan])
    rule.load(guard.history)
    rule.reset()

    # then
    assert {name: (id(value), value.data_ptr()) for name, value in state_of(rule).items()} == places


def test_a_loss_that_still_has_its_graph_leaves_none_in_the_state() -> None:
    # given
    rule = DeviceRule(GuardConfig(rule="robust"), device="cpu")
    loss_sum = torch.nn.Parameter(figure(2.0)) * 3

    # when
    ruling = rule.decide(loss_sum, figure(3), figure(0))

    # then
    assert not any(part.requires_grad for part in (*ruling, *state_of(rule).values()))


def test_a_ruling_is_not_changed_by_the_next_one() -> None:
    rule = DeviceRule(GuardConfig(multiplier=2.0), device="cpu")
    reasons_of(rule, [1.0] * 3)

    spike = ruled(rule, 9.0, 1)
    reasons_of(rule, [1.0, 2.0])

    assert [float(x) for x in spike] == [0.0, VERDICT_REASONS.index("spike"), 9.0, 1.0, 2.0]


def test_each_part_of_a_ruling_has_the_type_that_it_says() -> None:
    ruling = ruled(DeviceRule(GuardConfig(rule="robust"), device="cpu"), 5.0, 2)

    assert [(x.dtype, x.ndim) for x in ruling] == [
        (torch.bool, 0),
        (torch.int64, 0),
        *[(torch.float64, 0)] * 3,
    ]


# float32 values that span up to 2^64
WIDE = st.builds(math.ldexp, st.integers(-(2**24) + 1, 2**24 - 1), st.integers(-44, -4))


@given(st.lists(WIDE, min_size=1, max_size=128), st.integers(0, 8))
def test_a_sum_is_rounded_once(values: list[float], num_missing: int) -> None:
    padded = torch.tensor([*values, *[0.0] * num_missing], dtype=torch.float64)

    assert float(exact_sum(padded)) == math.fsum(values)
