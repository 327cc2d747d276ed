"""What each of two real ranks does for `test_resume_checks_two_ranks.py`: a run that is saved, and one that goes on."""

import logging

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab import Run

NUM_ROWS = 64


def train(*, out, to, saved=None, wrong_order_on=None):
    """Trains up to a step, from a saved state or from the start; gives the state of rank 0 and what was said here."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("trimtab.resume").addHandler(handler)
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = Run(out, model=model, optimizer=optimizer, dataset=list(range(NUM_ROWS)))
    step = 0
    if saved is not None:
        run.load_state_dict(saved["run"])
        model.load_state_dict({name: torch.tensor(value) for name, value in saved["model"].items()})
        step = saved["step"]
    first = 0 if wrong_order_on == dist.get_rank() else step * 4
    while step < to:
        rows = torch.arange(first, first + 4) % NUM_ROWS // 2 * 2 + dist.get_rank()
        x = torch.sin(rows[:, None] * torch.arange(1, 5))
        losses = (model(x).squeeze(1) - 1) ** 2
        run.micro_batch(losses, per="sample", rows=rows).backward()
        run.step()
        step, first = step + 1, first + 4
    state = dict(
        step=step, run=run.state_dict(), model={name: value.tolist() for name, value in model.state_dict().items()}
    )
    run.close()
    logging.getLogger("trimtab.resume").removeHandler(handler)
    return dict(state=state, said=lines)
