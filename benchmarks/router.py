"""What a watch over routers costs a training: the same steps with and without it, turn by turn.

    python benchmarks/router.py [--pairs N] [--steps N] [--device cpu|cuda] [--large] [--json FILE]

A Mixtral of two small layers, 8 experts of which a token goes to 2, 8 rows of 128 tokens a micro-batch, an attention
mask, AdamW, one thread; `--large`: 14 layers of 48 experts. A pair is one stretch of `--steps` steps without the watch
and one with it, which ends with a report that is read (the wait included), in random order, in one process.

Of each pair the ratio is taken, of CPU seconds of the process and of wall seconds: the median, and the geometric mean
with its 95 % interval (Student's t on the logarithms). On a shared machine wall seconds mostly measure its other work.
The share is the CPU time of the training thread inside the watch, by clocks around its hooks and `report`, over that
of the watched steps: it has little noise. On a GPU the stretches end by a synchronisation, and wall seconds count.

Must: the upper end of the interval below 1.02, with a report every 50 steps.
"""

import argparse
import json
import math
import os
import platform
import random
import statistics
import time
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import torch
import transformers
from transformers import MixtralConfig, MixtralForCausalLM

import trimtab
from trimtab.moe import RouterWatch
from trimtab.torch import router_tap

ROWS, TOKENS, VOCABULARY = 8, 128, 800
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09, 30: 2.05}
SMALL = dict(num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_local_experts=8)
LARGE = dict(num_hidden_layers=14, hidden_size=256, intermediate_size=256, num_local_experts=48)


class Clock:
    """CPU seconds of the training thread inside the watch."""

    def __init__(self):
        self.seconds = 0.0
        called = router_tap._Hook.__call__

        def timed(hook, *given):
            begin = time.thread_time()
            called(hook, *given)
            self.seconds += time.thread_time() - begin

        router_tap._Hook.__call__ = timed


class Training:
    """A model that is trained on the same rows again and again."""

    def __init__(self, device, sizes):
        torch.manual_seed(0)
        config = MixtralConfig(vocab_size=VOCABULARY, num_attention_heads=2, num_key_value_heads=2, **sizes)
        self.model = MixtralForCausalLM(config).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator).to(device)
        self.mask = (torch.arange(TOKENS) < torch.arange(TOKENS - ROWS, TOKENS)[:, None]).long().to(device)
        self.device = device

    def stretch(self, num_steps, clock, *, watched):
        """CPU and wall seconds of some steps, and those of the training thread inside the watch."""
        watch = RouterWatch(self.model) if watched else None
        self._wait()
        clock.seconds, cpu, wall = 0.0, time.process_time(), time.perf_counter()
        for _ in range(num_steps):
            self.model(input_ids=self.ids, attention_mask=self.mask, labels=self.ids).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        if watch is not None:
            begin = time.thread_time()
            report = watch.report(num_steps)
            clock.seconds += time.thread_time() - begin
            assert sum(report.layers[0].counts) == 2 * report.expected_tokens
            watch.remove()
        self._wait()
        return time.process_time() - cpu, time.perf_counter() - wall, clock.seconds

    def _wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


def interval(ratios):
    """Geometric mean of some ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    half = STUDENT[max(n for n in STUDENT if n <= len(logs))] * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return [math.exp(mean), math.exp(mean - half), math.exp(mean + half)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of stretches, at least 2 (30)")
    parser.add_argument("--steps", type=int, default=50, help="steps of a stretch, which ends with a report (50)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--large", action="store_true", help="14 layers of 48 experts")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()
    if args.pairs < 2:
        parser.error("an interval needs two pairs")

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    clock, order = Clock(), random.Random(0)
    training = Training(args.device, LARGE if args.large else SMALL)
    for watched in (False, True):
        training.stretch(3, clock, watched=watched)  # whatever happens only once
    pairs = []
    for _ in range(args.pairs):
        pair = {}
        for watched in order.sample((False, True), 2):
            pair[watched] = training.stretch(args.steps, clock, watched=watched)
        pairs.append(pair)
    cpu, wall = ([pair[True][place] / pair[False][place] for pair in pairs] for place in (0, 1))
    shares = [pair[True][2] / pair[True][0] for pair in pairs]
    step_s = statistics.median(pair[False][1 if args.device == "cuda" else 0] for pair in pairs) / args.steps
    facts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"
        + (f", {torch.cuda.get_device_name()}" if args.device == "cuda" else ""),
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, trimtab {trimtab.__version__}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "settings": {name: value for name, value in vars(args).items() if name != "json"},
        "plain step, ms": step_s * 1e3,
        "CPU ratio, median": statistics.median(cpu),
        "CPU ratio, mean and 95 % interval": interval(cpu),
        "wall ratio, median": statistics.median(wall),
        "wall ratio, mean and 95 % interval": interval(wall),
        "share": statistics.median(shares),
        "share, largest": max(shares),
        "training thread, us a step": statistics.median(pair[True][2] for pair in pairs) / args.steps * 1e6,
    }
    print(f"{facts['machine']}; {facts['versions']}; {facts['date']}; {args.pairs} pairs\n")
    print("| model | steps, ms each | CPU ratio: median; mean (95 %) | wall ratio | share (largest) | us a step |")
    print("| --- " * 6 + "|")
    means = {name: "{:.3f} ({:.3f} to {:.3f})".format(*facts[f"{name} ratio, mean and 95 % interval"])
             for name in ("CPU", "wall")}  # fmt: skip
    print(
        f"| {'14 layers, 48 experts' if args.large else '2 layers, 8 experts'}, {args.device} | {args.steps}, "
        f"{facts['plain step, ms']:.1f} | {facts['CPU ratio, median']:.3f}; {means['CPU']} | "
        f"{facts['wall ratio, median']:.3f}; {means['wall']} | {facts['share']:.2%} ({facts['share, largest']:.2%}) | "
        f"{facts['training thread, us a step']:.0f} |"
    )
    if args.json:
        Path(args.json).write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
