"""On a real device: no figure and no term of a router waits for it, and each is what the CPU says."""

import pytest
import torch

from trimtab import moe

pytestmark = pytest.mark.gpu


def figures(layers: list[torch.Tensor], mask: torch.Tensor) -> list[torch.Tensor]:
    """Every function of `trimtab.moe` that takes logits, counts or weights, and the gradient of the terms."""
    counts = moe.expert_counts(layers, top_k=2, mask=mask)
    window = moe.WindowLoad()
    window.count_ahead(layers, top_k=2, mask=mask)
    terms = [
        moe.router_z_loss(layers, mask=mask),
        moe.load_balancing_loss(layers, top_k=2, mask=mask),
        moe.load_balancing_loss(layers, top_k=2, convention="hf", mask=mask),
        moe.load_balancing_loss(layers, top_k=2, mask=mask, global_batch=True, window=window),
        moe.population_cosine([layer[:8] for layer in layers], num_populations=2),
    ]
    gradients = torch.autograd.grad([term.sum() for term in terms], layers)
    return [
        counts,
        moe.max_vio(counts),
        moe.load_entropy(counts),
        moe.token_entropy(layers, mask=mask),
        moe.population_shares(counts, num_populations=2),
        *terms,
        *gradients,
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_no_figure_waits_and_each_is_that_of_the_cpu(dtype: torch.dtype) -> None:
    # given: logits without ties in a row, in bfloat16 too, so that every topk chooses alike
    generator = torch.Generator().manual_seed(0)
    order = torch.stack([torch.randperm(64, generator=generator) for _ in range(2 * 96)])
    layers = [part.to(dtype).div(16).requires_grad_() for part in order.float().chunk(2)]
    mask = torch.arange(96) % 5 != 0
    wanted = figures(layers, mask)
    on_device, mask_there = [layer.detach().cuda().requires_grad_() for layer in layers], mask.cuda()
    figures(on_device, mask_there)  # what torch sets up once may wait
    torch.cuda.synchronize()

    # when
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = figures(on_device, mask_there)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    # then
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs)
