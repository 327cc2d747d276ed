"""Checkpoints: save them whole, pick the right one, go on from it with the learning rate that was asked for.

    checkpoints = Checkpointer("runs/a", keep=5)
    checkpoints.save(step, model=model, optimizer=optimizer, scheduler=scheduler, loss=loss)
    resumed = checkpoints.load(checkpoints.pick(), model=model, optimizer=optimizer, scheduler=scheduler)

A facade of `trimtab.torch` and `trimtab.resume`; importing it loads torch.
"""

from trimtab.errors import CheckpointError
from trimtab.resume.info import CheckpointInfo, VerifyReport
from trimtab.resume.select import pick
from trimtab.resume.verify import verify
from trimtab.torch.checkpoint_settings import saved_config
from trimtab.torch.checkpointer import Checkpointer, Resumed
from trimtab.torch.lr import rebase_lr
from trimtab.torch.probe import generation_probe
from trimtab.torch.rng import kept_rng
from trimtab.torch.round_trip import RoundTrip, round_trip

__all__ = [
    "CheckpointError",
    "CheckpointInfo",
    "Checkpointer",
    "Resumed",
    "RoundTrip",
    "VerifyReport",
    "generation_probe",
    "kept_rng",
    "pick",
    "rebase_lr",
    "round_trip",
    "saved_config",
    "verify",
]
