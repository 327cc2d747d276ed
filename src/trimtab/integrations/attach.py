"""`attach`: the one verb for a trainer that somebody else wrote.

Finds out which host the trainer belongs to by the package of its classes, so that no framework is imported which the
user has not imported already, and hands over to that host's file, which knows its trainers.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

from trimtab.errors import UsageError

HOSTS: Final = {"trl": "trimtab.integrations.trl", "transformers": "trimtab.integrations.hf"}
"""Package that a host's trainers come from, and the module whose `attach_to` takes them or refuses."""

if TYPE_CHECKING:
    from trimtab.guard import GuardConfig
    from trimtab.rules.watch_config import WatchConfig
    from trimtab.torch.router.watch import RouterWatch
    from trimtab.torch.run import Run
    from trimtab.watched import WatchFinding


def attach(
    trainer: Any,
    *,
    out: str | os.PathLike[str] | None = None,
    record: bool = True,
    guard: GuardConfig | None = None,
    watch: bool | WatchConfig | RouterWatch | None = None,
    row_id: str = "row_id",
    run_id: str | None = None,
    exclude: str | os.PathLike[str] | None = None,
    on_finding: Callable[[WatchFinding], object] | None = None,
    on_dropped: Literal["advance", "hold"] = "advance",
    lr_on_resume: float | None = None,
) -> Run:
    """Records a trainer's run, and keeps anomalous micro-batches out of its updates if a guard is given.

    Call it once, before `trainer.train()`, on every rank. Data order, gradients and weights stay bit-identical as long
    as the guard leaves nothing out. Among several processes (DDP, FSDP2) each rank records its own rows into the one
    log, and a guard decides for all of them, by one reduction of three numbers a micro-batch.

    Args:
        trainer: A Hugging Face `Trainer`, or TRL's `SFTTrainer`, best built inside `trimtab.keep_row_ids()`.
        out: Folder under which `trimtab/<run_id>` is written; default: the trainer's own output folder.
        record: False: no folder, no registry entry, no thread.
        guard: Settings of the guard; None: nothing is ever skipped or dropped.
        watch: True: looks after the run's health, and after the routers of a model that has any it knows; see
            docs/health.md and docs/router.md. A `WatchConfig`: likewise, by these settings. A `RouterWatch`: by its
            settings, and after the routers that it taps. It warns, and marks checkpoints as not healthy; it never stops
            a training. Pass it on every rank.
        row_id: Column with the user's own ids. Integers in an iterable dataset are its row numbers; a map-style
            dataset's rows are numbered by their index, and the id is kept beside it.
        run_id: An existing run under `out` to continue as its next attempt, or a name for a new one. None: a training
            that is resumed from a checkpoint continues the run that saved it, any other is a new one.
        exclude: A file that `trimtab rewind --drop-list FILE` wrote: its rows are left out of the training, as if the
            dataset never had them (of a stream whatever else has their content, too), and the others keep their
            numbers. `trainer.train_dataset` stays as it is.
        on_finding: Called with each `WatchFinding` at the end of a step, on rank 0 for what concerns all ranks. To end
            the training set `trainer.control.should_training_stop = True` in it. An `Exception` in it is said once, and
            not raised.
        on_dropped: What the learning rate's schedule does at a step that the guard drops (nothing in it was kept, or
            its gradient norm is not finite). "advance": it goes on, as `global_step` does. "hold": it stands still for
            that step; where the device decides, the host then waits for it once a step.
        lr_on_resume: Learning rate to go on with after `trainer.train(resume_from_checkpoint=...)`, at the same place
            of the schedule: as if `TrainingArguments(learning_rate=...)` had been this from the start. None: the saved
            one, whatever the arguments say.

    Returns:
        The run: `run.run_id`, `run.folder`, `run.event(...)`, `run.close()`.

    Raises:
        UsageError: If the trainer is of no known host, or Trimtab is attached to it already, or `watch` is no watch, or
            `exclude` is not a drop list of its dataset, or `lr_on_resume` is no rate, or a guard cannot reach the
            gradients (DeepSpeed, the first FSDP, ranks that share a micro-batch), or its schedule cannot be held.
            `trainer.train` raises it for a schedule that cannot be put at `lr_on_resume`.

    `trainer.train(resume_from_checkpoint=...)` raises `CheckpointError` for a checkpoint that is damaged or incomplete
    and, with True, for one that is not healthy, without random numbers, another run's or left behind; see
    docs/resume.md. Each checkpoint gets a manifest.

    Example:
        trainer = Trainer(model=model, args=args, train_dataset=rows)
        run = trimtab.attach(trainer, guard=trimtab.GuardConfig(rule="robust"))
        trainer.train()
    """
    packages = (kind.__module__.partition(".")[0] for kind in type(trainer).__mro__)
    module = next((HOSTS[package] for package in packages if package in HOSTS), None)
    if module is None:
        raise UsageError(
            "attach knows Hugging Face's Trainer and TRL's SFTTrainer, found "
            f"{type(trainer).__module__}.{type(trainer).__qualname__}: use "
            "trimtab.Run in a loop of your own."
        )
    host = importlib.import_module(module)
    run: Run = host.attach_to(
        trainer,
        out=out,
        record=record,
        guard=guard,
        watch=watch,
        row_id=row_id,
        run_id=run_id,
        exclude=exclude,
        on_finding=on_finding,
        on_dropped=on_dropped,
        lr_on_resume=lr_on_resume,
    )
    return run
