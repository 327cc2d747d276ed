"""What follows for a tensor from a decision, of the host and of a device alike."""

import math

import pytest
import torch

from trimtab.torch.decision import Decision


def says(verdict: bool, decide: str) -> bool | torch.Tensor:
    return verdict if decide == "host" else torch.tensor(verdict)


@pytest.mark.parametrize("decide", ["host", "device"])
def test_a_rank_without_tokens_gives_nothing_to_a_micro_batch_that_is_kept(decide):
    decision = Decision(says(True, decide), says(False, decide))

    assert decision.kept(torch.tensor(math.nan)).item() == 0.0
    assert decision.by_verdict(torch.tensor(7)).item() == 7


@pytest.mark.parametrize("decide", ["host", "device"])
def test_what_does_not_count_is_a_zero_of_the_same_type_on_the_same_graph(decide):
    for dtype in (torch.float16, torch.bfloat16, torch.float64):
        weight = torch.tensor(3.0, dtype=dtype, requires_grad=True)

        kept = Decision(says(False, decide), says(False, decide)).kept(weight * math.inf)

        assert (kept.item(), kept.dtype, kept.requires_grad) == (0.0, dtype, True)


def test_what_the_host_keeps_is_the_tensor_itself():
    values = torch.ones(2)

    assert Decision(keep=True, counts=True).kept(values) is values
