"""The screens miss nothing: screened findings equal those of a plain loop over the written rules."""

import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.analysis.screen import mean_candidates, norm_candidates, robust_candidates
from trimtab.analysis.spikes import find_spikes


def robust_by_the_book(values):
    """Places that exceed the robust threshold of the 100 values before them; nothing shared with the code."""
    flagged = []
    for place in range(100, len(values)):
        window = values[place - 100 : place]
        median = statistics.median(window)
        scale = max(1.4826 * statistics.median(abs(x - median) for x in window), 0.02 * abs(median), 5e-5)
        if values[place] - median > 10 * scale:
            flagged.append(place)
    return flagged


def norms_by_the_book(values):
    return [
        place
        for place in robust_by_the_book(values)
        if values[place] > 3 * statistics.median(values[place - 100 : place])
    ]


@st.composite
def curves(draw):
    """Losses with noise, drift, rounding, any sign, and spikes of sizes around the threshold."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    size = draw(st.integers(101, 330))
    level = draw(st.sampled_from([0.0, 1e-4, 0.5, 2.5, -3.0, 1e4]))
    noise = draw(st.sampled_from([0.0, 1e-5, 0.01, 0.3])) * max(abs(level), 1e-3)
    values = (
        level
        + noise * random.standard_normal(size)
        + level * draw(st.sampled_from([0, -0.5, 0.8])) * np.linspace(0, 1, size)
    )
    at = random.integers(0, size, draw(st.integers(0, 12)))
    values[at] += (10 * max(0.02 * abs(level), 5e-5, 1.4826 * 0.6745 * noise)) * random.uniform(0.5, 3, at.size)
    return np.round(values, draw(st.sampled_from([2, 4, 9]))).astype(np.float32).astype(np.float64)


@given(curves())
def test_no_robust_spike_is_screened_out(values):
    candidates = set(robust_candidates(values, k=10.0, window_size=100).tolist())
    assert set(robust_by_the_book(values.tolist())) <= candidates


@given(curves())
def test_no_norm_spike_is_screened_out(values):
    candidates = set(norm_candidates(np.abs(values), k=10.0, factor=3.0, window_size=100).tolist())
    assert set(norms_by_the_book(np.abs(values).tolist())) <= candidates


@given(curves(), st.sampled_from([1.05, 2.0]), st.sampled_from([1, 8, 32]))
def test_no_spike_of_the_mean_is_screened_out(values, multiplier, window_size):
    flagged = [
        place
        for place in range(window_size, values.size)
        if values[place] > statistics.fmean(values[place - window_size : place].tolist()) * multiplier
    ]
    candidates = mean_candidates(values, multiplier=multiplier, window_size=window_size)
    assert set(flagged) <= set(candidates.tolist())
    assert candidates.size == 0 or candidates[0] >= window_size


@given(curves())
def test_screened_findings_are_those_of_a_plain_loop(values):
    # given
    from trimtab.analysis.series import StepSeries
    from trimtab.log.steps import UNKNOWN_REASON

    size = values.size
    series = StepSeries(
        step=np.arange(size),
        attempt=np.ones(size, np.int32),
        loss=values,
        tokens=np.ones(size, np.int64),
        measured=np.ones(size, np.bool_),
        grad_norm=np.full(size, np.nan),
        has_grad_norm=np.zeros(size, np.bool_),
        reason=np.full(size, UNKNOWN_REASON, np.uint8),
        num_records=np.ones(size, np.int64),
        num_empty=np.zeros(size, np.int64),
        num_left_out=np.zeros(size, np.int64),
        top_loss=np.full(size, -np.inf),
        is_reported=np.zeros(size, np.bool_),
        differs=np.zeros(size, np.bool_),
    )
    # when
    spikes = find_spikes(series, rule="robust").spikes
    # then
    flagged = sorted(step for spike in spikes for step in range(spike.first, spike.last + 1) if step >= 100)
    assert flagged == robust_by_the_book(values.tolist())


@given(curves())
def test_screened_median_findings_are_those_of_a_plain_loop(values):
    from trimtab.analysis.screen import median_candidates

    expected = {
        place
        for place in range(20, values.size)
        if 0 < 2 * statistics.median(values[place - 20 : place].tolist()) < values[place]
    }
    assert expected <= set(median_candidates(values, multiplier=2.0, window_size=20).tolist())


def test_a_quiet_million_leaves_almost_nothing_to_judge():
    # given
    values = 2.0 + 0.05 * np.random.default_rng(0).standard_normal(1_000_000)
    values[[500, 70_000, 999_999]] = 9.0
    # when
    candidates = robust_candidates(values, k=10.0, window_size=100)
    # then
    assert candidates.tolist() == [500, 70_000, 999_999]


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, 119, 120, 121, 140, 141])
def test_a_series_of_any_length_is_screened_to_its_end(size):
    values = np.ones(size)
    values[-1:] = 9.0
    expected = [size - 1] if size > 100 else []
    assert robust_candidates(values, k=10.0, window_size=100).tolist() == expected
