"""What each of two real ranks does for `test_run_router_two_ranks.py`: trains its own rows under DDP, watched."""

import importlib.util
import logging
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from trimtab import Run, WatchConfig, WatchFinding

_spec = importlib.util.spec_from_file_location("moe_of_a_run", Path(__file__).with_name("moe_of_a_run.py"))
moe = importlib.util.module_from_spec(_spec)
sys.modules["moe_of_a_run"] = moe
_spec.loader.exec_module(moe)


class Lines(logging.Handler):
    """What Trimtab says on this rank."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def train(out: str | None, num_steps: int, collapse_at: int, watch: bool) -> dict[str, Any]:
    """Trains, with a collapse before one step; says what this rank found, said and became."""
    model, optimizer = moe.new_training()
    wrapped = DistributedDataParallel(model)
    found: list[tuple[str, int]] = []

    def keep(finding: WatchFinding) -> None:
        found.append((finding.kind, finding.step))

    settings = {**moe.settings(wrapped), "on_finding": keep} if watch else {}
    says = Lines()
    logging.getLogger("trimtab").addHandler(says)
    try:
        with Run(out, record=out is not None, model=wrapped, optimizer=optimizer, max_grad_norm=1.0, **settings) as run:
            moe.train(
                run,
                wrapped,
                range(1, num_steps + 1),
                before=lambda step: moe.collapse(model) if step == collapse_at else None,
                rank=dist.get_rank(),
            )
            because = run.unhealthy_because()
    finally:
        logging.getLogger("trimtab").removeHandler(says)
    weights = [data.hex() for data in moe.weights(model)]
    folder = str(run.folder) if run.folder is not None else None
    return {"found": found, "said": says.lines, "because": because, "weights": weights, "folder": folder}


def refusal_of_unlike_settings() -> str:
    """What a rank hears that watches at other steps than the other."""
    model, optimizer = moe.new_training()
    watch = WatchConfig(report_every=10 + dist.get_rank())
    run = Run(None, record=False, model=DistributedDataParallel(model), optimizer=optimizer, watch=watch)
    try:
        moe.train(run, model, range(1, 2))
    except ValueError as error:
        return str(error)
    return "trained"
