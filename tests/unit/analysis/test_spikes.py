"""Which steps are findings: hand-worked series, and published curves with known answers."""

import math

import pytest

from trimtab.analysis.spikes import MAX_SPIKES, find_spikes
from trimtab.errors import UsageError


def steps(search):
    return [spike.step for spike in search.spikes]


def test_the_median_rule_is_strict(series_of):
    assert steps(find_spikes(series_of([1.0] * 10 + [2.0]), rule="median")) == []
    assert steps(find_spikes(series_of([1.0] * 10 + [2.0001]), rule="median")) == [11]


def test_the_median_rule_needs_three_steps_behind(series_of):
    assert steps(find_spikes(series_of([1.0, 1.0, 10.0]), rule="median")) == []
    assert steps(find_spikes(series_of([1.0, 1.0, 1.0, 10.0]), rule="median")) == [4]


def test_steps_without_tokens_are_in_no_baseline(series_of):
    # three 1.0, twenty steps without tokens, then 1.5
    assert steps(find_spikes(series_of([1.0] * 3 + [None] * 20 + [1.5]), rule="median")) == []
    assert steps(find_spikes(series_of([1.0] * 3 + [None] * 20 + [2.5]), rule="median")) == [24]


def test_the_published_example_has_its_ratio(series_of):
    # given: row 16 with 0.9 x 50 tokens and row 17 with 9.0 x 300 are step 9
    loss = (0.9 * 50 + 9.0 * 300) / 350
    # when
    (spike,) = find_spikes(series_of([0.955] * 8 + [loss]), rule="robust").spikes
    # then
    assert spike.value == spike.loss == pytest.approx(7.842857, abs=1e-6)
    assert spike.ratio == pytest.approx(8.21, abs=5e-3)
    assert (spike.severity, spike.kind, spike.signal, spike.rule, spike.score) == (
        "warning",
        "spike",
        "loss",
        "median",
        None,
    )


def test_warnings_enter_the_median_baseline_and_a_nonfinite_loss_never_does(series_of):
    # given: after eleven 5.0 among twenty, the median is 5.0
    shifted = [1.0] * 20 + [5.0] * 12
    assert steps(find_spikes(series_of(shifted), rule="median")) == list(range(21, 31))
    # then: losses that are not finite shift nothing
    dead = [1.0] * 20 + [math.inf] * 12 + [5.0]
    assert steps(find_spikes(series_of(dead), rule="median")) == [21, 33]


def test_findings_come_critical_first_then_by_ratio_under_median(series_of):
    losses = [1.0] * 60
    losses[30], losses[40], losses[50], losses[55] = 3.0, math.nan, 9.0, -math.inf
    search = find_spikes(series_of(losses), rule="median")
    assert steps(search) == [41, 56, 51, 31]
    assert [spike.severity for spike in search.spikes] == ["critical", "critical", "warning", "warning"]
    assert {spike.rule for spike in search.spikes} == {"median"}


def test_findings_come_by_score_under_robust(series_of):
    # given: the same jump counts for more where the noise is smaller
    losses = [2.0 + 0.3 * (-1) ** step for step in range(150)] + [2.0 + 0.001 * (-1) ** step for step in range(150)]
    losses[140], losses[290] = 9.0, 5.0
    search = find_spikes(series_of(losses), rule="robust")
    assert steps(search) == [291, 141]
    # then: median 2.001, scale 2 % of it
    assert search.spikes[0].baseline == pytest.approx(2.0, abs=0.01)
    assert search.spikes[0].score == pytest.approx(3.0 / 0.04, rel=0.01)


def test_the_median_rule_decides_until_twenty_steps_lie_behind(series_of):
    # given: 1.9 is 45 scales out, and still below twice the median
    losses = [1.0] * 40
    losses[19], losses[20] = 1.9, 1.9
    search = find_spikes(series_of(losses), rule="robust")
    assert [(spike.step, spike.rule) for spike in search.spikes] == [(21, "robust")]
    assert (search.num_median, search.first_robust_step) == (20, 21)


def test_a_short_log_is_judged_by_the_median_rule_alone(series_of):
    search = find_spikes(series_of([1.0] * 9 + [3.0]), rule="robust")
    assert [(spike.step, spike.rule) for spike in search.spikes] == [(10, "median")]
    assert (search.num_median, search.first_robust_step) == (10, None)


def test_a_level_shift_under_robust_is_one_finding_that_ends(series_of):
    # given: 100 low values, then 400 high ones; from the 51st on, most of the window is high
    (spike,) = find_spikes(series_of([1.0] * 100 + [4.0] * 400), rule="robust").spikes
    assert (spike.first, spike.last, spike.num_steps) == (101, 150, 50)


def test_neighbours_under_robust_are_one_finding_that_peaks_at_the_largest(series_of):
    losses = [1.0] * 50
    losses[30:33] = [3.0, 8.0, 4.0]
    (spike,) = find_spikes(series_of(losses), rule="robust").spikes
    assert (spike.step, spike.first, spike.last, spike.num_steps, spike.value) == (32, 31, 33, 3, 8.0)


def test_a_step_without_tokens_does_not_part_neighbours(series_of):
    losses = [1.0] * 50
    losses[30:33] = [3.0, None, 4.0]
    (spike,) = find_spikes(series_of(losses), rule="robust").spikes
    assert (spike.first, spike.last, spike.num_steps) == (31, 33, 2)


def test_neighbours_under_median_stay_single(series_of):
    losses = [1.0] * 50
    losses[30:33] = [3.0, 8.0, 4.0]
    assert steps(find_spikes(series_of(losses), rule="median")) == [32, 33, 31]


def test_a_spike_and_a_nonfinite_loss_never_merge(series_of):
    losses = [1.0] * 50
    losses[30:34] = [3.0, math.nan, math.inf, 4.0]
    search = find_spikes(series_of(losses), rule="robust")
    assert [(spike.kind, spike.first, spike.last) for spike in search.spikes] == [
        ("nonfinite", 32, 33),
        ("spike", 34, 34),
        ("spike", 31, 31),
    ]
    assert math.isnan(search.spikes[0].value)
    assert (search.spikes[0].rule, search.spikes[0].baseline, search.spikes[0].score) == ("robust", 1.0, None)


def test_a_loss_beyond_float32_is_not_finite(series_of):
    (spike,) = find_spikes(series_of([1.0] * 5 + [1e39] + [1.0] * 5), rule="median").spikes
    assert (spike.step, spike.kind, spike.value) == (6, "nonfinite", 1e39)


def test_a_log_of_nothing_but_nan_is_one_finding_without_a_baseline(series_of):
    (spike,) = find_spikes(series_of([math.nan] * 10)).spikes
    assert (spike.first, spike.last, spike.num_steps, spike.baseline, spike.ratio) == (1, 10, 10, None, None)


def test_at_most_a_thousand_findings_are_listed_and_the_rest_counted(series_of):
    search = find_spikes(series_of([1.0, math.nan] * 1_500), rule="median")
    assert (len(search.spikes), search.num_left_out) == (MAX_SPIKES, 500)
    assert search.spikes[-1].first == 2_000


def test_spikes_give_way_to_what_is_not_finite_when_the_list_is_cut(series_of):
    losses = [1.0] * 30 + [1.0, math.nan] * 1_000 + [1.0] * 5 + [9.0]
    search = find_spikes(series_of(losses), rule="median")
    assert ({spike.kind for spike in search.spikes}, search.num_left_out) == ({"nonfinite"}, 1)


def test_an_empty_series_has_no_findings(series_of):
    search = find_spikes(series_of([]))
    assert (search.spikes, search.num_median, search.first_robust_step) == ((), 0, None)


def test_an_unknown_rule_is_refused(series_of):
    with pytest.raises(UsageError, match="robust, median"):
        find_spikes(series_of([1.0]), rule="mean")


# ---------------------------------------------------------------------------------------------- gradient norms


def test_a_norm_that_jumps_is_a_notice_after_the_losses(series_of):
    losses, norms = [2.0] * 60, [1.0] * 60
    losses[40], norms[50] = 9.0, 30.0
    loss, norm = find_spikes(series_of(losses, norms=norms)).spikes
    assert (loss.step, loss.severity) == (41, "warning")
    assert (norm.step, norm.kind, norm.signal, norm.severity, norm.rule) == (
        51,
        "grad_norm",
        "grad_norm",
        "notice",
        "robust",
    )
    # then: (30 - 1) / (2 % of 1)
    assert (norm.value, norm.loss, norm.baseline, norm.ratio) == (30.0, 2.0, 1.0, 30.0)
    assert norm.score == pytest.approx(1450.0)


def test_a_norm_must_be_both_far_out_and_above_three_medians(series_of):
    norms = [1.0] * 60
    norms[40], norms[50] = 2.9, 3.1
    assert steps(find_spikes(series_of([2.0] * 60, norms=norms))) == [51]


def test_norms_are_judged_with_few_steps_behind(series_of):
    # 1 behind: above 10 x the previous; 3 behind: above 2 x the median
    assert steps(find_spikes(series_of([2.0, 2.0], norms=[1.0, 10.1]))) == [2]
    assert steps(find_spikes(series_of([2.0, 2.0], norms=[1.0, 9.9]))) == []
    assert steps(find_spikes(series_of([2.0] * 4, norms=[1.0, 1.0, 1.0, 2.1]))) == [4]


def test_a_norm_that_is_not_finite_under_a_finite_loss_is_critical(series_of):
    # given: as a published log ends: loss 0.2051, then 0.0, 0.0, with NaN norms
    search = find_spikes(series_of([0.2051, 0.0, 0.0], norms=[math.nan] * 3))
    (spike,) = search.spikes
    assert (spike.kind, spike.signal, spike.severity) == ("nonfinite", "grad_norm", "critical")
    assert (spike.step, spike.first, spike.last, spike.loss) == (1, 1, 3, 0.2051)


def test_a_norm_that_overflowed_while_the_scaler_found_its_scale_is_no_finding(series_of):
    reasons = ["scaler_overflow", "scaler_overflow", "stepped"]
    assert steps(find_spikes(series_of([2.0] * 3, norms=[math.inf, math.inf, 1.0], reasons=reasons))) == []


def test_a_loss_and_a_norm_that_are_not_finite_are_one_finding(series_of):
    (spike,) = find_spikes(series_of([2.0, math.nan], norms=[1.0, math.nan])).spikes
    assert (spike.step, spike.signal) == (2, "loss")


# ---------------------------------------------------------------------------------------------- published curves


def flags(search):
    """Steps flagged for their loss, one a step, and without what is not finite."""
    return sum(spike.num_steps for spike in search.spikes if spike.kind == "spike")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf_sft_24k_noisy", [413, 618, 1122]),
        ("nanogpt_valueembed_2358", [918, 946]),
        ("nanogpt_valueembed_d884", [918, 946]),
        ("mixtral8x7b_a100", [2425, 4050, 4055]),
        ("llmc_gpt2_124M", []),
        ("deepseekv3_proxy_moe", []),
        ("gpt3_15b", []),
        ("alpaca_7b", []),
        ("qlora_guanaco", []),
    ],
)
def test_robust_flags_of_a_published_curve(curve, name, expected):
    series = curve(name)
    spikes = [spike for spike in find_spikes(series, rule="robust").spikes if spike.kind == "spike"]
    flagged = [step for spike in spikes for step in series.step.tolist() if spike.first <= step <= spike.last]
    assert sorted(flagged) == expected


@pytest.mark.parametrize(("name", "expected"), [("nanogpt_1B_a", 24), ("nanogpt_fp4_932b", 34)])
def test_robust_flags_single_batch_spikes_of_large_runs(curve, name, expected):
    assert flags(find_spikes(curve(name), rule="robust")) == expected


def test_a_tail_of_nan_is_one_finding_beside_the_spike(series_of):
    losses = [2.0] * 100 + [9.0] + [2.0] * 100 + [math.nan] * 1_707
    search = find_spikes(series_of(losses))
    assert [(spike.kind, spike.first, spike.last, spike.num_steps) for spike in search.spikes] == [
        ("nonfinite", 202, 1908, 1707),
        ("spike", 101, 101, 1),
    ]


def test_the_dead_tail_of_a_published_curve_is_one_finding(curve):
    # given: from 13555 to the end, 1,707 of 2,090 entries are NaN, in five stretches
    search = find_spikes(curve("mixtral8x7b_a100"))
    (dead,) = [spike for spike in search.spikes if spike.kind == "nonfinite"]
    assert (dead.step, dead.first, dead.last, dead.num_steps) == (13555, 13555, 24000, 1707)
    assert search.died_again == (15805, 18105, 20955, 23410)


DEAD = [math.nan]


def stretches(series):
    return [(spike.first, spike.last, spike.num_steps) for spike in find_spikes(series).spikes]


@pytest.mark.parametrize("num_finite", [1, 5])
def test_a_short_return_between_two_dead_stretches_is_no_recovery(series_of, num_finite):
    losses = [2.0] * 30 + DEAD * 10 + [2.0] * num_finite + DEAD * 30
    assert stretches(series_of(losses)) == [(31, 70 + num_finite, 40)]
    losses += [2.0] * 15 + DEAD * 30
    assert stretches(series_of(losses)) == [(31, 115 + num_finite, 70)]


def test_a_return_of_more_than_half_a_stretch_or_beside_a_short_one_is_a_recovery(series_of):
    long = [2.0] * 30 + DEAD * 10 + [2.0] * 6 + DEAD * 30
    assert stretches(series_of(long)) == [(31, 40, 10), (47, 76, 30)]
    short = [2.0] * 30 + DEAD * 10 + [2.0] + DEAD * 9
    assert stretches(series_of(short)) == [(31, 40, 10), (42, 50, 9)]
    short = [2.0] * 30 + DEAD * 9 + [2.0] + DEAD * 10
    assert stretches(series_of(short)) == [(31, 39, 9), (41, 50, 10)]
    assert find_spikes(series_of(short)).died_again == ()


def test_a_dead_norm_goes_on_over_a_single_finite_one_and_not_over_a_dead_loss(series_of):
    norms = [1.0] * 30 + DEAD * 10 + [1.0] + DEAD * 10
    assert stretches(series_of([2.0] * 51, norms=norms)) == [(31, 51, 20)]
    # given: in between both are NaN, which is a finding of the loss
    norms, losses = [1.0] * 30 + DEAD * 21, [2.0] * 40 + DEAD + [2.0] * 10
    assert stretches(series_of(losses, norms=norms)) == [(31, 40, 10), (41, 41, 1), (42, 51, 10)]


def test_a_healthy_run_has_exactly_four_norm_notices(curve):
    search = find_spikes(curve("llmc_gpt2_124M"))
    assert sorted((spike.step, spike.kind) for spike in search.spikes) == [
        (step, "grad_norm") for step in (4233, 7435, 9025, 9954)
    ]


def test_a_climbing_norm_warns_before_the_loss_jumps(curve):
    # given: norms 0.242, 0.947, 2.39, 15.9, 145, 960 under losses 2.20, 2.22, 2.60, 2.24, 2.35, 5.10
    search = find_spikes(curve("bloom176b_spike_31219"))
    loss = next(spike for spike in search.spikes if spike.signal == "loss")
    assert (loss.step, loss.severity) == (31219, "warning")
    assert loss.ratio == pytest.approx(2.27, abs=0.02)
    assert min(spike.first for spike in search.spikes if spike.kind == "grad_norm") == 31217


def test_a_last_printed_digit_is_no_spike_under_robust_however_little_lies_behind(series_of):
    # given: losses that a log prints as 0.0001, 0.0002, 0.0003
    for num_behind in (5, 20, 50):
        for last in (0.0002, 0.0003):
            assert steps(find_spikes(series_of([0.0001] * num_behind + [last]))) == []
    # then: what is far is found all the same, and the classic rule stays what it is
    assert steps(find_spikes(series_of([0.0001] * 5 + [0.01]))) == [6]
    assert steps(find_spikes(series_of([0.0001] * 5 + [0.0003]), rule="median")) == [6]
