"""What each of two real ranks does for `test_two_processes.py`: a training whose row losses are known beforehand."""

import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab import GuardConfig, Run
from trimtab.errors import UsageError

NUM_MICROS = 2
NUM_ROWS = 3
"""Rows in a micro-batch of one rank."""


class CountCollectives(TorchDispatchMode):
    """Counts the collectives that are called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.number += func.namespace in ("c10d", "_c10d_functional")
        return func(*args, **(kwargs or {}))


class Scale(torch.nn.Module):
    """Multiplies losses by a weight that stays 1, so that they are recorded as they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(()))

    def forward(self, losses: torch.Tensor) -> torch.Tensor:
        return losses * self.weight


def rows_of(step: int, micro: int, rank: int) -> list[int]:
    """The rows of one micro-batch of one rank; no row comes twice."""
    first = ((step * NUM_MICROS + micro) * 2 + rank) * NUM_ROWS
    return list(range(first, first + NUM_ROWS))


def loss_of(row: int, planted: int | None) -> float:
    """The mean loss of a row, a multiple of 1 / 128, so that float32 holds it and its sums."""
    return 64.0 if row == planted else 2.0 + (row * 37 % 16) / 128


def tokens_of(row: int) -> int:
    """Its supervised tokens."""
    return 16 + row % 5


def one_step(run: Run, model: torch.nn.Module, step: int, *, planted: int | None) -> None:
    """Two micro-batches and a step."""
    for micro in range(NUM_MICROS):
        rows = rows_of(step, micro, dist.get_rank())
        losses = model(torch.tensor([loss_of(row, planted) for row in rows]))
        tokens = [tokens_of(row) for row in rows]
        run.micro_batch(losses, per="sample", rows=rows, tokens=tokens).backward()
    run.step()


def made_run(out: str, model: torch.nn.Module, **settings: Any) -> Run:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return Run(out, model=model, optimizer=optimizer, accumulation=NUM_MICROS, **settings)


def train(
    out: str,
    last: int,
    first: int = 1,
    planted: int | None = None,
    run_id: str | None = None,
    recorded: tuple[int, ...] = (0, 1),
    fails_at: int | None = None,
    begins_first: int | None = None,
    guarded: bool = False,
) -> dict[str, Any]:
    """Trains without a reduction of its own.

    Args:
        out: Where the run is recorded.
        last: Its last step.
        first: Its first.
        planted: The row whose loss is out of line.
        run_id: The run to continue.
        recorded: Ranks that record.
        fails_at: The step at which rank 1 raises.
        begins_first: The rank that is at its fourth step when the other one begins.
        guarded: Whether a robust guard judges the micro-batches.
    """
    rank = dist.get_rank()
    model = Scale()
    guard = GuardConfig(rule="robust") if guarded else None
    run = made_run(out, model, run_id=run_id, record=rank in recorded, guard=guard)
    with CountCollectives() as counted:
        try:
            with run:
                for step in range(first, last + 1):
                    run._core.begin_step(step)
                    if begins_first is not None and step == (4 if rank == begins_first else 1):
                        with_the_other = dist.new_group([0, 1])
                        dist.barrier(with_the_other)
                        counted.number = 0
                    if rank == 1 and step == fails_at:
                        raise ArithmeticError("planted")
                    one_step(run, model, step, planted=planted)
                run.evaluation(0.25, seconds=1.5 + rank)
        except ArithmeticError:
            pass
    return {"folder": str(run.folder) if run.folder else None, "run_id": run.run_id, "collectives": counted.number}


def train_behind_a_run_of_rank_0_alone(out: str, trains: bool) -> dict[str, Any]:
    """Two runs alike, the first on rank 0 alone: it measures, or trains and ends; then both train under DDP."""
    if dist.get_rank() == 0:
        model = Scale()
        with made_run(out, model) as alone:
            alone.evaluation(1.0)
            if trains:
                one_step(alone, model, 1, planted=None)
    joined = DistributedDataParallel(Scale())
    with made_run(out, joined) as run:
        for step in range(1, 6):
            one_step(run, joined, step, planted=None)
    return {"folder": str(run.folder)}


def train_with_uneven_inputs(out: str) -> str:
    """A guard within `Join`, where rank 1 has a step less."""
    model = DistributedDataParallel(Scale())
    run = made_run(out, model, guard=GuardConfig(rule="robust"))
    try:
        with run, Join([model]):
            for step in range(1, 4 - dist.get_rank()):
                one_step(run, model, step, planted=None)
    except UsageError as error:
        return str(error)
    return "nothing was refused"


def main() -> None:
    """A run under DDP whose rank 1 is killed in the middle: `rank port out run_id die_after last first`."""
    rank, port, out, run_id, die_after, last, first = (*sys.argv[1:5], *sys.argv[5:])[:7]
    os.environ |= {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    dist.init_process_group("gloo")
    model = DistributedDataParallel(Scale())
    with made_run(out, model, run_id=run_id) as run:
        for step in range(int(first), int(last) + 1):
            run._core.begin_step(step)
            one_step(run, model, step, planted=None)
            if step == int(die_after):
                run._core._recording.flush(timeout_s=30)
                dist.barrier()
                if rank == "1":
                    os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
