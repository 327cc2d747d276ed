"""`rebase_lr` on schedules of schedules drawn at random: the one built afresh at the new rate, or a refusal by name."""

import copy
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.optim import lr_scheduler as kinds
from torch.optim.swa_utils import SWALR

from trimtab.errors import UsageError
from trimtab.torch.lr import rebase_lr

OLD, NEW = 5e-4, 3e-4
RATIOS = (1.0, 0.2)
STEPS_ON = 40

floors = st.sampled_from([0, 0, 1e-5, 1e-4])
lengths = st.integers(1, 40)
parts = st.floats(0.1, 0.99)

leaves = st.one_of(
    st.builds(lambda n, floor: lambda o, lr: kinds.CosineAnnealingLR(o, n, eta_min=floor), lengths, floors),
    st.builds(
        lambda n, floor: lambda o, lr: kinds.CosineAnnealingWarmRestarts(o, n, 2, eta_min=floor), lengths, floors
    ),
    st.builds(lambda n, part: lambda o, lr: kinds.StepLR(o, n, part), lengths, parts),
    st.builds(lambda n, part: lambda o, lr: kinds.LinearLR(o, part, 1.0, n), lengths, parts),
    st.builds(lambda n, part: lambda o, lr: kinds.ConstantLR(o, part, n), lengths, parts),
    st.builds(lambda n: lambda o, lr: kinds.PolynomialLR(o, n, 1.5), lengths),
    st.builds(lambda part: lambda o, lr: kinds.ExponentialLR(o, part), parts),
    st.builds(lambda part: lambda o, lr: kinds.LambdaLR(o, lambda t: 1 / (1 + part * t)), parts),
    st.builds(lambda part: lambda o, lr: kinds.MultiplicativeLR(o, lambda t: part), parts),
    st.builds(lambda part: lambda o, lr: kinds.OneCycleLR(o, [lr * r for r in RATIOS], 200, pct_start=part), parts),
    st.builds(
        lambda n, way: lambda o, lr: SWALR(o, 1e-4, n, way), st.integers(0, 20), st.sampled_from(["cos", "linear"])
    ),
)


def in_turn(members, starts):
    milestones = sorted(starts)[: len(members) - 1]
    return lambda o, lr: kinds.SequentialLR(o, [make(o, lr) for make in members], milestones)


def at_once(members):
    return lambda o, lr: kinds.ChainedScheduler([make(o, lr) for make in members])


schedules = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.builds(
            in_turn,
            st.lists(inner, min_size=1, max_size=3),
            st.sets(st.integers(1, 50), min_size=2, max_size=2),
        ),
        st.builds(at_once, st.lists(inner, min_size=1, max_size=2)),
    ),
    max_leaves=5,
)


def build(make, lr):
    optimizer = torch.optim.SGD([{"params": [torch.nn.Parameter(torch.ones(1))], "lr": lr * r} for r in RATIOS], lr=lr)
    return optimizer, make(optimizer, lr)


def advance(optimizer, scheduler, num_steps):
    for _ in range(num_steps):
        optimizer.step()
        scheduler.step()


def rates(optimizer):
    return [group["lr"] for group in optimizer.param_groups]


@settings(max_examples=60, deadline=None)
@given(make=schedules, at=st.integers(0, 60))
def test_a_schedule_of_schedules_goes_on_as_if_built_afresh_or_is_refused(make, at):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        # given
        try:
            saved, wanted = build(make, OLD), build(make, NEW)
            advance(*saved, at)
            advance(*wanted, at + STEPS_ON)
        except (NotImplementedError, ValueError, AttributeError, ZeroDivisionError):
            return  # torch does not run it
        wanted = build(make, NEW)
        advance(*wanted, at)
        found = build(make, NEW)
        for part, other in zip(found, saved, strict=True):
            part.load_state_dict(copy.deepcopy(other.state_dict()))
        before = rates(found[0])
        # when
        try:
            rebase_lr(*found, NEW)
        except UsageError:
            assert rates(found[0]) == before
            return
        # then
        for _ in range(STEPS_ON):
            assert rates(found[0]) == pytest.approx(rates(wanted[0]), rel=1e-9, abs=1e-12)
            advance(*found, 1)
            advance(*wanted, 1)
