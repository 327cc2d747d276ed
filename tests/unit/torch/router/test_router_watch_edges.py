"""A `RouterWatch` at the edges: millions of tokens, masks of floats, a process that has no transformers."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from trimtab import UsageError
from trimtab.moe import RouterWatch


class Tapped(nn.Module):
    """What goes in are logits."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Identity()
        self.gate.top_k = 1

    def forward(self, logits: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        return self.gate(logits)


def watched() -> tuple[Tapped, RouterWatch]:
    model = Tapped().train()
    return model, RouterWatch(model, routers=lambda model: {"gate": model.gate}, top_k=1)


def test_counts_and_means_are_exact_beyond_what_a_float_of_32_bits_can_count() -> None:
    # given 17 times 2^20 tokens whose z is (ln 2)^2, and then one of 1,000 that differs
    model, watch = watched()
    many = torch.zeros(1, 2**20, 2)
    for _ in range(17):
        model(many)
    model(torch.tensor([[[-1000.0, 3000.0]]]))

    report = watch.report(1)

    [layer] = report.layers
    num_tokens = 17 * 2**20 + 1
    assert layer.num_tokens == report.expected_tokens == num_tokens
    assert layer.counts == (17 * 2**20, 1)
    # float32 would keep 9e6 beside 8.6e6 to a whole number at best
    assert layer.z * num_tokens == pytest.approx(17 * 2**20 * 0.4804530139182014 + 9e6, rel=1e-7)


@pytest.mark.parametrize(
    "mask", [torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bfloat16)], ids=["float32", "bfloat16"]
)
def test_a_mask_of_floats_may_be_added_to_scores_and_is_told_and_not_read(mask: torch.Tensor) -> None:
    model, watch = watched()

    model(torch.randn(1, 2, 4), attention_mask=mask)
    report = watch.report(1)

    assert report.layers[0].num_tokens == 2
    assert report.expected_tokens is None
    [note] = report.notes
    assert note.startswith(f"the attention mask is a tensor of 2 dimensions and {mask.dtype}, and only one of whole")


def test_neither_finding_routers_nor_watching_them_imports_transformers() -> None:
    code = """
import sys, torch
from trimtab import UsageError, moe

class MixtralTopKRouter(torch.nn.Module):
    top_k, num_experts = 1, 2
    def forward(self, x):
        return x, x.softmax(-1), x.topk(1, -1).indices

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = MixtralTopKRouter()
    def forward(self, input_ids):
        return self.gate(torch.ones(*input_ids.shape, 2))

model = Model()
assert len(moe.find_routers(model)) == 1
watch = moe.RouterWatch(model)
model(torch.zeros(1, 3, dtype=torch.int64))
assert watch.report(1).layers[0].num_tokens == 3
try:
    moe.RouterWatch(torch.nn.Linear(2, 2))
except UsageError:
    pass
loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("transformers", "accelerate", "trl"))
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_linear_gate_of_another_number_of_outputs_than_experts_is_no_router_that_is_known() -> None:
    # given a block that looks like transformers 4's, whose gate has a column more than there are experts
    class MixtralSparseMoeBlock(nn.Module):
        num_experts, top_k = 4, 2

        def __init__(self, columns: int) -> None:
            super().__init__()
            self.gate = nn.Linear(8, columns)

    assert len(RouterWatch(MixtralSparseMoeBlock(4)).report(1).notes) == 1
    with pytest.raises(UsageError, match="No router was found"):
        RouterWatch(MixtralSparseMoeBlock(5))
