"""The screen for long runs: what it calls quiet, no rule finds anything in."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.analysis.observed_steps import is_quiet
from trimtab.log.columns import StepColumns
from trimtab.rules.health import HealthRules, ObservedStep
from trimtab.values import STEP_REASONS

NO_PACES = np.empty(0)


def columns(size, **given_columns):
    """Ordinary steps with these columns instead."""
    usual = {
        "attempt": np.ones(size, np.int32), "rank": np.zeros(size, np.int32), "step": np.arange(1, size + 1),
        "loss": np.full(size, 2.0), "grad_norm": np.ones(size), "has_grad_norm": np.ones(size, np.bool_),
        "lr": np.full(size, 1e-4), "has_lr": np.ones(size, np.bool_), "reason": np.zeros(size, np.uint8),
        "clipped": np.zeros(size, np.int8), "loss_scale": np.full(size, np.nan), "wall_s": np.full(size, 0.1),
        "num_tokens": np.full(size, 1000), "num_skipped_micros": np.zeros(size, np.int64),
        "num_skipped_tokens": np.zeros(size, np.int64),
    }  # fmt: skip
    return StepColumns(**(usual | {name: np.asarray(column) for name, column in given_columns.items()}))


def found(records):
    """What the rules say, step by step, but for what `rewind` tells of norms and zero losses itself."""
    rules, kinds = HealthRules(), set()
    for place in range(records.num_records):
        scale = float(records.loss_scale[place])
        kinds |= {
            finding.kind
            for finding in rules.step(
                ObservedStep(
                    step=place + 1,
                    loss=float(records.loss[place]),
                    grad_norm=float(records.grad_norm[place]),
                    clipped=bool(records.clipped[place]),
                    loss_scale=None if math.isnan(scale) else scale,
                    wall_s=float(records.wall_s[place]),
                    num_tokens=int(records.num_tokens[place]),
                    reason=STEP_REASONS[records.reason[place]],
                )
            )
        }
    return kinds - {"grad_norm_jump", "zero_loss"}


TROUBLE = {
    "throughput": {"wall_s": [0.1] * 60 + [0.6] * 40},
    "clip_fraction": {"clipped": [0] * 1100 + [1] * 300},
    "loss_scale_collapse": {"loss_scale": [64.0] * 150 + [32.0, 16.0, 8.0, 4.0, 2.0, 1.0] + [1.0] * 10},
    "nonfinite": {"grad_norm": [1.0] * 30 + [math.nan]},
    "grad_norm_stale": {"reason": [0] * 30 + [STEP_REASONS.index("scaler_overflow")] * 5},
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_steps_in_which_a_rule_finds_something_are_not_quiet(kind):
    [(name, column)] = TROUBLE[kind].items()
    records = columns(len(column), **{name: column})
    assert kind in found(records)
    assert not is_quiet([records], tokens_per_s=NO_PACES)


def test_ordinary_steps_and_pauses_are_quiet():
    wall_s = np.full(500, 0.1)
    wall_s[[0, 100, 200, 300]] = 60.0
    assert is_quiet([columns(500, wall_s=wall_s, loss_scale=np.full(500, 128.0))], tokens_per_s=NO_PACES)


def test_a_pace_that_falls_beside_the_steps_is_not_quiet():
    paces = np.array([1322.0] * 60 + [200.0] * 20)
    assert not is_quiet([columns(80, num_tokens=np.full(80, -1))], tokens_per_s=paces)


@given(
    wall_s=st.lists(st.sampled_from([0.1, 0.12, 0.25, 0.5, 5.0]), min_size=60, max_size=120),
    data=st.data(),
)
def test_of_quiet_steps_no_rule_says_anything(wall_s, data):
    scales = data.draw(st.lists(st.sampled_from([64.0, 32.0, math.nan]), min_size=len(wall_s), max_size=len(wall_s)))
    records = columns(len(wall_s), wall_s=wall_s, loss_scale=scales)
    if is_quiet([records], tokens_per_s=NO_PACES):
        assert found(records) == set()
