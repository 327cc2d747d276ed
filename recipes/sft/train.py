"""One stage of training, offline, on the CPU.

    python -m recipes.sft.train --stage sft
    torchrun --nproc-per-node 2 -m recipes.sft.train --stage sft

In goes a stage's name, out come a line every few steps and, with `--out`, checkpoints. Under torchrun each rank trains
on rows of its own. `--init` begins from another stage's weights; `--resume` goes on with an interrupted stage, guard
and all, as if it had not been interrupted, and `--lr` gives either another learning rate.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import torch
import torch.distributed as dist

import trimtab
from recipes.sft.config import ConfigError, StageConfig, read_stage, stages
from recipes.sft.data import MicroBatches
from recipes.sft.engine import Engine, rank_and_world_size
from recipes.sft.model import ByteModel
from trimtab.checkpoint import Checkpointer, CheckpointInfo

LOG_EVERY: Final = 10
SAVE_EVERY: Final = 20
"""Steps."""
KEEP: Final = 3
"""Checkpoints of one run; older ones are deleted."""


def train(
    config: StageConfig,
    *,
    init: Path | None = None,
    resume: Path | bool | None = None,
    out: Path | None = None,
    lr: float | None = None,
    tell: Callable[[str], None] = print,
) -> Engine:
    """Trains one stage to its end.

    Args:
        config: The stage.
        init: A checkpoint of another stage whose weights to begin from, or the folder of its checkpoints; None: random
            weights.
        resume: A checkpoint of this stage to go on from, or the folder of its checkpoints; True: that in `out`.
        out: Folder in which the folder of this stage's checkpoints is, written every `SAVE_EVERY` steps and at the end;
            None: nothing is kept.
        lr: Peak learning rate; None: that of the checkpoint which is resumed, or of `config`.
        tell: What to do with a line for the person who waits; called on rank 0.

    Returns:
        The engine, as it is after the last step.

    Raises:
        ConfigError: The text or a checkpoint is not what the stage needs.
        CheckpointError: A checkpoint cannot be gone on from; says which can.
        UsageError: Another run's checkpoints are in the folder.
    """
    rank, world_size = rank_and_world_size()
    if lr is not None:
        config = replace(config, optim=replace(config.optim, lr=lr))
    batches = MicroBatches(
        config.data, max_tokens=config.model.max_tokens, seed=config.seed, rank=rank, world_size=world_size
    )
    torch.manual_seed(config.seed)
    module = ByteModel(config.model)
    if init is not None:
        Checkpointer(init).load(_chosen(init), model=module)
    engine = Engine(config, module)
    engine.prepare_optimizer()
    checkpointer = Checkpointer(out / config.stage, keep=KEEP) if out is not None else None
    if resume is True and out is None:
        raise ConfigError("--resume without a path goes on from the checkpoints in --out, which was not given.")
    if resume:
        source = out / config.stage if resume is True and out is not None else Path(resume)
        engine.resume(checkpointer or Checkpointer(source.parent), _chosen(source), lr=lr)
    while engine.step < config.num_steps:
        first = engine.step * config.accumulation
        for number in range(first, first + config.accumulation):
            engine.backward_step(*engine.forward_step(batches[number]))
        result = engine.optimizer_step()
        is_end = engine.step == config.num_steps
        if rank == 0 and (engine.step % LOG_EVERY == 0 or engine.step == 1 or is_end):
            tell(_line(engine, result))
        if checkpointer is not None and (engine.step % SAVE_EVERY == 0 or is_end):
            engine.save(checkpointer, loss=float(result.loss))
    return engine


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(prog="python -m recipes.sft.train", description=__doc__.partition("\n")[0])
    parser.add_argument("--stage", choices=stages(), required=True)
    parser.add_argument("--init", type=Path, metavar="PATH", help="begin from the weights of another stage")
    parser.add_argument(
        "--resume",
        type=Path,
        metavar="PATH",
        nargs="?",
        const=True,
        help="go on from a checkpoint of this stage; without PATH from the right one in --out",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for checkpoints; by default none is written")
    parser.add_argument("--lr", type=float, help="peak learning rate; by default the stage's, or the checkpoint's")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a model as small as this is faster so, and two ranks do not fight for cores
    is_rank_of_several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_rank_of_several:
        dist.init_process_group("gloo")
    try:
        train(read_stage(options.stage), init=options.init, resume=options.resume, out=options.out, lr=options.lr)
    except (ConfigError, trimtab.TrimtabError) as error:
        sys.exit(f"{error}")
    finally:
        if is_rank_of_several:
            dist.destroy_process_group()


def _line(engine: Engine, result: trimtab.WindowResult) -> str:
    lr = engine.optimizer.param_groups[0]["lr"]
    skipped = f"  skipped so far {engine.num_skipped}" if engine.num_skipped else ""
    return f"step {engine.step:3d}  loss {result.loss:.4f}  tokens {result.num_tokens:5d}  next lr {lr:.2e}{skipped}"


def _chosen(path: Path) -> CheckpointInfo | Path:
    """A checkpoint that was named, or the one to go on from in a folder: the newest that is whole and complete."""
    return path if path.name.startswith("step_") else Checkpointer(path).pick()


if __name__ == "__main__":
    main()
