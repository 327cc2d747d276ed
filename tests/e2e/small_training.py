"""A small training whose every step is known: what is loaded from a checkpoint of it is compared bit for bit.

Its random numbers come from Python, NumPy and torch, and each decides over the weights: a generator that was not put
back shows in the next step.
"""

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import nn

from trimtab.checkpoint import Checkpointer, CheckpointInfo


class Training:
    """Model, optimizer and schedule, from the first step or from a checkpoint.

    Attributes:
        step: Steps behind it.
        loss: That of the last one.
    """

    def __init__(self) -> None:
        random.seed(1)
        np.random.seed(2)
        torch.manual_seed(3)
        self.model = nn.Sequential(nn.Linear(6, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, 1000)
        self.step = 0
        self.loss = float("nan")

    def advance(self, num_steps: int = 1) -> "Training":
        """Trains on."""
        for _ in range(num_steps):
            scale = random.random() + float(np.random.random())
            loss = (self.model(torch.randn(3, 6)) * scale).square().mean()
            loss.backward()
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
            self.step += 1
            self.loss = loss.item()
        return self

    def save(self, checkpoints: Checkpointer, **settings: Any) -> CheckpointInfo | None:
        """Saves it, its step also as the data position."""
        return checkpoints.save(
            self.step,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            loss=self.loss,
            data={"row": self.step * 3},
            **settings,
        )

    @classmethod
    def resume(cls, checkpoints: Checkpointer, at: Any = None) -> "Training":
        """Goes on from what `pick` says, or from a path."""
        training = cls()
        training.advance(1)  # what is loaded replaces something
        parts = {"model": training.model, "optimizer": training.optimizer, "scheduler": training.scheduler}
        resumed = checkpoints.load(checkpoints.pick() if at is None else at, **parts)
        assert resumed.data == {"row": resumed.step * 3}
        training.step, training.loss = resumed.step, resumed.loss
        return training

    def fingerprint(self) -> str:
        """Of all that decides over the next step; draws no random number."""
        digest = hashlib.sha256()
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "rng": [random.getstate(), np.random.get_state(), torch.get_rng_state()],
            "step": self.step,
            "loss": self.loss,
        }
        _add(digest, state)
        return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    if isinstance(value, torch.Tensor):
        value = value.numpy()
    if isinstance(value, np.ndarray):
        digest.update(f"{value.dtype} {value.shape}".encode() + value.tobytes())
    elif isinstance(value, dict):
        for key in value:
            digest.update(repr(key).encode())
            _add(digest, value[key])
    elif isinstance(value, (list, tuple)):
        digest.update(f"[{len(value)}".encode())
        for entry in value:
            _add(digest, entry)
    else:
        digest.update(repr(value).encode())
