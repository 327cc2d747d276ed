"""What each of two real ranks does for `test_run_router_two_ranks.py`: trains its own rows under DDP, watched."""

import importlib.util
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
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


class WithoutTrimtab:
    """A loop of one's own, behind the verbs of a run."""

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        self._model, self._optimizer = model, optimizer

    def micro_batch(self, losses: torch.Tensor, **_: Any) -> torch.Tensor:
        """The mean."""
        return losses.mean()

    def step(self) -> None:
        """Clips, steps and clears."""
        torch.nn.utils.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        self._optimizer.zero_grad()


def train_where_some_have_no_watch(ranks_with_watch: list[int], out: str | None, makes_run: bool) -> dict[str, Any]:
    """Trains over two reports; a rank without a watch has a run without one, or none at all."""
    rank = dist.get_rank()
    model, optimizer = moe.new_training()
    wrapped = DistributedDataParallel(model)
    watched = moe.settings(wrapped) if rank in ranks_with_watch else {}
    says = Lines()
    logging.getLogger("trimtab").addHandler(says)
    folder = None
    try:
        if watched or makes_run:
            settings = {"record": out is not None, "model": wrapped, "optimizer": optimizer, "max_grad_norm": 1.0}
            with Run(out, **settings, **watched) as run:
                moe.train(run, wrapped, range(1, 21), rank=rank)
            folder = str(run.folder)
        else:
            moe.train(WithoutTrimtab(wrapped, optimizer), wrapped, range(1, 21), rank=rank)
    finally:
        logging.getLogger("trimtab").removeHandler(says)
    return {"said": says.lines, "folder": folder, "weights": [data.hex() for data in moe.weights(model)]}


@contextmanager
def patience_of(seconds: float) -> Iterator[None]:
    """Waits so long for the other ranks at a first report."""
    consent = sys.modules["trimtab.torch.consent"]
    patience, consent.PATIENCE_S = consent.PATIENCE_S, seconds
    try:
        yield
    finally:
        consent.PATIENCE_S = patience


def train_after_a_run_that_was_left_open(out: str) -> dict[str, Any]:
    """Rank 0 trains two steps alone, watched, and never closes; then both train together."""
    left = None
    if dist.get_rank() == 0:
        model, optimizer = moe.new_training()
        left = Run(None, record=False, model=model, optimizer=optimizer, max_grad_norm=1.0, **moe.settings(model))
        moe.train(left, model, range(1, 3))
    answer = train(out, num_steps=10, collapse_at=0, watch=True)
    if left is not None:
        left.close()
    return answer


def train_where_the_store_is_gone() -> dict[str, Any]:
    """As after the host of the store has died: each question to it raises."""

    class Gone:
        def __getattr__(self, name: str) -> Any:
            raise dist.DistNetworkError("connection reset by peer")

    private = dist.distributed_c10d._get_default_store
    dist.distributed_c10d._get_default_store = Gone
    try:
        return train_where_some_have_no_watch([0, 1], None, makes_run=True)
    finally:
        dist.distributed_c10d._get_default_store = private


def train_without_a_run_on_rank_1() -> dict[str, Any]:
    with patience_of(0.5):
        return train_where_some_have_no_watch([0], None, makes_run=False)


def train_alone_before(out: str) -> dict[str, Any]:
    """Rank 0 trains and ends a run of its own, without a watch; then both train one together, watched."""
    if dist.get_rank() == 0:
        model, optimizer = moe.new_training()
        with Run(out, model=model, optimizer=optimizer) as run:
            moe.train(run, model, range(1, 3))
    dist.barrier()
    return train(out, num_steps=10, collapse_at=0, watch=True)


def refusal_of_unlike_settings() -> str:
    """What a rank hears that watches at other steps than the other."""
    model, optimizer = moe.new_training()
    wrapped = DistributedDataParallel(model)
    watched = moe.settings(wrapped, report_every=10 + dist.get_rank())
    run = Run(None, record=False, model=wrapped, optimizer=optimizer, **watched)
    try:
        moe.train(run, wrapped, range(1, 6))
    except ValueError as error:
        return str(error)
    finally:
        run.close()
    return "trained"


def train_in_a_group_of_its_own(out: str) -> list[dict[str, Any]]:
    """Trains in a group that this rank is alone in, with routers that the watch finds; gives the reports in its log.

    Both ranks report at the same steps, so a sum over the wrong group would be a wrong figure and no hang. Rank 1 has
    no log: one of several groups records.
    """
    groups = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    model, optimizer = moe.new_training()
    # What a router is found by: the name of its class, and how many experts it chooses.
    model.gate.__class__ = type("DbrxRouter", (torch.nn.Linear,), {})
    model.gate.top_k = 1
    watch = WatchConfig(report_every=10, throughput_fraction=1e-9, host_memory_floor_bytes=1)
    with Run(
        f"{out}/{dist.get_rank()}",
        model=model,
        optimizer=optimizer,
        watch=watch,
        process_group=groups[dist.get_rank()],
    ) as run:
        moe.train(run, model, range(1, 21), rank=dist.get_rank())
    return [facts for kind, _, facts in moe.events(run.folder) if kind == "router"] if run.folder is not None else []
