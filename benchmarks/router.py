"""What a watch costs a training: the same steps with and without it, turn by turn.

    python benchmarks/router.py [--pairs N] [--steps N] [--device cpu|cuda] [--large] [--json FILE]

A Mixtral of two small layers, 8 experts of which a token goes to 2, 8 rows of 128 tokens a micro-batch, an attention
mask, AdamW, one thread; `--large`: 14 layers of 48 experts. A pair is one stretch of `--steps` steps without the watch
and one with it, which ends with a report that is read (the wait included), in random order, in one process. Two kinds:

    RouterWatch        a loop with nothing else of Trimtab, against the same with a `RouterWatch`
    Run(watch=True)    a `Run` that is recorded, against the same with all that `watch=True` is: routers, rules, vitals,
                       the update ratio, and events in the log

Of each pair the ratio is taken, of CPU seconds of the process and of wall seconds: the median, and the geometric mean
with its 95 % interval (Student's t on the logarithms). On a shared machine both mostly measure its other work. The
share is the CPU time inside the watch, by clocks around whatever of it is called in the training thread (hooks, a
report, the end of a step) and in the recorder's (the rules), over that of the watched steps: it has little noise, and
misses the work that a watch gives to others (more events to write). On a GPU the stretches end by a synchronisation,
and wall seconds count.

Must, with a report every 50 steps: the share of the median stretch below 2 %, and the interval of the ratio of CPU
seconds (of wall seconds on a GPU) not above 1.02 as a whole: what the share misses would show there.
"""

import argparse
import json
import logging
import math
import os
import platform
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import torch
import transformers
from torch.nn import functional
from transformers import MixtralConfig, MixtralForCausalLM

import trimtab
from trimtab.moe import RouterWatch
from trimtab.torch.router import tap
from trimtab.torch.update_ratio import UpdateRatio
from trimtab.watching import Watch
from trimtab.watching.judging import Judging

ROWS, TOKENS, VOCABULARY = 8, 128, 800
MUST = 0.02
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09, 30: 2.05}
SMALL = dict(num_hidden_layers=2, hidden_size=64, intermediate_size=128, num_local_experts=8)
LARGE = dict(num_hidden_layers=14, hidden_size=256, intermediate_size=256, num_local_experts=48)
KINDS = ("RouterWatch", "Run(watch=True)")
INSIDE = (
    (tap._Hook, "__call__"),
    (RouterWatch, "collect"),
    (RouterWatch, "report"),
    (UpdateRatio, "_copy"),
    (UpdateRatio, "_compare"),
    (Watch, "begin"),
    (Watch, "end_step"),
    (Watch, "tell_findings"),
    (Watch, "close"),
    (Judging, "has_arrived"),
    (Judging, "observe"),
    (Judging, "finish"),
)


class Clock:
    """CPU seconds inside the watch, in whichever thread; what is called within is counted once."""

    def __init__(self):
        self.by_thread = {}
        self._within = threading.local()
        for owner, name in INSIDE:
            setattr(owner, name, self._timed(getattr(owner, name)))

    def taken(self):
        """Seconds of the thread that asks, and of all other ones, since the last call."""
        seconds, self.by_thread = self.by_thread, {}
        own = seconds.pop(threading.get_ident(), 0.0)
        return own, sum(seconds.values())

    def _timed(self, called: Callable) -> Callable:
        def timed(*given, **named):
            if getattr(self._within, "is_it", False):
                return called(*given, **named)
            self._within.is_it = True
            begin = time.thread_time()
            try:
                return called(*given, **named)
            finally:
                thread = threading.get_ident()
                self.by_thread[thread] = self.by_thread.get(thread, 0.0) + time.thread_time() - begin
                self._within.is_it = False

        return timed


class Training:
    """A model that is trained on the same rows again and again."""

    def __init__(self, device, sizes, folder):
        torch.manual_seed(0)
        config = MixtralConfig(vocab_size=VOCABULARY, num_attention_heads=2, num_key_value_heads=2, **sizes)
        self.model = MixtralForCausalLM(config).to(device).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS), generator=generator).to(device)
        self.mask = (torch.arange(TOKENS) < torch.arange(TOKENS - ROWS, TOKENS)[:, None]).long().to(device)
        self.device = device
        self.folder = folder

    def stretch(self, kind, num_steps, clock, *, watched):
        """CPU and wall seconds of some steps, and those inside the watch: of the training thread, and of others."""
        self._wait()
        clock.taken()
        cpu, wall = time.process_time(), time.perf_counter()
        (self._alone if kind == "RouterWatch" else self._recorded)(num_steps, watched=watched)
        self._wait()
        return time.process_time() - cpu, time.perf_counter() - wall, *clock.taken()

    def _losses(self):
        """(B, T - 1), of the token that comes next."""
        logits = self.model(input_ids=self.ids, attention_mask=self.mask).logits[:, :-1]
        losses = functional.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten(), reduction="none")
        return losses.view(ROWS, TOKENS - 1)

    def _alone(self, num_steps, *, watched):
        watch = RouterWatch(self.model) if watched else None
        real = self.mask[:, 1:]
        for _ in range(num_steps):
            ((self._losses() * real).sum() / real.sum()).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        if watch is not None:
            report = watch.report(num_steps)
            assert sum(report.layers[0].counts) == 2 * report.expected_tokens
            watch.remove()

    def _recorded(self, num_steps, *, watched):
        # What a busy machine has of speed and memory is said by neither kind.
        config = trimtab.WatchConfig(report_every=num_steps, throughput_fraction=1e-9, host_memory_floor_bytes=1)
        with trimtab.Run(
            self.folder,
            model=self.model,
            optimizer=self.optimizer,
            max_grad_norm=1.0,
            watch=config if watched else None,
        ) as run:
            for _ in range(num_steps):
                run.micro_batch(self._losses(), rows=torch.arange(ROWS), mask=self.mask[:, 1:] != 0).backward()
                run.step()
        if watched:
            kinds = [event.kind for event in trimtab.open_log(run.folder).event_list()]
            assert kinds.count("router") == 1, kinds
        shutil.rmtree(run.folder)

    def _wait(self):
        if self.device == "cuda":
            torch.cuda.synchronize()


def interval(ratios):
    """Geometric mean of some ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    half = STUDENT[max(n for n in STUDENT if n <= len(logs))] * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return [math.exp(mean), math.exp(mean - half), math.exp(mean + half)]


def measured(kind, training, clock, *, num_pairs, num_steps):
    """The figures of one kind."""
    order = random.Random(0)
    for watched in (False, True):
        training.stretch(kind, min(3, num_steps), clock, watched=watched)  # whatever happens only once
    pairs = []
    for _ in range(num_pairs):
        pair = {}
        for watched in order.sample((False, True), 2):
            pair[watched] = training.stretch(kind, num_steps, clock, watched=watched)
        pairs.append(pair)
    cpu, wall = ([pair[True][place] / pair[False][place] for pair in pairs] for place in (0, 1))
    shares = [sum(pair[True][2:]) / pair[True][0] for pair in pairs]
    counts = 1 if training.device == "cuda" else 0
    _, lowest, _ = interval(wall if counts else cpu)
    return {
        "plain step, ms": statistics.median(pair[False][counts] for pair in pairs) / num_steps * 1e3,
        "CPU ratio, median": statistics.median(cpu),
        "CPU ratio, mean and 95 % interval": interval(cpu),
        "wall ratio, median": statistics.median(wall),
        "wall ratio, mean and 95 % interval": interval(wall),
        "share": statistics.median(shares),
        "share, largest": max(shares),
        "training thread, ms a step": statistics.median(pair[True][2] for pair in pairs) / num_steps * 1e3,
        "other threads, ms a step": statistics.median(pair[True][3] for pair in pairs) / num_steps * 1e3,
        "reached": statistics.median(shares) < MUST and lowest < 1 + MUST,
    }


def row(kind, size, figures):
    """A line of the table."""
    cpu, wall = ("{:.3f}; {:.3f} ({:.3f} to {:.3f})".format(
        figures[f"{name} ratio, median"], *figures[f"{name} ratio, mean and 95 % interval"]
    ) for name in ("CPU", "wall"))  # fmt: skip
    threads = "{:.2f} + {:.2f}".format(figures["training thread, ms a step"], figures["other threads, ms a step"])
    return (
        f"| `{kind}`, {size} | {figures['plain step, ms']:.1f} | {cpu} | {wall} | "
        f"{figures['share']:.2%} ({figures['share, largest']:.2%}) | {threads} | "
        f"{'yes' if figures['reached'] else 'no'} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20, help="pairs of stretches of each kind, at least 2 (20)")
    parser.add_argument("--steps", type=int, default=50, help="steps of a stretch, which ends with a report (50)")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--large", action="store_true", help="14 layers of 48 experts")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()
    if args.pairs < 2:
        parser.error("an interval needs two pairs")

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    logging.getLogger("trimtab").setLevel(logging.WARNING)  # a run says where it is recorded
    clock = Clock()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRIMTAB_HOME"] = str(Path(folder) / "home")
        training = Training(args.device, LARGE if args.large else SMALL, folder)
        kinds = {kind: measured(kind, training, clock, num_pairs=args.pairs, num_steps=args.steps) for kind in KINDS}
    facts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}"
        + (f", {torch.cuda.get_device_name()}" if args.device == "cuda" else ""),
        "load": os.getloadavg()[0],
        "versions": f"Python {platform.python_version()}, torch {torch.__version__}, transformers "
        f"{transformers.__version__}, trimtab {trimtab.__version__}",
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "settings": {name: value for name, value in vars(args).items() if name != "json"},
        "kinds": kinds,
    }
    size = f"{'14 layers, 48 experts' if args.large else '2 layers, 8 experts'}, {args.device}"
    print(
        f"## `python benchmarks/router.py --pairs {args.pairs}{' --large' if args.large else ''}`\n\n"
        f"Measured on {facts['date']}: {facts['machine']}, load {facts['load']:.1f}; {facts['versions']}. A Mixtral, "
        f"1,024 tokens and a padded\nattention mask a step; {args.pairs} pairs of stretches of {args.steps} steps that "
        "end with a report. Must reach: share of the median below 2 %,\nand an interval of the ratio that is not above "
        "1.02.\n"
    )
    print(
        "| watch, model | plain step, ms | CPU ratio: median; mean (95 %) | wall ratio | share inside the watch "
        "(largest) | ms a step: training thread + others | reached |"
    )
    print("| --- " * 7 + "|")
    for kind, figures in kinds.items():
        print(row(kind, size, figures))
    if args.json:
        Path(args.json).write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main()
