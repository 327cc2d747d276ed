"""A compiled graph holds loss and decision together, and decides as the same operations one by one."""

import math

import pytest
import torch
from torch.nn import functional as F

from trimtab.guard import GuardConfig
from trimtab.torch.device_rule import DeviceRule, Ruling
from trimtab.values import VERDICT_REASONS

CONFIGS = {
    "mean": GuardConfig(multiplier=1.5, max_consecutive_skips=3),
    "robust": GuardConfig(rule="robust", window_size=20, min_history=5, max_consecutive_skips=3),
}
BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own modules on a newer Python
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", CONFIGS)
def test_loss_and_decision_are_one_graph_that_decides_as_it_does_uncompiled(name: str, backend: str) -> None:
    # given
    compiled_rule, rule = (DeviceRule(CONFIGS[name], device="cpu") for _ in range(2))

    def judged(logits: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, Ruling]:
        loss_sum = F.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").double()
        num_tokens = (labels != -100).sum().double()
        return loss_sum, num_tokens, compiled_rule.decide(loss_sum, num_tokens, torch.zeros_like(loss_sum))

    torch.compiler.reset()
    compiled = torch.compile(judged, fullgraph=True, backend=backend)
    generator = torch.Generator().manual_seed(0)
    seen = set()

    for step in range(300):
        # when: a level shift every 60, a spike every 11, and from time to time what is not finite or has no tokens
        size = (1.0, 30.0)[step // 60 % 2] * (8.0 if step % 11 == 10 else 1.0) * (math.nan if step % 29 == 28 else 1.0)
        logits = size * torch.randn(6, 5, generator=generator)
        labels = torch.randint(0, 5, (6,), generator=generator)
        labels[: 6 if step % 31 == 30 else step % 3] = -100
        with torch.compiler.set_stance("default" if step < 2 else "fail_on_recompile"):
            loss_sum, num_tokens, told = compiled(logits, labels)
        wanted = rule.decide(loss_sum, num_tokens, torch.zeros_like(loss_sum))

        # then
        for part, mine, theirs in zip(told._fields, told, wanted, strict=True):
            assert torch.equal(mine.nan_to_num(-7.0), theirs.nan_to_num(-7.0)), (step, part, mine, theirs)
        seen.add(VERDICT_REASONS[int(told.reason)])
    assert seen == {"no_tokens", "nonfinite", "warmup", "rebaselined", "spike", "normal"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compiled_decision_rounds_the_loss_to_float32(backend: str) -> None:
    rule = DeviceRule(CONFIGS["mean"], device="cpu")
    torch.compiler.reset()
    decide = torch.compile(rule.decide, fullgraph=True, backend=backend)

    loss_sum, num_tokens, nothing = torch.tensor([1.0, 3.0, 0.0], dtype=torch.float64).unbind()

    assert float(decide(loss_sum, num_tokens, nothing).loss) == float(torch.tensor(1 / 3, dtype=torch.float32))
