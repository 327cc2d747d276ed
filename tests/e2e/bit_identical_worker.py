"""A training loop of one's own that can be killed anywhere and go on, for `test_bit_identical.py`; one process or DDP.

Everything that a resume could get wrong is in it: dropout and augmentation in DataLoader workers, a shuffled epoch that
is left in the middle, a schedule, moments, windows of several micro-batches, a guard that has skipped something.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from trimtab import GuardConfig, Run
from trimtab.checkpoint import Checkpointer, kept_rng

NUM_ROWS, BATCH_SIZE, ACCUMULATION = 60, 4, 2
POISONED = (7, 31)
"""Rows whose loss is out of line: the guard's history decides what becomes of their micro-batches."""


class Killed(Exception):  # noqa: N818 - what stands for SIGKILL inside of one process
    """The training ends here."""


class Rows(Dataset[Any]):
    """Rows with noise that is drawn in the worker."""

    def __len__(self) -> int:
        return NUM_ROWS

    def __getitem__(self, row: int) -> tuple[int, torch.Tensor]:
        x = torch.randn(3, generator=torch.Generator().manual_seed(row), dtype=torch.float64)
        return row, x + 0.1 * torch.randn(3, dtype=torch.float64)


@dataclass
class Settings:
    """What to train.

    Attributes:
        out: Where checkpoints, log and result go.
        num_steps: Where it ends.
        save_every: Steps between checkpoints.
        num_workers: Of the DataLoader.
        guard: Whether a guard decides.
        dies_in: The step in whose window it is killed.
        kills: Whether by SIGKILL, else by an exception.
    """

    out: str
    num_steps: int = 24
    save_every: int = 1
    num_workers: int = 0
    guard: bool = True
    dies_in: int | None = None
    kills: bool = False


def train(settings: Settings) -> dict[str, Any]:
    """Trains from the newest checkpoint, if there is one, and gives what the parameters and moments are at the end."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(0)
    bare = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.2), nn.Linear(8, 1)).double()
    model: nn.Module = DistributedDataParallel(bare) if dist.is_initialized() else bare
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.02)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.num_steps)
    torch.manual_seed(100 + rank)
    run = Run(
        Path(settings.out) / "log",
        model=model,
        optimizer=optimizer,
        accumulation=ACCUMULATION,
        max_grad_norm=1.0,
        guard=GuardConfig(rule="robust", min_history=4) if settings.guard else None,
    )
    checkpoints = Checkpointer(Path(settings.out) / "checkpoints", keep=3)
    step, position = 0, {"epoch": 0, "batches": 0}
    if checkpoints.has_checkpoints():
        resumed = checkpoints.load(checkpoints.pick(), model=model, optimizer=optimizer, scheduler=scheduler, run=run)
        assert resumed.remarks == (), resumed.remarks
        step, position = resumed.step, resumed.data
    with run:
        while step < settings.num_steps:
            for row, x in batches(position, num_workers=settings.num_workers):
                losses = 1.0 + model(x).squeeze(1).square() * where_poisoned(row)
                run.micro_batch(losses, per="sample", rows=row).backward()
                position["batches"] += 1
                if settings.dies_in == step + 1:
                    die(run, kills=settings.kills)
                if not run.window_complete:
                    continue
                loss = run.step().loss
                scheduler.step()
                step += 1
                if step % settings.save_every == 0:
                    checkpoints.save(
                        step, model=model, optimizer=optimizer, scheduler=scheduler, run=run, data=position, loss=loss
                    )
                if step == settings.num_steps:
                    break
            else:
                position["epoch"], position["batches"] = position["epoch"] + 1, 0
        num_skipped = run.num_skipped
    moments = [value for held in optimizer.state_dict()["state"].values() for value in held.values()]
    return {
        "bits": [tensor.tolist() for tensor in (*bare.state_dict().values(), *moments)],
        "random": torch.rand(3).tolist(),
        "lr": optimizer.param_groups[0]["lr"],
        "num_skipped": num_skipped,
    }


def batches(position: dict[str, int], *, num_workers: int) -> Any:
    """The rest of an epoch: its order and its workers' seeds come from a generator of its own."""
    generator = torch.Generator().manual_seed(1000 + position["epoch"])
    rows = Rows()
    sampler = None
    if dist.is_initialized():
        sampler = DistributedSampler(rows, seed=7)
        sampler.set_epoch(position["epoch"])
    loader: DataLoader[Any] = DataLoader(
        rows,
        batch_size=BATCH_SIZE,
        shuffle=sampler is None,
        sampler=sampler,
        num_workers=num_workers,
        generator=generator,
    )
    rest = iter(loader)
    with kept_rng():  # without workers the noise of the rows is drawn here
        for _ in range(position["batches"]):
            next(rest)
    return rest


def where_poisoned(row: torch.Tensor) -> torch.Tensor:
    """A thousand for a row that is out of line."""
    return torch.where(torch.isin(row, torch.tensor(POISONED)), 1e5, 1.0).double()


def die(run: Run, *, kills: bool) -> None:
    """Ends in the middle of a window, with gradients on the parameters."""
    if kills:
        if dist.is_initialized():
            dist.barrier()
        os.kill(os.getpid(), signal.SIGKILL)
    raise Killed


def at_every_step(out: str, **settings: Any) -> list[bool]:
    """Whether a training that dies in a step and goes on ends as one that does not, for each step."""
    whole = train(Settings(out=f"{out}/whole", **settings))
    same = []
    for step in range(2, Settings(out, **settings).num_steps + 1):
        folder = f"{out}/dies-in-{step}"
        with suppress(Killed):
            train(Settings(out=folder, dies_in=step, **settings))
        same.append(train(Settings(out=folder, **settings)) == whole)
    return same


def main() -> None:
    """One process, or a rank of several under the environment of torchrun: `out num_workers guard dies_in`."""
    out, num_workers, guard, dies_in = sys.argv[1:5]
    torch.set_num_threads(1)
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    result = train(
        Settings(
            out=out,
            save_every=5,
            num_workers=int(num_workers),
            guard=guard == "guard",
            dies_in=int(dies_in) or None,
            kills=True,
        )
    )
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.save(result, Path(out) / f"result-{rank}.pt")
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
