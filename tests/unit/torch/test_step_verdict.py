"""What a window is to become: one choice for a host's numbers and for a device's tensors."""

import math

import pytest
import torch

from trimtab.torch.gradients import GradientNorms
from trimtab.torch.step_verdict import StepVerdict, judged_window
from trimtab.values import STEP_REASONS

KINDS = {"host": bool, "device": torch.tensor}
BAD = GradientNorms(torch.tensor(math.inf), torch.tensor([1.0, math.inf]))
GOOD = GradientNorms(torch.tensor(1.0), torch.tensor([1.0]))


def reason(verdict):
    return STEP_REASONS[int(verdict.code)]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("may_step", "has_skips", "norms", "expected"),
    [
        (True, False, GOOD, "stepped"),
        (True, True, GOOD, "stepped"),
        (True, True, None, "stepped"),
        (True, False, BAD, "nonfinite_norm"),
        (False, True, GOOD, "all_skipped"),
        (False, True, BAD, "all_skipped"),
        (False, False, BAD, "no_tokens"),
        (False, False, None, "no_tokens"),
    ],
)
def test_a_window_without_anything_kept_comes_before_its_norm(kind, may_step, has_skips, norms, expected):
    verdict = judged_window(may_step=kind(may_step), has_skips=kind(has_skips), norms=norms)
    assert reason(verdict) == expected
    assert type(verdict.dropped) is type(kind(may_step))
    assert bool(verdict.dropped) == (expected != "stepped")


@pytest.mark.parametrize("kind", [int, torch.tensor], ids=KINDS)
@pytest.mark.parametrize("overflowed", [True, False])
@pytest.mark.parametrize("before", ["stepped", "all_skipped", "no_tokens", "nonfinite_norm"])
def test_what_a_scaler_lowered_its_scale_for_is_its_own_affair_where_anything_was_kept(kind, overflowed, before):
    found = StepVerdict(kind(STEP_REASONS.index(before)), BAD).after_scaler(overflowed=torch.tensor(overflowed))

    was_to_step = before in ("stepped", "nonfinite_norm")
    assert reason(found) == ("scaler_overflow" if overflowed and was_to_step else before)


@pytest.mark.parametrize("kind", [int, torch.tensor], ids=KINDS)
@pytest.mark.parametrize("name", STEP_REASONS)
def test_a_norm_is_why_a_step_is_dropped_in_one_case_alone(kind, name):
    verdict = StepVerdict(kind(STEP_REASONS.index(name)))
    assert type(verdict.is_for_norm) is (bool if kind is int else torch.Tensor)
    assert bool(verdict.is_for_norm) == (name == "nonfinite_norm")


def test_norms_are_blamed_where_they_are_why_or_may_be():
    no_tokens, stepped, nonfinite = (STEP_REASONS.index(name) for name in ("no_tokens", "stepped", "nonfinite_norm"))
    assert StepVerdict(no_tokens, BAD).blamed is None
    assert StepVerdict(stepped, GOOD).blamed is None
    assert StepVerdict(nonfinite, BAD).blamed is BAD
    assert StepVerdict(torch.tensor(stepped), GOOD).blamed is GOOD
