"""What Trimtab adds to each checkpoint that a Trainer saves: the run's state while it is written, a manifest after.

    begin                      what is not finite from the start, once a training
    hook                       save_model: the state goes in before the last files of the trainer's own
    describe                   on_save, on every rank: the manifest, once all of them have written

Enters: a trainer, and its run. Leaves: two files in each checkpoint, or a line for each that the disk refused.
Invariant: nothing of the trainer's own files is changed, and a save that went well stays one.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import torch.distributed as dist

from trimtab.integrations.hf_checkpoint import save_state
from trimtab.integrations.hf_manifest import Saved, write_manifest
from trimtab.notices import warn_once
from trimtab.resume.manifest import Manifest
from trimtab.run import RunCore
from trimtab.text import plain
from trimtab.torch.health import (
    Nonfinite,
    find_nonfinite,
    merged,
    nonfinite_from_state,
    nonfinite_to_state,
    worse_than,
)
from trimtab.torch.ranks import Ranks
from trimtab.torch.sharding import is_shard
from trimtab.values import json_number

_BASELINE: Final = "nonfinite_at_begin"
"""Fact of a manifest: entries of weights and moments that were not finite when the run began."""


class TrainerSaving:
    """The checkpoints of one trainer."""

    def __init__(self, trainer: Any, *, ranks: Ranks) -> None:
        """Knows the trainer, and the processes that save with it."""
        self._trainer = trainer
        self._ranks = ranks
        self._folder: Path | None = None
        self._baseline: dict[str, Nonfinite] = {}

    def begin(self, resumed: Manifest | None) -> None:
        """Notes what is not finite when the run begins; waits for the device.

        Args:
            resumed: What the checkpoint that it goes on from says of itself; None: nothing, or it begins here.

        Raises:
            CheckpointError: Its list of what was not finite is none.
        """
        if resumed is None:
            self._baseline = self._nonfinite()
        else:
            self._baseline = nonfinite_from_state(resumed.facts.get(_BASELINE, {}), where="trimtab_manifest.json")

    def hook(self, state_of_run: Callable[[], Mapping[str, Any]]) -> None:
        """Makes the trainer's checkpoints hold what `state_of_run` gives, where a run has any."""
        trainer, save_model = self._trainer, self._trainer.save_model

        @functools.wraps(save_model)
        def saved_with_state(*args: Any, **kwargs: Any) -> None:
            folder = Path((args[0] if args else kwargs.get("output_dir")) or "")
            is_checkpoint = kwargs.get("_internal_call") and folder.name == f"checkpoint-{trainer.state.global_step}"
            if not trainer.is_in_train or not is_checkpoint:  # the user's own, of some ranks perhaps
                save_model(*args, **kwargs)
                return
            state = state_of_run()  # what it may raise leaves no half of a checkpoint
            save_model(*args, **kwargs)
            self._folder = folder
            if trainer.args.should_save and (state["guard"] is not None or state["run_id"] is not None):
                save_state(folder, state)

        trainer.save_model = saved_with_state

    def describe(self, core: RunCore) -> None:
        """Writes the manifest of the checkpoint that was just saved, and tells the log of it; called on every rank.

        Waits for the device and for all ranks, and reads on one rank of each disk what was written there.

        Args:
            core: The run that saved it.
        """
        trainer = self._trainer
        step: int = trainer.state.global_step
        name = f"checkpoint-{step}"
        folder = self._folder if self._folder is not None and self._folder.name == name else None
        folder = folder or Path(trainer.args.output_dir, name)
        because = self._unhealthy_because()
        trainer.accelerator.wait_for_everyone()  # a rank may still be writing its random numbers
        facts: dict[str, Any] = {"folder": name}
        if trainer.args.should_save and self._is_there(folder):
            manifest = write_manifest(folder, self._saved(core, step=step, because=because))
            facts["healthy"] = not because
            facts["verifiable"] = manifest is not None
        if because and core.is_first_rank:
            warn_once(
                "hf",
                f"{plain(str(folder))} is not healthy: {'; '.join(because)}. A plain resume refuses it; `trimtab ckpt "
                "pick --healthy` names the last one before. Said once.",
                cause="unhealthy checkpoint",
            )
        core.event("checkpoint", facts, step=step)

    def _is_there(self, folder: Path) -> bool:
        """Whether the checkpoint still is; transformers' own rotation comes before anybody hears of the save."""
        if folder.is_dir():
            return True
        warn_once(
            "hf",
            f"transformers deleted {plain(str(folder))} as soon as it was saved: to save_total_limit a folder beside "
            "it is newer, by its time or its number. Train into an output_dir of its own. Said once.",
            cause="deleted as saved",
        )
        return False

    def _saved(self, core: RunCore, *, step: int, because: tuple[str, ...]) -> Saved:
        trainer = self._trainer
        state = trainer.state
        logged = self._logged()
        loss = logged.get("loss")
        has = {"model", "optimizer", "step", "rng", "data"}
        has |= {"scheduler"} if trainer.lr_scheduler is not None and not trainer.is_deepspeed_enabled else set()
        has |= {"scaler"} if trainer.accelerator.scaler is not None else set()
        has |= {"guard"} if core.guard is not None else set()
        has |= {"recorder"} if core.run_id is not None else set()
        has |= {"loss"} if loss is not None else set()
        has |= {"best_eval"} if state.best_metric is not None else set()
        facts: dict[str, Any] = {"loss_step": logged.get("step"), "epoch": state.epoch}
        if state.best_metric is not None:
            facts |= {"best_metric": json_number(state.best_metric), "best_global_step": state.best_global_step}
        if self._baseline:
            facts[_BASELINE] = nonfinite_to_state(self._baseline)
        if not self._looks_inside:
            facts["health"] = "of the logged loss alone"
        return Saved(
            step=step,
            run_id=core.run_id,
            world_size=trainer.args.world_size,
            has=frozenset(has),
            unhealthy_because=because,
            loss=None if loss is None else float(loss),
            lr=tuple(float(group["lr"]) for group in trainer.optimizer.param_groups),
            facts=facts,
        )

    # Health.

    @property
    def _looks_inside(self) -> bool:
        """Whether weights and moments are tensors of this process, or shards that know their place."""
        accelerator = self._trainer.accelerator
        kind = accelerator.distributed_type.value
        return kind == "NO" or kind.startswith("MULTI_") or bool(kind == "FSDP" and accelerator.is_fsdp2)

    def _unhealthy_because(self) -> tuple[str, ...]:
        if self._looks_inside:
            return worse_than(self._baseline, self._nonfinite())
        loss = self._logged().get("loss", 0.0)
        return () if math.isfinite(loss) else (f"the logged loss is {loss}",)

    def _logged(self) -> Mapping[str, Any]:
        """The last entry of the trainer's log that has a loss; an empty one before the first."""
        entries: list[dict[str, Any]] = self._trainer.state.log_history
        return next((entry for entry in reversed(entries) if "loss" in entry), {})

    def _nonfinite(self) -> dict[str, Nonfinite]:
        """What is not finite now: of all ranks where they hold shards, else of this one, whose weights are theirs."""
        trainer = self._trainer
        if not self._looks_inside:
            return {}
        if not any(is_shard(parameter) for parameter in trainer.model.parameters()):
            return find_nonfinite(trainer.model, trainer.optimizer) if trainer.args.should_save else {}
        told: list[Any] = [None] * self._ranks.world_size
        dist.all_gather_object(told, find_nonfinite(trainer.model, trainer.optimizer), group=self._ranks.group)
        return merged(told)
