"""The preset `tiny` made smaller, for tests, and a program that trains it: to be killed, or to talk to odd consoles.

python -m recipes.twin_moe.tests.small_twin OUT [--stop-at STEP] [--kill-at STEP]
"""

import argparse
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch

from recipes.twin_moe.config import ModelConfig, TwinConfig, read_preset
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.train import train

STEP_COLUMNS = {
    "kind", "segment", "run_id", "step", "loss", "ce", "lbl", "z", "z_mean", "xpop", "lbl_weighted", "z_weighted",
    "xpop_weighted", "lr", "grad_norm", "tokens_per_s", "device_memory_bytes", "reason", "num_skipped_micros",
}  # fmt: skip
EVAL_COLUMNS = {
    "kind", "segment", "run_id", "step", "eval_loss", "ce", "z", "population_shares", "dead_fraction", "clip_fraction",
    "regress_streak", "best_eval", "best_eval_step", "tokens_per_s", "device_memory_bytes", "host_available_bytes",
}  # fmt: skip


WALL_CLOCK = ("tokens_per_s", "device_memory_bytes", "host_available_bytes", "time", "run_id", "segment")
"""Columns of the history that say when and by whom, and not what was trained."""


def small(*, num_steps: int = 120) -> TwinConfig:
    """Some 10 ms a step: two layers of 8 experts, windows of 32 bytes."""
    tiny = read_preset("tiny")
    return replace(
        tiny,
        num_steps=num_steps,
        eval_every=15,
        save_every=30,
        report_every=10,
        log_every=10,
        data=replace(tiny.data, batch_size=2, num_tokens=32, num_eval_batches=2),
        model=ModelConfig(dim=16, num_layers=2, num_heads=2, num_experts=8, top_k=2, num_populations=2, expert_dim=16),
        optim=replace(tiny.optim, lr=3e-3, warmup_steps=10),
    )


def engine_with(after_step: Callable[[Engine], object]) -> type[Engine]:
    """An engine that does something after each of its steps: where a test plants what goes wrong."""

    class Planted(Engine):
        def train_step(self, micro_batches=None):
            measured = super().train_step(micro_batches)
            after_step(self)
            return measured

    return Planted


def history(out: Path, kind: str | None = None) -> list[dict]:
    """The rows of a history; of one kind, or all."""
    rows = [json.loads(line) for line in (out / "history.jsonl").read_text(encoding="ascii").splitlines()]
    return [row for row in rows if kind in (None, row["kind"])]


def trained(out: Path, kind: str) -> list[dict]:
    """The rows of a kind by step, of what was trained twice the later one, without what the wall clock decides."""
    latest = {row["step"]: row for row in history(out, kind)}
    return [{name: value for name, value in latest[step].items() if name not in WALL_CLOCK} for step in sorted(latest)]


def logs(out: Path) -> list[Path]:
    """The folders of the runs that were recorded, the oldest first."""
    return sorted(path for path in (out / "trimtab").iterdir() if path.is_dir())


def saved(checkpoint: Path) -> dict[str, object]:
    """What decides how a training goes on, as it lies in a checkpoint: nothing of it is of a wall clock or a name."""

    def read(name: str) -> dict:
        return torch.load(checkpoint / name, weights_only=True)

    run, rank = read("run.pt"), read("rank_0.pt")
    return {
        "weights": read("model.pt"),
        "moments": read("optimizer.pt"),
        "random numbers": rank["rng"]["torch"],  # Python's own are drawn from nowhere, and begin as the process does
        "data": rank["data"],
        "guard": run["run"]["guard"],
        **run["values"],  # schedule, loss, best evaluation and streak, settings
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--stop-at", type=int)
    parser.add_argument("--kill-at", type=int)
    options = parser.parse_args()
    torch.set_num_threads(1)

    def kill(engine) -> None:
        if engine.step == options.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    train(small(), out=options.out, stop_at=options.stop_at, make_engine=engine_with(kill))


if __name__ == "__main__":
    main()
