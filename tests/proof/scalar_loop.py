"""A whole training loop in one file, as a user has it; copied into a folder of its own by tests."""

import sys

import torch
import torch.nn.functional as F

import trimtab
from trimtab.proof import Loop


def build(guard):
    sys.stdout.write("a word of the loop\n")
    model = torch.nn.Linear(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    judge = None if guard is None else trimtab.LossGuard(guard, model=model)
    dice = torch.Generator().manual_seed(0)
    windows = [
        [(torch.randn(2, 3, generator=dice), torch.randint(4, (2,), generator=dice)) for _ in range(3)]
        for _ in range(6)
    ]

    def train(windows):
        for window in windows:
            for x, target in window:
                loss = F.cross_entropy(model(x), target)
                if judge is not None:
                    loss = judge(loss)
                (loss / 3).backward()
            optimizer.step()
            optimizer.zero_grad()

    return Loop(model=model, optimizer=optimizer, train=train, windows=windows)


def unguarded(guard):
    return build(None)


def unbuildable(guard):
    raise FileNotFoundError("no rows.jsonl\n here")


def no_loop(guard):
    return 3


def dying(guard):
    raise SystemExit(4)


number = 3
