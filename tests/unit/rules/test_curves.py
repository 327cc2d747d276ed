"""The rules on published training curves: the counts that their defaults rest on.

Offline, as `rewind` judges: every finite value is absorbed.
"""

from collections.abc import Callable

import pytest

from trimtab.rules.mean import MeanRule
from trimtab.rules.median import MedianRule
from trimtab.rules.norms import NormRule
from trimtab.rules.robust import RobustRule
from trimtab.rules.windowed import WindowedRule

Curve = list[tuple[int, float]]


def flagged(rule: WindowedRule, curve: Curve, *, absorb_all: bool = True) -> list[int]:
    """Steps at which the rule sees a spike."""
    steps = []
    for step, value in curve:
        verdict = rule.judge(value)
        if verdict.reason == "spike":
            steps.append(step)
        if verdict.keep or absorb_all:
            rule.absorb(value)
    return steps


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf_sft_24k_noisy", [413, 618, 1122]),
        ("nanogpt_valueembed_d884", [918, 946]),
        ("nanogpt_valueembed_2358", [918, 946]),
        ("mixtral8x7b_a100", [2425, 4050, 4055]),
    ],
)
def test_robust_finds_the_spikes_of_a_curve(name: str, expected: list[int], curve: Callable[..., Curve]) -> None:
    assert flagged(RobustRule(), curve(name)) == expected


@pytest.mark.parametrize(("name", "num_flags", "peak"), [("nanogpt_1B_a", 24, 14738), ("nanogpt_fp4_932b", 34, 14257)])
def test_robust_finds_the_spikes_of_the_large_runs(
    name: str, num_flags: int, peak: int, curve: Callable[..., Curve]
) -> None:
    steps = flagged(RobustRule(), curve(name))

    assert len(steps) == num_flags
    assert peak in steps


def test_robust_finds_the_spike_that_a_sister_run_had_too(curve: Callable[..., Curve]) -> None:
    assert 14221 in flagged(RobustRule(), curve("nanogpt_shortcuts_70a0"))


@pytest.mark.parametrize("name", ["llmc_gpt2_124M", "deepseekv3_proxy_moe", "gpt3_15b", "alpaca_7b", "qlora_guanaco"])
def test_robust_is_silent_on_a_healthy_run(name: str, curve: Callable[..., Curve]) -> None:
    assert flagged(RobustRule(), curve(name)) == []


def test_no_multiplier_of_the_mean_transfers(curve: Callable[..., Curve]) -> None:
    # when, live: a spike stays out of the window
    noisy = flagged(MeanRule(2.0), curve("hf_sft_24k_noisy"), absorb_all=False)
    spiky = flagged(MeanRule(2.0), curve("nanogpt_1B_a"), absorb_all=False)

    # then: 0.1324 at step 20220 is twice its mean of 0.0662 in decimals, and above it in float32; with doubles
    # throughout there are 124
    assert len(noisy) == 125
    assert 20220 in noisy
    assert spiky == []


def test_no_multiplier_of_the_median_transfers(curve: Callable[..., Curve]) -> None:
    assert len(flagged(MedianRule(), curve("hf_sft_24k_noisy"))) == 136
    for name in ("nanogpt_1B_a", "nanogpt_fp4_932b", "nanogpt_shortcuts_70a0"):
        assert flagged(MedianRule(), curve(name)) == []


def test_the_norm_rule_finds_the_four_norms_that_stand_out(curve: Callable[..., Curve]) -> None:
    norms = curve("llmc_gpt2_124M", "grad_norm")

    assert flagged(NormRule(), norms) == [4233, 7435, 9025, 9954]
    assert len(flagged(RobustRule(), norms)) == 56


def test_the_norm_rule_sees_a_jump_one_step_after_the_log_begins(curve: Callable[..., Curve]) -> None:
    """The norm goes from 12,952 to 262,623 while the loss is still 3.11."""
    assert flagged(NormRule(), curve("tr8_104B_spike_11448", "grad_norm")) == [11447]
