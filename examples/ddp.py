"""DDP in a loop of one's own: a garbage row on one rank is left out on both, and the log knows which row it was.

    .venv/bin/torchrun --nproc-per-node 2 examples/ddp.py        # from a clone; `make demo` has made .venv
    .venv/bin/trimtab rewind --data examples.ddp:make_rows

Offline, on the CPU, in some seconds: a small model of bytes, and sentences of which one was replaced by random bytes.
Backward runs on every rank whatever the verdict: the loop need not know of a skip.
"""

import contextlib
import os
import random
import sys
import tempfile
import zlib

try:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import trimtab
except ModuleNotFoundError as error:
    sys.exit(f"{error}: this example needs PyTorch. From a clone: {sys.executable} -m pip install '.[torch]'")

NUM_ROWS, NUM_BYTES, PLANTED = 1600, 48, 1341
THINGS = ["the river", "a small boat", "the old mill", "our neighbour", "the morning ferry", "a flock of geese"]


def make_rows() -> list[str]:
    """The dataset, a token a character; `rewind --data` looks its rows up in it."""
    dice = random.Random(7)
    rows = [f"{dice.choice(THINGS)} passes {dice.choice(THINGS)}.".ljust(NUM_BYTES) for _ in range(NUM_ROWS)]
    rows[PLANTED] = dice.randbytes(NUM_BYTES).decode("latin-1")
    return rows


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Conv1d(64, 64, 8)

    def forward(self, h: torch.Tensor) -> torch.Tensor:
        return h + torch.relu(self.mix(F.pad(h, (7, 0))))  # a byte sees those before it


def main() -> None:
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv1d(256, 64, 1), Block(), Block(), nn.Conv1d(64, 256, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rows = make_rows()
    out = f"{tempfile.gettempdir()}/trimtab-ddp-{os.getppid()}"  # the same folder on every rank
    settings = dict(accumulation=2, max_grad_norm=1.0, guard=trimtab.GuardConfig(rule="robust"))
    with trimtab.Run(out, model=model, optimizer=optimizer, dataset=rows, **settings) as run:
        for micro, first in enumerate(range(4 * rank, NUM_ROWS, 4 * world_size)):
            numbers, is_last = range(first, first + 4), micro % 2 == 1
            tokens = torch.tensor([list(rows[row].encode("latin-1")) for row in numbers])
            x = F.one_hot(tokens[:, :-1], 256).float().transpose(1, 2)
            with contextlib.nullcontext() if is_last else model.no_sync():
                losses = F.cross_entropy(model(x), tokens[:, 1:], reduction="none")
                run.micro_batch(losses, rows=numbers).backward()
            if run.window_complete:
                outcome = run.step()
                if rank == 0 and outcome.num_skipped_micros:
                    print(f"Left out: {outcome.num_skipped_micros} of 2 micro-batches; row {PLANTED} was planted")
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    print(f"Rank {rank} ends with weights {zlib.crc32(weights.numpy()):08x}")
    dist.destroy_process_group()


if __name__ == "__main__":
    if not dist.is_torchelastic_launched():
        sys.exit(f"Two processes train here: torchrun --nproc-per-node 2 {sys.argv[0]}")
    main()
