"""What Trimtab adds to each checkpoint that a Trainer saves: the run's state while it is written, a manifest after.

    begin                      what is not finite from the start, once a training
    hook                       save_model: the state goes in before the last files of the trainer's own, and the
                               trainer's rotation, which comes right after, is kept from the last healthy checkpoint
    describe                   on_save, on every rank: the manifest, once all of them have written
    end                        the trainer's settings are the user's again

Enters: a trainer, and its run. Leaves: two files in each checkpoint, or a line for each that the disk refused.
Invariants: nothing of the trainer's own files is changed, and a save that went well stays one; while the model is not
healthy no checkpoint that is gets deleted.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.integrations.hf_checkpoint import save_state
from trimtab.integrations.hf_manifest import write_manifest
from trimtab.integrations.hf_resume import BASELINE, ResumeSource
from trimtab.integrations.hf_rotation import Rotation
from trimtab.notices import warn_once
from trimtab.resume.describe import Saved
from trimtab.resume.manifest import ResumedFrom
from trimtab.run import RunCore
from trimtab.text import plain
from trimtab.torch.checkpoint_ranks import RanksTogether
from trimtab.torch.health import Nonfinite, find_nonfinite, merged, nonfinite_to_state, worse_than
from trimtab.torch.sharding import is_shard
from trimtab.torch.watch_in_saves import WatchWord, look_at_memory, word_of_watch
from trimtab.values import json_number


@dataclass(frozen=True, slots=True)
class _Begun:
    """A save that the trainer has begun.

    Attributes:
        folder: The checkpoint.
        unhealthy: Why the model is not healthy; no sentence where it is.
    """

    folder: Path
    unhealthy: WatchWord


class TrainerSaving:
    """The checkpoints of one trainer."""

    def __init__(self, trainer: Any, *, ranks: RanksTogether) -> None:
        """Knows the trainer, and the processes that save with it."""
        self._trainer = trainer
        self._ranks = ranks
        self._begun: _Begun | None = None
        self._baseline: Mapping[str, Nonfinite] = {}
        self._load: ResumedFrom | None = None
        self._rotation = Rotation(trainer)
        self._watched: object = None

    def begin(self, source: ResumeSource) -> None:
        """Notes what is not finite when the run begins; waits for the device.

        Args:
            source: What it goes on with.
        """
        self.end()
        self._load = source.load
        self._baseline = self._nonfinite() if source.baseline is None else source.baseline

    def end(self) -> None:
        """Gives the trainer back the rotation that the user has set."""
        self._begun = None
        self._rotation.restore()

    def hook(self, state_of_run: Callable[[], Mapping[str, Any]], *, watched: object = None) -> None:
        """Makes the trainer's checkpoints hold what `state_of_run` gives, where a run has any.

        Args:
            state_of_run: Gives the run's state.
            watched: The run, where it has a watch: what that calls unhealthy is.
        """
        self._watched = watched
        trainer, save_model = self._trainer, self._trainer.save_model

        @functools.wraps(save_model)
        def saved_with_state(*args: Any, **kwargs: Any) -> None:
            folder = Path((args[0] if args else kwargs.get("output_dir")) or "")
            is_checkpoint = kwargs.get("_internal_call") and folder.name == f"checkpoint-{trainer.state.global_step}"
            if not trainer.is_in_train or not is_checkpoint:  # the user's own, of some ranks perhaps
                save_model(*args, **kwargs)
                return
            if self._looks_inside:
                look_at_memory(self._watched, trainer.model, trainer.optimizer)
            state = state_of_run()  # what it may raise leaves no half of a checkpoint
            unhealthy = self._unhealthy()
            self._rotation.restore()  # training_args.bin holds the limit that the user has set
            save_model(*args, **kwargs)
            self._begun = _Begun(folder, unhealthy)
            self._rotation.before_rotation(folder, healthy=not unhealthy.because)
            if trainer.args.should_save and any(state[name] is not None for name in ("guard", "watch", "run_id")):
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
        begun = self._begun
        if begun is None or begun.folder.name != name:  # a trainer of the user's own, which saves in its own way
            begun = _Begun(Path(trainer.args.output_dir, name), self._unhealthy())
        folder, because = begun.folder, begun.unhealthy.because
        trainer.accelerator.wait_for_everyone()  # a rank may still be writing its random numbers
        facts: dict[str, Any] = {"folder": name}
        if trainer.args.should_save and self._is_there(folder):
            manifest = write_manifest(folder, self._saved(core, step=step, unhealthy=begun.unhealthy))
            facts["healthy"] = not because
            facts["verifiable"] = manifest is not None
            if manifest is not None and because:
                self._rotation.after_manifest(folder, run_id=core.run_id)
        if because and core.is_first_rank:
            limit = self._rotation.limit
            kept = f" save_total_limit={limit} deletes no healthy one while that is so." if limit else ""
            warn_once(
                "hf",
                f"{plain(str(folder))} is not healthy: {'; '.join(because)}. A plain resume refuses it; `trimtab ckpt "
                f"pick --healthy` names the last one before.{kept} Said once.",
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

    def _saved(self, core: RunCore, *, step: int, unhealthy: WatchWord) -> Saved:
        trainer = self._trainer
        state = trainer.state
        logged = self._logged()
        loss = logged.get("loss")
        has = {"model", "optimizer", "step", "rng", "data"}
        has |= {"scheduler"} if trainer.lr_scheduler is not None and not trainer.is_deepspeed_enabled else set()
        has |= {"scaler"} if trainer.accelerator.scaler is not None else set()
        has |= {"guard"} if core.guard is not None else set()
        has |= {"watch"} if self._watched is not None else set()
        has |= {"recorder"} if core.run_id is not None else set()
        has |= {"loss"} if loss is not None else set()
        has |= {"best_eval"} if state.best_metric is not None else set()
        facts: dict[str, Any] = {"loss_step": logged.get("step"), "epoch": state.epoch}
        if state.best_metric is not None:
            facts |= {"best_metric": json_number(state.best_metric), "best_global_step": state.best_global_step}
        if self._baseline:
            facts[BASELINE] = nonfinite_to_state(self._baseline, as_text=True)
        if not self._looks_inside:
            facts["health"] = "of the logged loss alone"
        return Saved(
            step=step,
            run_id=core.run_id,
            world_size=trainer.args.world_size,
            has=frozenset(has),
            unhealthy_because=unhealthy.because,
            unhealthy_since=unhealthy.since,
            loss=None if loss is None else float(loss),
            resumed_from=self._load,
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

    def _unhealthy(self) -> WatchWord:
        """Why the model is not healthy."""
        watch = self._word_of_watch()
        if self._looks_inside:
            return watch._replace(because=(*worse_than(self._baseline, self._nonfinite()), *watch.because))
        loss = self._logged().get("loss", 0.0)
        return watch if math.isfinite(loss) else watch._replace(because=(f"the logged loss is {loss}", *watch.because))

    def _word_of_watch(self) -> WatchWord:
        """What the watch of rank 0 says, which judges for all of them; no rank waits where there is none."""
        if self._watched is None:
            return WatchWord()
        return self._ranks.from_first(lambda: word_of_watch(self._watched))

    def _logged(self) -> Mapping[str, Any]:
        """The last entry of the trainer's log that has a loss; an empty one before the first."""
        entries: list[dict[str, Any]] = self._trainer.state.log_history
        return next((entry for entry in reversed(entries) if "loss" in entry), {})

    def _nonfinite(self) -> dict[str, Nonfinite]:
        """What is not finite now: of all ranks where they hold shards, else of this one, whose weights are theirs."""
        trainer = self._trainer
        if not self._looks_inside:
            return {}
        if any(is_shard(parameter) for parameter in trainer.model.parameters()):
            return merged(self._ranks.of_all(lambda: find_nonfinite(trainer.model, trainer.optimizer)))
        return find_nonfinite(trainer.model, trainer.optimizer) if trainer.args.should_save else {}
