"""A guard that finds no fault changes nothing: bit for bit, in every dtype and however a window is put right."""

import itertools
import math

import pytest
import torch
from torch import nn

from trimtab import GuardConfig, Run

DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def guards(**settings):
    return [None, *(GuardConfig(rule="robust", decide=decide, **settings) for decide in ("host", "device"))]


def dense_weights(*, dtype, normalize, accumulation, guard):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 1)).to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = Run(
        None, model=model, optimizer=optimizer, accumulation=accumulation, max_grad_norm=math.inf, normalize=normalize,
        guard=guard, record=False,
    )  # fmt: skip
    with run:
        for _, micro in itertools.product(range(3), range(3)):
            losses = model(torch.randn(5, 16).to(dtype)).squeeze(1) ** 2
            run.micro_batch(losses, rows=range(5), per="sample", tokens=[1, 2, 3, micro, 0]).backward()
            if micro == 2:
                run.step()
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("accumulation", [3, 7], ids=["full windows", "early steps"])
@pytest.mark.parametrize("skipped_tokens", ["counted", "removed"])
@pytest.mark.parametrize("normalize", ["micro", "window"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_with_no_fault_the_weights_are_those_without_a_guard(dtype, normalize, skipped_tokens, accumulation):
    without, *guarded = (
        dense_weights(dtype=dtype, normalize=normalize, accumulation=accumulation, guard=guard)
        for guard in guards(skipped_tokens=skipped_tokens)
    )

    assert [torch.equal(without, weights) for weights in guarded] == [True, True]


@pytest.mark.parametrize("decide", ["host", "device"])
def test_rows_of_a_sparse_table_that_come_twice_are_added_up_as_torch_adds_them(decide):
    def batches():
        generator = torch.Generator().manual_seed(0)
        for _ in range(6):
            yield torch.tensor([1, 1, 1, 2, 3, 1, 2]), torch.randn(7, 4, generator=generator)

    def parts():
        torch.manual_seed(0)
        table = nn.Embedding(10, 4, sparse=True)
        return table, torch.optim.SGD(table.parameters(), lr=0.1)

    # given torch alone
    plain, optimizer = parts()
    for number, (index, target) in enumerate(batches()):
        ((plain(index) - target).pow(2).mean(1).sum() / 7 / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()

    # when
    table, optimizer = parts()
    guard = GuardConfig(rule="robust", decide=decide)
    with Run(None, model=table, optimizer=optimizer, accumulation=2, guard=guard, record=False) as run:
        for index, target in batches():
            run.micro_batch((table(index) - target).pow(2).mean(1), rows=range(7), per="sample").backward()
            if run.window_complete:
                run.step()

    # then
    assert torch.equal(table.weight, plain.weight)
