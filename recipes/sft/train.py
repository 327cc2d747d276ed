"""One stage of training, offline, on the CPU.

    python -m recipes.sft.train --stage sft
    torchrun --nproc-per-node 2 -m recipes.sft.train --stage sft

In goes a stage's name, out come a line every few steps and, with `--out`, checkpoints. Under torchrun each rank trains
on rows of its own. `--init` begins from another stage's weights; `--resume` goes on with an interrupted stage, guard
and all, as if it had not been interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.distributed as dist

import trimtab
from recipes.sft.config import ConfigError, StageConfig, read_stage, stages
from recipes.sft.data import MicroBatches
from recipes.sft.engine import Engine, rank_and_world_size
from recipes.sft.model import ByteModel

LOG_EVERY: Final = 10
SAVE_EVERY: Final = 20
"""Steps."""


def train(
    config: StageConfig,
    *,
    init: Path | None = None,
    resume: Path | None = None,
    out: Path | None = None,
    tell: Callable[[str], None] = print,
) -> Engine:
    """Trains one stage to its end.

    Args:
        config: The stage.
        init: A checkpoint whose weights to begin from; None: random ones.
        resume: A checkpoint of this stage to go on from.
        out: Folder for `<stage>.pt`, written every `SAVE_EVERY` steps and at the end, by rank 0; None: nothing is kept.
        tell: What to do with a line for the person who waits; called on rank 0.

    Returns:
        The engine, as it is after the last step.

    Raises:
        ConfigError: The text or a checkpoint is not what the stage needs.
    """
    rank, world_size = rank_and_world_size()
    batches = MicroBatches(
        config.data, max_tokens=config.model.max_tokens, seed=config.seed, rank=rank, world_size=world_size
    )
    torch.manual_seed(config.seed)
    module = ByteModel(config.model)
    if init is not None:
        module.load_state_dict(_read_checkpoint(init)["model"])
    engine = Engine(config, module)
    engine.prepare_optimizer()
    if resume is not None:
        state = _read_checkpoint(resume)
        if state["stage"] != config.stage:
            raise ConfigError(f"{resume}: is of stage {state['stage']!r}, not {config.stage!r}; did you mean --init?")
        engine.load_state_dict(state)
    while engine.step < config.num_steps:
        first = engine.step * config.accumulation
        for number in range(first, first + config.accumulation):
            engine.backward_step(*engine.forward_step(batches[number]))
        result = engine.optimizer_step()
        is_end = engine.step == config.num_steps
        if rank == 0 and (engine.step % LOG_EVERY == 0 or engine.step == 1 or is_end):
            tell(_line(engine, result))
        if rank == 0 and out is not None and (engine.step % SAVE_EVERY == 0 or is_end):
            _save(engine, out / f"{config.stage}.pt")
    return engine


def main(arguments: list[str] | None = None) -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(prog="python -m recipes.sft.train", description=__doc__.partition("\n")[0])
    parser.add_argument("--stage", choices=stages(), required=True)
    parser.add_argument("--init", type=Path, metavar="FILE", help="begin from the weights of another stage")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="go on from a checkpoint of this stage")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder for checkpoints; by default none is written")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)  # a model as small as this is faster so, and two ranks do not fight for cores
    is_rank_of_several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if is_rank_of_several:
        dist.init_process_group("gloo")
    try:
        train(read_stage(options.stage), init=options.init, resume=options.resume, out=options.out)
    except (ConfigError, trimtab.UsageError) as error:
        sys.exit(f"{error}")
    finally:
        if is_rank_of_several:
            dist.destroy_process_group()


def _line(engine: Engine, result: trimtab.WindowResult) -> str:
    lr = engine.optimizer.param_groups[0]["lr"]
    skipped = f"  skipped so far {engine.num_skipped}" if engine.num_skipped else ""
    return f"step {engine.step:3d}  loss {result.loss:.4f}  tokens {result.num_tokens:5d}  next lr {lr:.2e}{skipped}"


def _save(engine: Engine, path: Path) -> None:
    """Writes beside, then renames: whoever reads finds the old one or the new one, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".pt.part")
    torch.save(engine.state_dict(), beside)
    beside.replace(path)


def _read_checkpoint(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for a file that is none of its own
        raise ConfigError(f"{path}: cannot be read as a checkpoint: {error}") from error
    if not isinstance(state, dict) or not {"stage", "model", "kit"} <= state.keys():
        raise ConfigError(f"{path}: is no checkpoint of this recipe; --out writes them.")
    return state


if __name__ == "__main__":
    main()
