"""What recording costs a training on the CPU: the same steps with and without Trimtab, turn by turn.

    python benchmarks/overhead.py [--pairs N] [--seconds S] [--vocabularies N N] [--guard] [--json FILE]

Two hosts, each a Llama of one small layer, 8 rows of 128 tokens a micro-batch, one thread: a Hugging Face `Trainer`
(plain, attached) and a loop of one's own (plain, with `Run`). A pair is one plain and one recorded training of the same
model, data and seed, in random order, in one process. CPU seconds are those of the process, which count each of its
threads and no other process; wall seconds stand beside them, and on a shared machine mostly measure its other work.

Of each pair the ratio is taken: the median, and the geometric mean with its 95 % interval (Student's t on the
logarithms). The share is the CPU time inside Trimtab's own code over that of the recorded steps, by clocks around all
that it adds to a step: hooks, less the host's own work inside them, token losses, row sums; and what the writer thread
took until all was written. It has little noise. Closing, when the journal is sealed, is no part of a step.

Must, at vocabulary 32,000: the upper end of the interval of CPU ratios below 1.02, a share below 1 %. At vocabulary 800
the step of this toy takes 20 ms, of which the same half a millisecond is more.
"""

import argparse
import functools
import json
import logging
import math
import os
import platform
import random
import statistics
import tempfile
import threading
import time
import warnings
from pathlib import Path
from typing import NamedTuple

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import trimtab
from trimtab import GuardConfig, Run
from trimtab.integrations import hf, hf_window
from trimtab.recorder import Recorder
from trimtab.torch import capture, loader, run, window

ROWS, TOKENS = 8, 128
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09, 30: 2.05}
STEPS = (3, 400)
"""Fewest and most measured steps of a training, whatever the seconds say."""


class Training(NamedTuple):
    """The measured steps of one training, in seconds; `own_s` is the part of `cpu_s` in Trimtab's code."""

    cpu_s: float
    wall_s: float
    own_s: float


class Meter:
    """CPU seconds of the training thread inside Trimtab: on at its borders, off where it calls the host."""

    def __init__(self):
        self.thread = threading.get_ident()
        self.seconds = 0.0
        self._inside = [False]
        self._since = 0.0

    def _cross(self):
        now = time.thread_time()
        if self._inside[-1]:
            self.seconds += now - self._since
        self._since = now

    def wrap(self, function, *, ours):
        @functools.wraps(function)
        def timed(*args, **kwargs):
            if threading.get_ident() != self.thread:
                return function(*args, **kwargs)
            self._cross()
            self._inside.append(ours)
            try:
                return function(*args, **kwargs)
            finally:
                self._cross()
                self._inside.pop()

        return timed

    def put(self, holder, *names, ours):
        for name in names:
            setattr(holder, name, self.wrap(getattr(holder, name), ours=ours))


class Writer:
    """CPU seconds of the recorder's thread until all that was observed is written; closing and sealing apart."""

    def __init__(self):
        self.seconds = self.closing_s = 0.0
        close = Recorder.close

        def timed(recorder, *args, **kwargs):
            recorder.flush(60)
            for thread in threading.enumerate():
                if thread.name.startswith("trimtab"):
                    self.seconds += time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            begin = time.process_time()
            close(recorder, *args, **kwargs)
            self.closing_s = time.process_time() - begin

        Recorder.close = timed


def now(meter):
    return Training(time.process_time(), time.perf_counter(), meter.seconds)


def between(begin, end):
    return Training(*(late - early for early, late in zip(begin, end, strict=True)))


class Stretch(TrainerCallback):
    """From the end of the first step, which is warm-up, to the end of the last."""

    def __init__(self, meter):
        self.meter = meter

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 1:
            self.begin = now(self.meter)
        self.end = now(self.meter)


def make_model(vocabulary):
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_key_value_heads=2, **sizes))


def make_rows(vocabulary, num_rows):
    ids = torch.randint(0, vocabulary, (num_rows, TOKENS), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in ids]


def collate(items):
    return {name: torch.stack([item[name] for item in items]) for name in ("input_ids", "labels")}


def train_trainer(meter, vocabulary, num_steps, *, guard, recorded):
    """What the steps of one training took."""
    stretch = Stretch(meter)
    with tempfile.TemporaryDirectory() as out, warnings.catch_warnings(action="ignore"):
        args = TrainingArguments(
            output_dir=out, max_steps=num_steps + 1, per_device_train_batch_size=ROWS, report_to=[], use_cpu=True,
            save_strategy="no", disable_tqdm=True, logging_strategy="no", remove_unused_columns=False,
        )  # fmt: skip
        trainer = Trainer(
            model=make_model(vocabulary),
            args=args,
            train_dataset=make_rows(vocabulary, ROWS * (num_steps + 1)),
            data_collator=meter.wrap(collate, ours=False),
            callbacks=[stretch],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.model.loss_function = meter.wrap(trainer.model.loss_function, ours=False)
        meter.put(trainer, "training_step", "compute_loss", ours=False)
        if recorded:
            trimtab.attach(trainer, guard=guard)
            meter.put(trainer, "training_step", "compute_loss", ours=True)
        trainer.train()
    return between(stretch.begin, stretch.end)


def train_loop(meter, vocabulary, num_steps, *, guard, recorded):
    """The same for a loop of one's own."""
    model = make_model(vocabulary)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    meter.put(optimizer, "step", "zero_grad", ours=False)
    rows = make_rows(vocabulary, ROWS * (num_steps + 1))
    with tempfile.TemporaryDirectory() as out:
        settings = dict(model=model, optimizer=optimizer, max_grad_norm=1.0, guard=guard)
        own_run = Run(out, dataset=rows, **settings) if recorded else None
        for step in range(num_steps + 1):
            if step == 1:
                begin = now(meter)
            batch = collate(rows[ROWS * step : ROWS * (step + 1)])
            targets = batch["labels"][:, 1:]
            logits = model(batch["input_ids"]).logits[:, :-1].flatten(0, 1)
            if own_run is None:
                F.cross_entropy(logits, targets.flatten()).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
            else:
                losses = F.cross_entropy(logits, targets.flatten(), reduction="none").view_as(targets)
                own_run.micro_batch(losses, rows=range(ROWS * step, ROWS * (step + 1))).backward()
                own_run.step()
        end = now(meter)
        if own_run is not None:
            own_run.close()
    return between(begin, end)


def put_clocks(meter):
    """Borders between Trimtab and its hosts, where they lie on classes and modules."""
    moments = [name for name in vars(hf._Moments) if name.startswith("on_")]
    meter.put(hf._Moments, *moments, ours=True)
    meter.put(capture.CapturingLoss, "__call__", ours=True)
    meter.put(capture.CrossEntropyCapture, "_cross_entropy", ours=True)
    meter.put(loader.TaggingCollator, "__call__", ours=True)
    meter.put(loader.TaggedDataset, "__getitems__", ours=True)
    meter.put(hf_window, "gradient_norms", ours=True)  # a guard's look at the gradients; else the trainer's own
    meter.put(Run, "micro_batch", "step", ours=True)
    meter.put(window, "gradient_norms", ours=False)
    meter.put(run, "clip_gradients", ours=False)
    # Inside a captured cross-entropy the host's two calls are the host's, the third is ours.
    nll_loss, theirs = F.nll_loss, meter.wrap(F.nll_loss, ours=False)
    F.nll_loss = lambda *args, **kwargs: (nll_loss if kwargs.get("reduction") == "none" else theirs)(*args, **kwargs)
    meter.put(F, "log_softmax", ours=False)


def interval(ratios):
    """Geometric mean of some ratios, and its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    half = STUDENT[max(n for n in STUDENT if n <= len(logs))] * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return [math.exp(mean), math.exp(mean - half), math.exp(mean + half)]


def measure(train, meter, writer, args, vocabulary, order):
    guard = GuardConfig(rule="robust") if args.guard else None
    both = functools.partial(train, meter, vocabulary, guard=guard)
    both(2, recorded=True)  # whatever happens only once
    step_s = both(4, recorded=False).cpu_s / 4
    num_steps = min(max(round(args.seconds / step_s), STEPS[0]), STEPS[1])
    pairs, shares = [], []
    for _ in range(args.pairs):
        pair = {}
        for recorded in order.sample((False, True), 2):
            written = writer.seconds
            pair[recorded] = both(num_steps, recorded=recorded)
            if recorded:
                # The writer also wrote the warm-up step: a little too much is counted.
                writer_s = writer.seconds - written
                shares.append((pair[True].own_s + writer_s) / pair[True].cpu_s)
        pairs.append(pair)
    cpu, wall = ([pair[True][clock] / pair[False][clock] for pair in pairs] for clock in (0, 1))
    return {
        "steps": num_steps,
        "plain step, CPU ms": statistics.median(pair[False].cpu_s for pair in pairs) / num_steps * 1e3,
        "CPU ratio, median": statistics.median(cpu),
        "CPU ratio, mean and 95 % interval": interval(cpu),
        "wall ratio, median": statistics.median(wall),
        "wall ratio, mean and 95 % interval": interval(wall),
        "share": statistics.median(shares),
        "share, largest": max(shares),
        "training thread, us a step": statistics.median(pair[True].own_s for pair in pairs) / num_steps * 1e6,
        "writer thread, us a step": writer_s / (num_steps + 1) * 1e6,
        "closing, CPU ms": writer.closing_s * 1e3,
        "CPU ratios": cpu,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30, help="pairs a host and vocabulary, at least 2 (30)")
    parser.add_argument("--seconds", type=float, default=1.5, help="CPU seconds of a training, about (1.5)")
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[800, 32_000], metavar="N")
    parser.add_argument("--guard", action="store_true", help="with the robust guard on")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()
    if args.pairs < 2:
        parser.error("an interval needs two pairs")

    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as home:
        os.environ["TRIMTAB_HOME"] = home
        meter, writer = Meter(), Writer()
        put_clocks(meter)
        hosts = {"Trainer": train_trainer, "Run": train_loop}
        order = random.Random(0)
        facts = {
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
            "versions": f"Python {platform.python_version()}, torch {torch.__version__}, transformers "
            f"{transformers.__version__}, trimtab {trimtab.__version__}",
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "settings": {name: value for name, value in vars(args).items() if name != "json"},
        }
        print(f"{facts['machine']}; {facts['versions']}; {facts['date']}; {args.pairs} pairs\n")
        print(
            "| vocabulary | host | steps, CPU ms each | CPU ratio: median; mean (95 %) | wall ratio | share (largest) "
            "| us a step: training thread, writer | closing, CPU ms |"
        )
        print("| --- " * 8 + "|")
        figures = {}
        for vocabulary in args.vocabularies:
            for name, train in hosts.items():
                found = measure(train, meter, writer, args, vocabulary, order)
                figures[f"{name}, vocabulary {vocabulary}"] = found
                cpu, wall = ("{:.3f} ({:.3f} to {:.3f})".format(*found[f"{clock} ratio, mean and 95 % interval"])
                             for clock in ("CPU", "wall"))  # fmt: skip
                print(
                    f"| {vocabulary:,} | {name} | {found['steps']}, {found['plain step, CPU ms']:.0f} | "
                    f"{found['CPU ratio, median']:.3f}; {cpu} | {wall} | "
                    f"{found['share']:.2%} ({found['share, largest']:.2%}) | "
                    f"{found['training thread, us a step']:.0f}, {found['writer thread, us a step']:.0f} | "
                    f"{found['closing, CPU ms']:.0f} |",
                    flush=True,
                )
    if args.json:
        Path(args.json).write_text(json.dumps({**facts, "hosts": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
