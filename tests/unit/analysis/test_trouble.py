"""Where a run's trouble began: made-up runs worked out by hand, and published ones by eye."""

import math
from pathlib import Path

import numpy as np
import pytest

from trimtab.analysis.findings import judge_log
from trimtab.analysis.spikes import find_spikes
from trimtab.analysis.trouble import find_in_log, find_trouble
from trimtab.log.reader import open_log

CURVES = Path(__file__).parents[2] / "data" / "curves"


@pytest.fixture
def run(series_of):
    """A run of `num_steps` with a loss near 2 and a norm near 1; `loss` and `norm` map steps to other values."""

    def make(num_steps=2_000, *, loss=None, norm=None, overflows=()):
        rng = np.random.default_rng(0)
        losses = (2 + 0.02 * rng.standard_normal(num_steps)).tolist()
        norms = (1 + 0.05 * rng.standard_normal(num_steps)).tolist()
        reasons = ["stepped"] * num_steps
        for values, others in ((losses, loss), (norms, norm), (reasons, dict.fromkeys(overflows, "scaler_overflow"))):
            for step, value in (others or {}).items():
                values[step - 1] = value
        return series_of(losses, norms=norms, reasons=reasons)

    return make


def trouble_of(series):
    return find_trouble(series, find_spikes(series).spikes)


def steps(first, last, value):
    return dict.fromkeys(range(first, last + 1), value)


def test_a_run_without_findings_has_no_trouble(run):
    assert trouble_of(run()) is None


def test_a_spike_that_is_over_is_no_trouble(run):
    assert trouble_of(run(loss=steps(1_000, 1_003, 5.0), norm={1_000: 30.0})) is None


def test_a_loss_that_stays_up_is_trouble_from_its_first_step(run):
    trouble = trouble_of(run(loss=steps(1_500, 2_000, 5.0)))
    assert trouble.step == 1_500
    assert trouble.evidence == (
        "the loss left its line at step 1500 (5, 2 before) and was not back at the end of the log, step 2000",
    )


def test_a_loss_that_is_in_line_for_a_few_steps_now_and_then_has_not_come_back(run):
    # four steps of ten are in line: never half of twenty
    up = {step: 5.0 for step in range(1_500, 2_001) if step % 10 < 6}
    assert trouble_of(run(loss=up)).step == 1_500


def test_a_norm_that_jumped_just_before_the_loss_is_where_it_began(run):
    trouble = trouble_of(run(loss=steps(1_500, 2_000, 5.0), norm={1_499: 40.0}))
    assert trouble.step == 1_499
    assert trouble.evidence[1].startswith("the gradient norm left its line at step 1499 (40,")


def test_a_norm_that_rose_long_before_the_loss_and_stayed_up_is_where_it_began(run):
    # the case of a spike at 7000 and a gradient out of line from 4700 on
    trouble = trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), norm=steps(4_700, 7_100, 6.0)))
    assert trouble.step == 4_700


def test_jumps_of_the_norm_every_few_hundred_steps_are_where_it_began(run):
    # the same case, where the gradient comes back after each
    jumps = dict.fromkeys(range(4_700, 7_000, 300), 20.0)
    trouble = trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), norm=jumps))
    assert trouble.step == 4_700
    assert "again every few hundred steps" in trouble.evidence[1]


def test_a_scale_that_was_lowered_again_and_again_is_where_it_began(run):
    # the same case in half precision: the loss scale shows it
    trouble = trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), overflows=range(4_700, 7_000, 300)))
    assert trouble.step == 4_700
    assert trouble.evidence[1].startswith("the gradient overflowed at step 4700")


def test_overflows_as_a_scaler_always_has_them_are_no_sign(run):
    # every 500 steps from the start: that is how it finds its scale
    trouble = trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), overflows=range(1, 7_000, 500)))
    assert trouble.step == 7_000
    assert trouble_of(run(7_100, overflows=range(1, 7_000, 500))) is None


@pytest.mark.parametrize(("before", "step"), [((500,), 6_100), ((500, 1_600, 2_700, 3_800, 4_900), 7_000)])
def test_signs_that_come_little_more_often_than_ever_are_no_series(run, before, step):
    # three in 900 steps, after one in 6,100 or after five
    overflows = [*before, 6_100, 6_400, 6_700]
    assert trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), overflows=overflows)).step == step


def test_a_single_jump_of_the_norm_that_came_back_sends_nobody_back_thousands_of_steps(run):
    trouble = trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), norm={3_000: 40.0, 5_500: 40.0}))
    assert trouble.step == 7_000


def test_two_jumps_of_the_norm_that_came_back_are_no_series(run):
    assert trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), norm={6_200: 40.0, 6_600: 40.0})).step == 7_000


def test_a_norm_that_came_back_just_before_the_loss_left_its_line_leads_to_it(run):
    # within the window that all rules look back on
    assert trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), norm={6_940: 40.0})).step == 6_940


@pytest.mark.parametrize(
    "early",
    [{16: 2.2}, {16: 2.2, 18: 3.0}, {60: 3.5}, {90: 3.5}],
    ids=["16", "a pair", "60", "90"],
)
def test_a_lone_notice_of_the_start_that_was_over_at_once_leads_to_nothing_long_after_it(run, early):
    # a norm that leaves its line at step 112 for good, and one of the warm-up that nothing came of
    trouble = trouble_of(run(200, norm={**early, **steps(112, 200, 90.0)}))
    assert trouble.step == 112


@pytest.mark.parametrize(
    ("early", "step"),
    [
        ({30: 40.0, 55: 40.0, 80: 40.0}, 30),
        ({80: 40.0}, 80),
        (steps(70, 80, 40.0), 70),
        ({60: 40.0, 79: 40.0}, 60),
        ({16: math.inf}, 16),
        ({40: 20.0}, 40),
        ({40: 1e4, 41: 1e4, 42: 1e4}, 40),
    ],
    ids=["a series", "shortly before", "longer than a batch", "step by step", "not finite", "no mild one", "far out"],
)
def test_signs_of_the_start_that_are_more_than_a_lone_one_lead_to_what_follows(run, early, step):
    assert trouble_of(run(200, norm={**early, **steps(95, 200, 90.0)})).step == step


def test_the_start_of_a_log_that_goes_on_with_a_run_is_no_start(run):
    series = run(200, norm={40: 3.5, **steps(112, 200, 90.0)})
    assert trouble_of(series._replace(step=series.step + 10_000)).step == 10_040


def test_the_overflows_by_which_a_scaler_finds_its_scale_lead_to_nothing(run):
    assert trouble_of(run(200, norm=steps(90, 200, 90.0), overflows=range(1, 12))).step == 90


def test_a_norm_that_was_up_until_the_loss_left_its_line_leads_to_it_though_it_came_back_later(run):
    trouble = trouble_of(run(7_100, loss=steps(7_000, 7_100, 5.0), norm=steps(4_700, 7_000, 6.0)))
    assert trouble.step == 4_700
    assert "had not come back when step 7000 came" in trouble.evidence[1]


def test_a_norm_that_left_its_line_for_good_is_trouble_before_the_loss_shows_it(run):
    assert trouble_of(run(6_000, norm=steps(4_700, 6_000, 6.0))).step == 4_700


def test_an_older_spike_that_was_over_is_not_what_the_run_ended_in(run):
    # its level of then lies below the end's, which is another trouble's
    assert trouble_of(run(3_000, loss={**steps(1_000, 1_004, 4.0), **steps(2_500, 3_000, 5.0)})).step == 2_500


def test_a_run_that_died_is_in_trouble_where_it_died(run):
    trouble = trouble_of(run(loss=steps(1_700, 2_000, math.nan)))
    assert trouble.step == 1_700
    assert "nan" in trouble.evidence[0]


def test_losses_that_were_not_finite_once_are_over(run):
    assert trouble_of(run(loss=steps(1_000, 1_030, math.nan))) is None


def test_a_run_that_was_never_finite_is_in_trouble_from_its_first_step(run):
    assert trouble_of(run(50, loss=steps(1, 50, math.nan))).step == 1


@pytest.mark.parametrize(("num_behind", "is_trouble"), [(0, True), (2, True), (3, False), (10, False)])
def test_the_last_steps_of_a_log_must_show_that_it_is_over(run, num_behind, is_trouble):
    assert (trouble_of(run(1_000 + num_behind, loss={1_000: 5.0})) is not None) == is_trouble


@pytest.mark.parametrize(
    ("name", "step"),
    [
        # by eye: spikes of single batches, each over at once; the models came out healthy
        ("nanogpt_1B_a", None),
        ("nanogpt_fp4_932b", None),
        ("nanogpt_shortcuts_70a0", None),
        ("nanogpt_valueembed_d884", None),
        ("hf_sft_24k_noisy", None),
        # four norms that stand out, each over at once
        ("llmc_gpt2_124M", None),
        ("alpaca_7b", None),
        ("deepseekv3_proxy_moe", None),
        ("qlora_guanaco", None),
        ("pgolf_3runs_one_log", None),
        # nothing but nan to the end; the excursion at 4050 was over
        ("mixtral8x7b_a100", 13_555),
        ("gpt3_15b", 50_865),
        # excerpts: the norm leaves its line first, and all that follows is out of line, or too short to say
        ("tr8_104B_exp12", 8_740),
        ("tr8_104B_spike_11448", 11_447),
        ("bloom176b_spike_31219", 31_217),
    ],
)
def test_published_curves_are_judged_as_by_eye(name, step):
    found = find_in_log(CURVES / f"{name}.csv")
    assert (found.trouble.step if found.trouble is not None else None) == step
    assert found.unhealthy == ()


def test_the_search_does_not_depend_on_the_order_of_the_findings():
    (run,) = judge_log(open_log(CURVES / "tr8_104B_exp12.csv"), rule="robust")
    spikes = run.search.spikes
    assert find_trouble(run.reading.series, spikes) == find_trouble(run.reading.series, spikes[::-1])
