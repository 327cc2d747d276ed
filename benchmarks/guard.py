"""What a guard costs on the CPU while it finds nothing: backward with its hooks and its rule over backward alone.

    python benchmarks/guard.py [--rounds N] [--width N] [--json FILE]

A transformer of 10 million parameters (99 tensors), a micro-batch of 4 x 128 tokens, one thread. A round is one
micro-batch in each of five ways, in random order, each on a model of its own that nothing else hooks:

    plain            loss.backward()
    plain again      the same once more: what the machine's noise alone makes of the ratio
    Run, host        run.micro_batch(...), then backward; the host decides, as it does on a CPU
    Run, device      the same, decided by tensor code (`GuardConfig(decide="device")`), as on an accelerator
    guard(loss)      `LossGuard`, always tensor code

Forward is not timed. CPU seconds are those of the process, wall seconds stand beside them in the JSON. Of each round
the ratio to plain is taken; reported are the median and its 95 % interval (bootstrap over rounds).

Must: the median of each way at most 1.05.
"""

import argparse
import json
import logging
import os
import platform
import random
import statistics
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from trimtab import GuardConfig, LossGuard, Run

ROWS, TOKENS, VOCABULARY, LAYERS = 4, 128, 1_000, 8
WAYS = ("plain", "plain again", "Run, host", "Run, device", "guard(loss)")


class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        torch.manual_seed(0)
        self.entry = nn.Embedding(VOCABULARY, width)
        settings = dict(nhead=4, dim_feedforward=4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(width, **settings) for _ in range(LAYERS))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids):
        h = self.entry(ids)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Way:
    """One way of training, with a model of its own."""

    def __init__(self, name, *, width, rounds):
        self.model = Net(width)
        self.run = self.guard = None
        if name.startswith("Run"):
            guard = GuardConfig(rule="robust", decide=name.rpartition(" ")[2])
            self.run = Run(None, model=self.model, record=False, guard=guard, accumulation=10 * rounds)
        elif name.startswith("guard"):
            self.guard = LossGuard(rule="robust", model=self.model)

    def seconds(self, ids):
        """CPU and wall seconds from the losses to the gradients."""
        self.model.zero_grad()
        losses = F.cross_entropy(self.model(ids).flatten(0, 1), ids.flatten(), reduction="none").view_as(ids)
        wall, cpu = time.perf_counter(), time.process_time()
        if self.run is not None:
            loss = self.run.micro_batch(losses, rows=range(ROWS))
        else:
            loss = losses.mean()
            loss = loss if self.guard is None else self.guard(loss)
        loss.backward()
        return time.process_time() - cpu, time.perf_counter() - wall


def interval(ratios, dice):
    """Median of some ratios, and its 95 % interval."""
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(1_000))
    return statistics.median(ratios), medians[25], medians[974]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="micro-batches in each way (60)")
    parser.add_argument("--width", type=int, default=320, help="of the transformer; 320 makes 10 million parameters")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()

    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    dice = random.Random(0)
    ways = {name: Way(name, width=args.width, rounds=args.rounds) for name in WAYS}
    num_parameters = sum(parameter.numel() for parameter in ways["plain"].model.parameters())
    seconds = {name: [] for name in WAYS}
    for turn in range(-3, args.rounds):
        ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=torch.Generator().manual_seed(turn % 7))
        for name in dice.sample(WAYS, len(WAYS)):
            found = ways[name].seconds(ids)
            if turn >= 0:  # before, whatever happens only once
                seconds[name].append(found)

    facts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, trimtab {trimtab.__version__}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "parameters": num_parameters,
        "rounds": args.rounds,
    }
    print(f"{facts['machine']}; {facts['versions']}; {facts['date']}; {num_parameters:,} parameters\n")
    print("| way | CPU ms, median | ratio of backward, median (95 %) |\n| --- | --- | --- |")
    figures = {}
    for name in WAYS:
        cpu, wall = zip(*seconds[name], strict=True)
        plain_cpu, plain_wall = zip(*seconds["plain"], strict=True)
        median, low, high = interval([one / other for one, other in zip(cpu, plain_cpu, strict=True)], dice)
        print(f"| {name} | {statistics.median(cpu) * 1e3:.1f} | {median:.3f} ({low:.3f} to {high:.3f}) |")
        figures[name] = {
            "CPU ms, median": statistics.median(cpu) * 1e3,
            "CPU ratio, median and 95 % interval": [median, low, high],
            "wall ratio, median": statistics.median(one / other for one, other in zip(wall, plain_wall, strict=True)),
        }
    if args.json:
        Path(args.json).write_text(json.dumps({**facts, "ways": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
