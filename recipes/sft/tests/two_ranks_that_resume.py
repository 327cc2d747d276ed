"""Run by torchrun: trains a stage on these ranks, resumes it from two of its checkpoints, and compares every bit."""

import sys
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

import recipes.sft.train
from recipes.sft.config import ModelConfig, read_stage

recipes.sft.train.SAVE_EVERY = 1
recipes.sft.train.KEEP = 0


def main(out):
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    sft = read_stage("sft")
    config = replace(
        sft,
        num_steps=10,
        accumulation=2,
        data=replace(sft.data, package="email", batch_size=2),
        model=ModelConfig(dim=16, num_layers=1, num_heads=2, max_tokens=96),
    )
    whole = recipes.sft.train.train(config, out=out, tell=lambda line: None)
    for step in (3, 7):
        resumed = recipes.sft.train.train(config, resume=out / "sft" / f"step_{step}", tell=lambda line: None)
        pairs = zip(resumed.model.parameters(), whole.model.parameters(), strict=True)
        same = all(torch.equal(one, other) for one, other in pairs)
        same &= resumed.scheduler.state_dict() == whole.scheduler.state_dict()
        sys.stdout.write(f"rank {dist.get_rank()}: step {step} {'same' if same else 'differs'}\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
