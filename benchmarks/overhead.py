"""What recording costs a training on the CPU: the same steps with and without Trimtab, turn by turn.

    python benchmarks/overhead.py [--pairs N] [--steps N] [--vocabulary N] [--guard] [--json FILE]

Two hosts, each a Llama of one small layer, 8 rows of 128 tokens a micro-batch, one thread: a Hugging Face `Trainer`
(plain, attached) and a loop of one's own (plain, with `Run`). A pair is one plain and one recorded training, in turns
of either order. Seconds are CPU seconds of the process, which count each of its threads and no other process.

The ratio (geometric mean over the pairs, 95 % interval of Student's t) drowns in the noise of a busy machine; the share
does not. It is the CPU time inside Trimtab's own code over that of the recorded steps, by clocks around all that it
adds to a step: hooks, less the host's own work inside them, token losses, row sums; and the whole of the writer thread.

Must: share below 1 % at vocabulary 32,000.
"""

import argparse
import functools
import json
import logging
import math
import os
import platform
import statistics
import tempfile
import threading
import time
import warnings
from pathlib import Path

os.environ |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import torch
import torch.nn.functional as F
import transformers
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import trimtab
from trimtab import GuardConfig, Run
from trimtab.integrations import hf
from trimtab.torch import capture, loader, run

ROWS, TOKENS = 8, 128
STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 10: 2.26, 15: 2.14, 20: 2.09, 30: 2.05}


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
    """CPU seconds of the recorder's threads, read as each ends."""

    def __init__(self):
        self.seconds = 0.0
        whole = threading.Thread.run

        def timed(thread):
            try:
                whole(thread)
            finally:
                if thread.name.startswith("trimtab"):
                    self.seconds += time.thread_time()

        threading.Thread.run = timed


class Stretch(TrainerCallback):
    """From the end of the first step, which is warm-up, to the end of the last."""

    def __init__(self, meter):
        self.meter = meter

    def on_step_end(self, args, state, control, **_):
        if state.global_step == 1:
            self.begin, self.own = time.process_time(), self.meter.seconds
        self.end, self.own_end = time.process_time(), self.meter.seconds


def make_model(vocabulary):
    torch.manual_seed(0)
    sizes = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=1, num_attention_heads=2)
    return LlamaForCausalLM(LlamaConfig(vocab_size=vocabulary, num_key_value_heads=2, **sizes))


def make_rows(vocabulary, num_rows):
    ids = torch.randint(0, vocabulary, (num_rows, TOKENS), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": row, "labels": row} for row in ids]


def collate(items):
    return {name: torch.stack([item[name] for item in items]) for name in ("input_ids", "labels")}


def train_trainer(meter, vocabulary, num_steps, guard, *, recorded):
    """CPU seconds of the steps, and those in Trimtab's code in the training thread."""
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
    return stretch.end - stretch.begin, stretch.own_end - stretch.own


def train_loop(meter, vocabulary, num_steps, guard, *, recorded):
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
                begin, own = time.process_time(), meter.seconds
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
        end, own_end = time.process_time(), meter.seconds
        if own_run is not None:
            own_run.close()
    return end - begin, own_end - own


def put_clocks(meter):
    """Borders between Trimtab and its hosts, where they lie on classes and modules."""
    moments = [name for name in vars(hf._Moments) if name.startswith("on_")]
    meter.put(hf._Moments, *moments, ours=True)
    meter.put(capture.CapturingLoss, "__call__", ours=True)
    meter.put(capture.CrossEntropyCapture, "_cross_entropy", ours=True)
    meter.put(loader.TaggingCollator, "__call__", ours=True)
    meter.put(loader.TaggedDataset, "__getitems__", ours=True)
    meter.put(hf, "total_norm", ours=True)  # a guard's look at the gradients; else the trainer's own
    meter.put(Run, "micro_batch", "step", ours=True)
    meter.put(run, "total_norm", "clip_gradients", ours=False)
    # Inside a captured cross-entropy the host's two calls are the host's, the third is ours.
    nll_loss, theirs = F.nll_loss, meter.wrap(F.nll_loss, ours=False)
    F.nll_loss = lambda *args, **kwargs: (nll_loss if kwargs.get("reduction") == "none" else theirs)(*args, **kwargs)
    meter.put(F, "log_softmax", ours=False)


def measure(train, meter, writer, args):
    guard = GuardConfig(rule="robust") if args.guard else None
    both = functools.partial(train, meter, args.vocabulary, args.steps, guard)
    both(recorded=True)  # whatever happens only once
    ratios, shares, plain_ms = [], [], []
    for pair in range(args.pairs):
        seconds = {}
        for recorded in (False, True) if pair % 2 else (True, False):
            written = writer.seconds
            seconds[recorded], own = both(recorded=recorded)
            if recorded:
                # The writer also wrote the warm-up step: a little too much is counted.
                shares.append((own + writer.seconds - written) / seconds[True])
                thread_us, writer_us = own / args.steps * 1e6, (writer.seconds - written) / (args.steps + 1) * 1e6
        ratios.append(seconds[True] / seconds[False])
        plain_ms.append(seconds[False] / args.steps * 1e3)
    logs = [math.log(ratio) for ratio in ratios]
    half = STUDENT[max(n for n in STUDENT if n <= args.pairs)] * statistics.stdev(logs) / math.sqrt(len(logs))
    mean = statistics.mean(logs)
    return {
        "plain step, CPU ms": statistics.median(plain_ms),
        "ratio": math.exp(mean),
        "ratio, 95 % interval": [math.exp(mean - half), math.exp(mean + half)],
        "share": statistics.median(shares),
        "share, largest": max(shares),
        "training thread, us a step": thread_us,
        "writer thread, us a step": writer_us,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=10, help="interleaved pairs a host, at least 2 (10)")
    parser.add_argument("--steps", type=int, default=8, help="measured steps of a training (8)")
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--guard", action="store_true", help="with the robust guard on")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args()
    if args.pairs < 2 or args.steps < 1:
        parser.error("an interval needs two pairs, a pair one step")

    torch.set_num_threads(1)
    logging.getLogger("trimtab").setLevel(logging.ERROR)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as home:
        os.environ["TRIMTAB_HOME"] = home
        meter, writer = Meter(), Writer()
        put_clocks(meter)
        hosts = {"Trainer": train_trainer, "Run": train_loop}
        figures = {name: measure(train, meter, writer, args) for name, train in hosts.items()}

    facts = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "versions": f"torch {torch.__version__}, transformers {transformers.__version__}",
        "settings": {name: value for name, value in vars(args).items() if name != "json"},
    }
    print(f"{facts['machine']}; {facts['versions']}")
    for name, found in figures.items():
        low, high = found["ratio, 95 % interval"]
        print(
            f"{name:8} plain step {found['plain step, CPU ms']:6.0f} ms  ratio {found['ratio']:.3f} "
            f"[{low:.3f}, {high:.3f}]  share {found['share']:.2%} (largest {found['share, largest']:.2%}): "
            f"{found['training thread, us a step']:.0f} us training thread, "
            f"{found['writer thread, us a step']:.0f} us writer"
        )
    if args.json:
        Path(args.json).write_text(json.dumps({**facts, "hosts": figures}, indent=2) + "\n")


if __name__ == "__main__":
    main()
