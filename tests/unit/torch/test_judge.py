"""Where a micro-batch is decided about. What is decided is compared, host with device, in `test_run_on_device`."""

import pytest
import torch

from trimtab import GuardConfig
from trimtab.run import RunCore
from trimtab.torch.judge import Judge
from trimtab.torch.late import LateFigures
from trimtab.torch.losses import RowLosses
from trimtab.torch.ranks import Ranks
from trimtab.torch.transfer import HostNumber
from trimtab.values import RunHeader


@pytest.fixture
def judge_that():
    def make(decide, **settings):
        guard = GuardConfig(multiplier=2.0, decide=decide, **settings)
        core = RunCore(RunHeader(run_id=None, backend="torch"), guard=guard, record=False)
        return Judge(core, ranks=Ranks.of(), late=LateFigures()), core

    return make


def losses(loss_sum, num_tokens):
    rows, sums, tokens = torch.tensor([0]), torch.tensor([loss_sum]), torch.tensor([num_tokens])
    return RowLosses(sums[0], tokens[0], rows, sums, tokens, packed=False, num_entries=num_tokens)


@pytest.mark.parametrize(
    ("device", "decide", "expected"),
    [
        ("cpu", "auto", False),
        ("cpu", "device", True),
        ("mps", "auto", False),
        ("mps", "device", False),  # it has no float64
        ("xpu", "auto", False),  # what it has decided the host could only hear of by waiting
        ("meta", "device", True),
        ("cuda", "host", False),
    ],
)
def test_a_device_decides_where_nobody_waits_for_it_or_where_it_is_asked_to(judge_that, device, decide, expected):
    judge, _ = judge_that(decide)
    assert not judge.on_device

    judge._settle(torch.device(device))

    assert judge.on_device is expected


@pytest.mark.parametrize(("decide", "expected"), [("auto", False), ("device", True)])
def test_where_a_lock_up_raises_the_host_decides_unless_it_is_asked_not_to(judge_that, monkeypatch, decide, expected):
    """All ranks raise in one and the same call then."""
    # cpu with a stream of its own, as CUDA has one: there is no CUDA to make the rule's tensors on
    monkeypatch.setattr("trimtab.torch.judge.has_side_stream", lambda device: True)
    unasked, _ = judge_that("auto")
    judge, _ = judge_that(decide, on_lockup="raise")

    unasked._settle(torch.device("cpu"))
    judge._settle(torch.device("cpu"))

    assert unasked.on_device
    assert judge.on_device is expected


@pytest.mark.parametrize("decide", ["host", "device"])
def test_a_micro_batch_is_counted_in_its_window_once_whoever_decides(judge_that, decide):
    judge, core = judge_that(decide)

    found = [
        judge.judge(losses(loss_sum, 3), extra=None, beyond=None, leading_row=lambda: None)
        for loss_sum in (3.0, float("nan"))
    ]

    window = core.window
    assert (int(window.num_tokens), int(window.num_skipped_micros), int(window.num_skipped_tokens)) == (6, 1, 3)
    assert [bool(judgement.decision.counts) for judgement in found] == [True, False]
    assert [(int(judgement.reason), bool(judgement.keep)) for judgement in found] == [(3, True), (2, False)]
    assert isinstance(found[0].keep, HostNumber) is (decide == "device")
