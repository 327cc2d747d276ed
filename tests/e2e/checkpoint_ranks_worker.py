"""What each of two real ranks does for `test_checkpoint_two_processes.py`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimtab import TrimtabError
from trimtab.checkpoint import Checkpointer
from trimtab.resume.disk_changes import Disk


class FullOn(Disk):
    """A disk that is full for one rank."""

    def __init__(self, rank: int) -> None:
        self._is_full = dist.get_rank() == rank

    def write(self, fd: int, data: memoryview) -> int:
        if self._is_full:
            raise OSError(28, "No space left on device")
        return super().write(fd, data)


class Training:
    """A DDP model with dropout, trained on rows of its rank."""

    def __init__(self, seed: int = 0, *, wraps: bool = True) -> None:
        torch.manual_seed(seed)
        self.bare = nn.Sequential(nn.Linear(3, 8), nn.Dropout(0.5), nn.Linear(8, 1)).double()
        self.model: nn.Module = DistributedDataParallel(self.bare) if wraps else self.bare
        self.optimizer = torch.optim.AdamW(self.bare.parameters(), lr=0.01)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        torch.manual_seed(1000 * seed + dist.get_rank())

    def train(self, num_steps: int) -> list[float]:
        losses = []
        for _ in range(num_steps):
            loss = self.model(torch.randn(4, 3, dtype=torch.float64)).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            losses.append(float(loss.detach()))
        return losses

    @property
    def parts(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    @property
    def bits(self) -> list[Any]:
        moments = [value for held in self.optimizer.state_dict()["state"].values() for value in held.values()]
        return [tensor.tolist() for tensor in (*self.bare.state_dict().values(), *moments)]


def go_on(folder: str, wait: bool) -> dict[str, Any]:
    """Saves in the middle, goes on, and goes on once more from the checkpoint."""
    rank = dist.get_rank()
    training = Training()
    training.train(3)
    checkpoints = Checkpointer(folder)
    checkpoints.save(3, **training.parts, loss=0.5, data={"rows": 10 + rank}, wait=wait)
    losses = training.train(3)
    info = checkpoints.wait() if not wait else checkpoints.pick()
    assert info is not None
    resumed = Training(seed=5)
    result = Checkpointer(folder).load(info, **resumed.parts)
    again = resumed.train(3)
    return {
        "same": [losses == again, training.bits == resumed.bits],
        "losses": losses,
        "info": info.to_dict(),
        "result": [result.step, result.loss, result.data, list(result.data_of_ranks), list(result.remarks)],
        "run_id": checkpoints.run_id,
    }


def said(call: Any) -> Any:
    """What a call gives or raises."""
    try:
        info = call()
        return None if info is None else [str(info.path), info.step]
    except TrimtabError as error:
        return f"{type(error).__name__}: {error}"


def save_on_a_full_disk(folder: str, full: int, on_failure: str, wait: bool) -> list[Any]:
    """One rank has no room; then both save once more with room."""
    training = Training()
    checkpoints = Checkpointer(folder, run_id="a", on_failure=on_failure, disk=FullOn(full))  # type: ignore[arg-type]

    def save() -> Any:
        info = checkpoints.save(1, **training.parts, wait=wait)
        return info if wait else checkpoints.wait()

    first = said(save)
    there = sorted(path.name for path in Path(folder).iterdir())
    later = Checkpointer(folder, run_id="a")
    return [first, there, said(lambda: later.save(2, **training.parts)), said(later.pick)]


def save_what_differs(folder: str, what: str) -> list[Any]:
    """The ranks disagree on what they save, or one of them gives what cannot be saved."""
    rank = dist.get_rank()
    training = Training()
    more: dict[str, Any] = {}
    step = 3
    if what == "step":
        step += rank
    elif what == "parts" and rank:
        more["extra"] = 1
    elif what == "opaque" and rank:
        more["extra"] = object()
    checkpoints = Checkpointer(folder)
    return [
        said(lambda: checkpoints.save(step, **training.parts, **more)),
        said(lambda: checkpoints.save(9, **training.parts)),
    ]


def pick_and_load(folder: str, seen_by: int | None = None) -> list[Any]:
    """Where one rank alone sees the folder, it decides."""
    own = folder if seen_by in (None, dist.get_rank()) else f"{folder}-that-is-not-there"
    checkpoints = Checkpointer(own)
    picked = said(checkpoints.pick)
    loaded = said(lambda: checkpoints.load(checkpoints.pick(), **Training().parts))
    return [checkpoints.has_checkpoints(), picked, loaded]


def load_with_a_rank_of_another_model(folder: str) -> list[Any]:
    """One rank has built another model: neither is changed."""
    training = Training(seed=4)
    parts = training.parts
    if dist.get_rank():
        model = nn.Linear(5, 5)
        optimizer = torch.optim.AdamW(model.parameters())
        parts = {
            "model": model,
            "optimizer": optimizer,
            "scheduler": torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        }
    before = training.bits, torch.get_rng_state().tolist()
    checkpoints = Checkpointer(folder)
    message = said(lambda: checkpoints.load(checkpoints.pick(), **parts))
    return [message, before == (training.bits, torch.get_rng_state().tolist())]


def load_what_differs(folder: str, what: str) -> list[Any]:
    """The ranks disagree on what they load, in the middle of a training."""
    rank = dist.get_rank()
    checkpoints = Checkpointer(folder)
    for step in (3, 4):
        checkpoints.save(step, **Training().parts, data={"rows": step})
    training = Training(seed=4)
    training.train(1)
    before = training.bits, torch.get_rng_state().tolist()
    parts: dict[str, Any] = training.parts
    path = Path(folder) / "step_4"
    if what == "path" and rank:
        path = Path(folder) / "step_3"
    elif what == "optimizer" and rank:
        parts = {"model": training.model}
    elif what == "lr" and not rank:
        parts["lr"] = 5e-3
    elif what == "rate" and rank:
        parts["lr"] = -1.0
    message = said(lambda: checkpoints.load(path, **parts))
    return [message, before == (training.bits, torch.get_rng_state().tolist())]


class Holder:
    """A loader, or a run, that may refuse its state."""

    def __init__(self, refuses: bool) -> None:
        self._refuses = refuses
        self.state = {"rows": 0}

    def state_dict(self) -> dict[str, int]:
        return self.state

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self._refuses:
            raise RuntimeError("planted")
        self.state = dict(state)


def load_what_one_rank_refuses(folder: str, what: str) -> list[Any]:
    """Somebody else's code on rank 1 refuses the state when it is given it."""

    def refuse(*_: Any) -> None:
        raise RuntimeError("planted")

    refuses = dist.get_rank() == 1
    saved = Training()
    saved.train(2)
    Checkpointer(folder).save(2, **saved.parts, run=Holder(refuses=False), data={"rows": 2})
    training = Training(seed=4)
    training.train(1)
    run, data = Holder(refuses and what == "run"), Holder(refuses and what == "data")
    if refuses and what == "optimizer":
        training.optimizer.register_load_state_dict_pre_hook(refuse)
    elif refuses and what == "model":
        training.bare[2].register_load_state_dict_post_hook(refuse)
    before = training.bits, training.scheduler.state_dict(), torch.get_rng_state().tolist(), run.state
    checkpoints = Checkpointer(folder)
    message = said(lambda: checkpoints.load(checkpoints.pick(), **training.parts, run=run, data=data))
    after = training.bits, training.scheduler.state_dict(), torch.get_rng_state().tolist(), run.state
    return [message, before == after]


def save_in_groups_of_one(folder: str) -> list[Any]:
    """Each rank alone in its group, in a folder of its own."""
    rank = dist.get_rank()
    groups = [dist.new_group([other]) for other in range(2)]
    training = Training(wraps=False)
    checkpoints = Checkpointer(Path(folder) / str(rank), process_group=groups[rank])
    return [said(lambda: checkpoints.save(rank, **training.parts))]


def main() -> None:
    """A process that ends while a thread saves: `folder`."""
    import sys

    model = nn.Linear(1000, 1000)
    Checkpointer(sys.argv[1]).save(1, model=model, optimizer=torch.optim.AdamW(model.parameters()), wait=False)


if __name__ == "__main__":
    assert "RANK" not in os.environ
    main()
