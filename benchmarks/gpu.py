"""What guard and recorder together cost on a GPU: whole steps with `trimtab.Run` over the same steps without.

    python benchmarks/gpu.py [--pairs N] [--steps N] [--modes eager compiled] [--tiny] [--json FILE]

A decoder of 163 million parameters, 16 x 1024 tokens a micro-batch, bf16 autocast, fused AdamW, clipping, one
micro-batch a step; eager, and the model under `torch.compile`. Bare loop and guarded loop each have a model of their
own. A pair is a block of steps of the one and a block of the other, in random order, with the device idle at both ends
of a block; each pair gives a ratio of wall seconds. Reported: the median of the ratios and its 95 % interval (bootstrap
over pairs).

Then steps of the guarded loop, and of one with `loss = guard(loss)`, run under
`torch.cuda.set_sync_debug_mode("error")`, where any wait of the host raises: the JSON says who waited, if somebody did.

Under five minutes on one H200, by estimate. Must: median at most 1.01, upper end of the interval below 1.02, no wait.
Without a CUDA device it says so and measures nothing. `--tiny` runs all of it on a CPU at toy size, to test the script.
"""

import argparse
import contextlib
import json
import logging
import os
import platform
import random
import statistics
import tempfile
import time
import warnings
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

import trimtab
from trimtab import GuardConfig, LossGuard, Run


class Size(NamedTuple):
    layers: int
    width: int
    heads: int
    vocabulary: int
    rows: int
    tokens: int


FULL, TINY = Size(12, 768, 12, 50_257, 16, 1024), Size(1, 32, 2, 61, 2, 16)


class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        width = size.width
        self.heads = size.heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, h):
        rows, tokens, width = h.shape
        split = self.qkv(self.before(h)).view(rows, tokens, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)
        found = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        h = h + self.out(found.transpose(1, 2).reshape(rows, tokens, width))
        return h + self.down(F.gelu(self.up(self.between(h))))


class Decoder(nn.Module):
    """Gives the loss of each token, (B, T)."""

    def __init__(self, size):
        super().__init__()
        torch.manual_seed(0)
        self.entry = nn.Embedding(size.vocabulary, size.width)
        self.places = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, ids, targets):
        h = self.entry(ids) + self.places.weight
        for block in self.blocks:
            h = block(h)
        logits = self.head(self.norm(h)).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(ids)


class Loop:
    """A training loop: bare, with `Run` (guard and recorder), or with `guard(loss)`."""

    def __init__(self, kind, *, size, device, compiled, out):
        self.model = Decoder(size).to(device)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.losses_of = torch.compile(self.model) if compiled else self.model
        self.autocast = torch.autocast(device.type, dtype=torch.bfloat16)
        dice = torch.Generator().manual_seed(1)
        shape = (8, size.rows, size.tokens + 1)
        self.batches = torch.randint(0, size.vocabulary, shape, generator=dice).to(device)
        self.rows = torch.arange(8 * size.rows).view(8, size.rows).to(device)
        self.num_steps = 0
        self.run = self.guard = None
        if kind == "Run":
            config = GuardConfig(rule="robust", decide="device")
            settings = dict(model=self.model, optimizer=self.optimizer, max_grad_norm=1.0)
            self.run = Run(out, guard=config, **settings)
        elif kind == "guard(loss)":
            self.guard = LossGuard(rule="robust", model=self.model)

    def step(self):
        place = self.num_steps % 8
        self.num_steps += 1
        with self.autocast:
            losses = self.losses_of(self.batches[place, :, :-1], self.batches[place, :, 1:])
        if self.run is not None:
            self.run.micro_batch(losses, rows=self.rows[place]).backward()
            self.run.step()
            return
        loss = losses.mean()
        (loss if self.guard is None else self.guard(loss)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()

    def close(self):
        if self.run is not None:
            self.run.close()


def block_s(loop, num_steps, synchronize):
    """Wall seconds of some steps."""
    synchronize()
    begin = time.perf_counter()
    for _ in range(num_steps):
        loop.step()
    synchronize()
    return time.perf_counter() - begin


def first_wait(loop, device):
    """What made the host wait in two steps of a loop; None if nothing did, or without CUDA."""
    if device.type != "cuda":
        loop.step()
        return None
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loop.step()
        loop.step()
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def interval(ratios, dice):
    """Median of some ratios, and its 95 % interval."""
    medians = sorted(statistics.median(dice.choices(ratios, k=len(ratios))) for _ in range(2_000))
    return statistics.median(ratios), medians[50], medians[1949]


def measure(mode, args, *, size, device, dice, out):
    make = dict(size=size, device=device, compiled=mode == "compiled", out=out)
    bare, guarded = Loop("bare", **make), Loop("Run", **make)
    synchronize = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    for loop in (bare, guarded):
        block_s(loop, 24 if device.type == "cuda" else 2, synchronize)  # compiled, and past the rule's warm-up
    ratios, bare_s = [], []
    for _ in range(args.pairs):
        pair = {loop: block_s(loop, args.steps, synchronize) for loop in dice.sample((bare, guarded), 2)}
        ratios.append(pair[guarded] / pair[bare])
        bare_s.append(pair[bare] / args.steps)
    waits = {"Run": first_wait(guarded, device)}
    guarded.close()
    num_parameters = sum(parameter.numel() for parameter in bare.model.parameters())
    del bare, guarded
    called = Loop("guard(loss)", **make)
    block_s(called, 2, synchronize)
    waits["guard(loss)"] = first_wait(called, device)
    median, low, high = interval(ratios, dice)
    return {
        "parameters": num_parameters,
        "bare step, ms": statistics.median(bare_s) * 1e3,
        "ratio, median and 95 % interval": [median, low, high],
        "ratio, lowest and highest": [min(ratios), max(ratios)],
        "first wait": waits,
        "ratios": ratios,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of blocks a mode (30)")
    parser.add_argument("--steps", type=int, default=8, help="steps of a block (8)")
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--tiny", action="store_true", help="toy size on the CPU, to test the script")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()

    logging.getLogger("trimtab").setLevel(logging.ERROR)
    device = torch.device("cpu" if args.tiny else "cuda")
    facts = {
        "machine": platform.machine() if args.tiny or not torch.cuda.is_available() else torch.cuda.get_device_name(),
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, trimtab {trimtab.__version__}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "settings": {name: value for name, value in vars(args).items() if name != "json"},
        "modes": {},
    }
    if not args.tiny and not torch.cuda.is_available():
        print("not measured: no GPU at hand")
    else:
        print(f"{facts['machine']}; {facts['versions']}; {facts['date']}; {args.pairs} pairs of {args.steps} steps\n")
        print("| mode | ms a bare step | ratio, median (95 %) | lowest to highest | first wait: Run; guard(loss) |")
        print("| --- " * 5 + "|")
        with tempfile.TemporaryDirectory() as out, contextlib.ExitStack() as settings:
            os.environ["TRIMTAB_HOME"] = f"{out}/home"
            settings.enter_context(warnings.catch_warnings(action="ignore"))  # what a compiler says of its imports
            torch.set_float32_matmul_precision("high")
            for mode in args.modes:
                found = measure(
                    mode, args, size=TINY if args.tiny else FULL, device=device, dice=random.Random(0), out=out
                )
                facts["modes"][mode] = found
                median, low, high = found["ratio, median and 95 % interval"]
                least, most = found["ratio, lowest and highest"]
                waits = "; ".join(wait or "none" for wait in found["first wait"].values())
                print(
                    f"| {mode} | {found['bare step, ms']:.1f} | {median:.3f} ({low:.3f} to {high:.3f}) | "
                    f"{least:.3f} to {most:.3f} | {waits} |",
                    flush=True,
                )
    if args.json:
        Path(args.json).write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
