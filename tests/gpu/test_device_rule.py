"""On a real device: no decision waits for it, and it decides as on the CPU, one by one and as one captured graph."""

import math

import pytest
import torch

from trimtab.guard import GuardConfig
from trimtab.torch.device_rule import DeviceRule, Ruling

pytestmark = pytest.mark.gpu

CONFIGS = {
    "mean": GuardConfig(multiplier=2.0),
    "robust": GuardConfig(rule="robust", window_size=30, min_history=10),
}


def figures() -> torch.Tensor:
    """(S, 3) loss sums, tokens and flags, with spikes, a level shift, and every fault."""
    generator = torch.Generator().manual_seed(0)
    losses = 2.0 + 0.1 * torch.randn(400, generator=generator, dtype=torch.float64)
    losses[200:] *= 5
    losses[::37] *= 9
    losses[50::61] = math.nan
    losses[51::67] = math.inf
    losses[52::71] = 1e39
    num_tokens = torch.randint(1, 4096, (400,), generator=generator).double()
    num_tokens[53::73] = 0
    flags = torch.zeros(400, dtype=torch.float64)
    flags[54::79] = 1
    return torch.stack([losses.round(decimals=1) * num_tokens, num_tokens, flags], 1)


def assert_equal(told: list[Ruling], wanted: list[Ruling]) -> None:
    for mine, theirs in zip(told, wanted, strict=True):
        for x, y in zip(mine, theirs, strict=True):
            assert torch.equal(x.cpu().nan_to_num(-7.0), y.nan_to_num(-7.0))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_decision_on_the_device_waits_for_nothing_and_is_that_of_the_cpu(name: str) -> None:
    # given
    micros = figures()
    wanted_rule, rule = (DeviceRule(CONFIGS[name], device=device) for device in ("cpu", "cuda"))
    wanted = [wanted_rule.decide(*micro) for micro in micros]
    on_device = micros.cuda()
    torch.cuda.synchronize()

    # when
    torch.cuda.set_sync_debug_mode("error")
    try:
        told = [rule.decide(*micro.unbind()) for micro in on_device]
    finally:
        torch.cuda.set_sync_debug_mode("default")

    # then
    assert_equal(told, wanted)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_captured_graph_decides_as_the_cpu_does(name: str) -> None:
    # given
    micros = figures()
    wanted_rule, rule = (DeviceRule(CONFIGS[name], device=device) for device in ("cpu", "cuda"))
    wanted = [wanted_rule.decide(*micro) for micro in micros]
    place = torch.ones(3, dtype=torch.float64, device="cuda")
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        rule.decide(*place.unbind())  # kernels are loaded before a capture
    torch.cuda.current_stream().wait_stream(side)
    rule.reset()

    # when
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        ruling = rule.decide(*place.unbind())
    told = []
    for micro in micros:
        place.copy_(micro)
        graph.replay()
        told.append(Ruling(*[part.clone() for part in ruling]))

    # then
    assert_equal(told, wanted)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", CONFIGS)
def test_a_compiled_decision_on_the_device_is_that_of_the_cpu(name: str) -> None:
    # given
    micros = figures()
    wanted_rule, rule = (DeviceRule(CONFIGS[name], device=device) for device in ("cpu", "cuda"))
    wanted = [wanted_rule.decide(*micro) for micro in micros]
    decide = torch.compile(rule.decide, fullgraph=True)

    # when
    told = [decide(*micro.unbind()) for micro in micros.cuda()]

    # then: the threshold is told and decides nothing; a fused multiply-add may round it once less
    assert_equal(
        [ruling._replace(threshold=ruling.baseline) for ruling in told],
        [ruling._replace(threshold=ruling.baseline) for ruling in wanted],
    )
