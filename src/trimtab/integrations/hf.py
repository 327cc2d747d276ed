"""Hugging Face `Trainer`: where its moments become the verbs of a run. Seen with transformers 5.24, accelerate 1.15.

Everything is hooked on the one trainer that was handed over, nothing on a class:

    get_train_dataloader     rows are left out of the data, and their numbers added to the batches, inside the loader
                             that the trainer built
    training_step            the numbers are taken out of the batch before the model sees it
    compute_loss             token losses come out of the trainer's own cross-entropy; the guard decides
    clip_grad_norm_          the norm before clipping
    a callback               a step begins, is about to be taken (a dropped one loses its gradients), has ended; a
                             checkpoint was saved, and gets its manifest
    save_model               a checkpoint gets the run's state, before the last files of the trainer's own
    create_scheduler         the learning rate before a checkpoint's is loaded over it
    create_optimizer         whether the trainer makes it, and by its arguments
    train                    the checkpoint that is gone on from; the end, also by an exception

As long as the guard leaves nothing out, data order, gradients and weights are those of the trainer without Trimtab,
bit for bit.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any, ClassVar, Final

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from trimtab.dataset import DatasetFacts
from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.integrations.ending import tell_findings
from trimtab.integrations.hf_data import TrainingData
from trimtab.integrations.hf_evaluations import evaluation_facts
from trimtab.integrations.hf_first_rate import tell_first_rate
from trimtab.integrations.hf_lr import LearningRate
from trimtab.integrations.hf_micros import TrainerMicros
from trimtab.integrations.hf_refusals import OnDropped, check_can_hold, check_trainer
from trimtab.integrations.hf_resume import ResumeSource, look_before_resuming
from trimtab.integrations.hf_saving import TrainerSaving
from trimtab.integrations.hf_schedule import AskedSchedule
from trimtab.integrations.hf_tap import TrainerTap
from trimtab.integrations.hf_weights import model_to_give, refuse_if_not_all_load
from trimtab.integrations.hf_window import TrainerWindow
from trimtab.integrations.hosted import HostedRun
from trimtab.notices import say, warn
from trimtab.rules.watch_config import WatchConfig
from trimtab.run import switched_off
from trimtab.torch.checkpoint_ranks import RanksTogether
from trimtab.torch.gate import Gate
from trimtab.torch.router.watch import RouterWatch
from trimtab.values import RunHeader
from trimtab.watched import EVALUATION_EVENT
from trimtab.watching import OnFinding

_MARK: Final = "trimtab_run"
"""Attribute by which a trainer that is attached is told from one that is not."""


class TrainerRun(HostedRun):
    """A run whose loop is a Trainer's: the user calls `trainer.train()`, never `micro_batch` or `step`."""

    _host: ClassVar[str] = "Trainer"
    _backend: ClassVar[str] = "transformers"

    def __init__(
        self,
        trainer: Trainer,
        *,
        out: str | os.PathLike[str] | None,
        record: bool,
        guard: GuardConfig | None,
        row_id: str,
        run_id: str | None,
        exclude: str | os.PathLike[str] | None,
        on_dropped: OnDropped,
        lr_on_resume: float | None,
        watch: bool | WatchConfig | RouterWatch | None,
        on_finding: OnFinding | None,
    ) -> None:
        """Hooks into `trainer`; see `trimtab.attach`."""
        off = switched_off()
        if not off and _MARK in vars(trainer):
            raise UsageError("Trimtab is attached to this trainer already: attach once, before trainer.train().")
        check_trainer(trainer, guard=None if off else guard, on_dropped=on_dropped)
        self._trainer: Any = trainer
        self._row_id = row_id
        self._holds = on_dropped == "hold" and guard is not None and not off
        self._data = self._new_data(row_id=row_id, record=record)
        super().__init__(
            out if out is not None else trainer.args.output_dir,
            model=trainer.model,
            guard=guard,
            accumulation=trainer.args.gradient_accumulation_steps,
            record=record,
            watch=watch,
            on_finding=on_finding,
            dataset=self._data.dataset,
            row_id=row_id,
            run_id=run_id,
        )
        if exclude is not None and not off:
            self._data.leave_out(exclude)
        self._training = False
        self._has_other_data = False
        self._num_trainings = 0
        self._has_ended = False
        self._source = ResumeSource()
        self._together = RanksTogether()
        self._saving = TrainerSaving(trainer, ranks=self._together)
        self._learning_rate = LearningRate(trainer, on_resume=lr_on_resume)
        self._schedule = AskedSchedule(trainer, lr_on_resume=lr_on_resume, holds=self._holds)
        self._micros: TrainerMicros | None = None
        self._window = TrainerWindow(trainer, self._gate)
        if off:
            if exclude is not None:
                warn("hf", f"TRIMTAB=off is set, so exclude= leaves nothing out: this trains on the rows of {exclude}.")
            return
        vars(trainer)[_MARK] = self
        exclusion = self._data.exclusion
        watches = self._watching is not None
        if record or watches or self._core.guard is not None or exclusion is not None or lr_on_resume is not None:
            self._hook()
            trainer.add_callback(_Moments(self))
            if self._core.is_first_rank:
                say("hf", self._introduction(record=record))
        if exclusion is not None and self._core.is_first_rank:
            say("hf", exclusion.introduction())

    def _host_header(self) -> RunHeader:
        args: TrainingArguments = self._trainer.args
        return RunHeader(
            run_id=None,
            backend=self._backend,
            task=getattr(self._trainer.model, "loss_type", None),
            batch_size=args.per_device_train_batch_size,
            experiment=args.run_name if args.run_name != args.output_dir else None,
        )

    def _row_index(self, facts: DatasetFacts, row_id: str) -> str:
        return self._data.row_index(facts)

    # What a host built on this one does in its own way.

    def _new_data(self, *, row_id: str, record: bool) -> TrainingData:
        """What is known of the trainer's data; for the arguments see `trimtab.attach`."""
        return TrainingData(self._trainer, row_id=row_id, record=record)

    def _new_tap(self) -> TrainerTap:
        """Stand-ins where the trainer computes its loss."""
        return TrainerTap(self._trainer)

    # Hooks on the trainer.

    def _hook(self) -> None:
        trainer = self._trainer
        build_loader, training_step = trainer.get_train_dataloader, trainer.training_step
        compute_loss, train = trainer.compute_loss, trainer.train

        @functools.wraps(build_loader)
        def tagged_loader() -> Any:
            if not self._training:  # a loader that the user asks for is the user's
                return build_loader()
            loader = self._data.build_loader(build_loader)
            self._data.tag_loader(loader)
            return loader

        @functools.wraps(training_step)
        def recorded_training_step(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            step = functools.partial(training_step, model, inputs, *args, **kwargs)
            return step() if self._micros is None else self._micros.step(step, inputs)

        @functools.wraps(compute_loss)
        def judged_loss(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            compute = functools.partial(compute_loss, model, inputs, *args, **kwargs)
            if self._micros is None:  # an evaluation beside a training
                return compute()
            return self._micros.loss(compute, inputs, num_items=kwargs.get("num_items_in_batch"))

        @functools.wraps(train)
        def recorded_train(*args: Any, **kwargs: Any) -> Any:
            reason = "closed"
            num_before = self._num_trainings
            self._training = True
            # The last to hear of a save: who hears of it before may still change its files.
            trainer.remove_callback(_AfterSaves)
            trainer.add_callback(_AfterSaves(self))
            try:
                self._look_at_data()
                self._look_at_checkpoint(*args, **kwargs)
                result = train(*args, **kwargs)
                self._gate.drain()
                return result
            except BaseException as error:
                reason = type(error).__name__
                raise
            finally:
                self._end_training(reason, has_begun=self._num_trainings > num_before)

        trainer.get_train_dataloader = tagged_loader
        trainer.training_step = recorded_training_step
        trainer.compute_loss = judged_loss
        trainer.train = recorded_train
        self._saving.hook(self._state_to_save, watched=self if self._watching is not None else None)
        self._learning_rate.hook()
        self._schedule.hook()

    def _state_to_save(self) -> dict[str, Any]:
        """The run's state; what it has recorded up to there is in its log then, whatever becomes of the process."""
        state = self.state_dict()
        self.flush()
        return state

    def _begin_training(self) -> None:
        """Puts the taps in place. A second training, also one the trainer itself starts over, is a run of its own."""
        self._remove_taps()
        self._gate.remove()
        if self._holds:
            check_can_hold(self._trainer)
        core = self._core
        # What was recorded before (an event of the user's, say) is that of a run of its own.
        state = self._source.state
        is_other = self._has_other_data or state is not None
        if self._num_trainings or self._has_ended or (is_other and core.has_begun):
            core.close(reason="begun again")
            # One that ended before it began, as by a checkpoint that was refused, has left its name to this one.
            core = self._new_core(run_id=None if self._num_trainings or core.has_begun else core.run_id)
        elif self._has_other_data:
            core = self._new_core(run_id=core.run_id)
        self._has_other_data = self._has_ended = False
        # By now the trainer has made its optimizer, and prepared the model for its ranks.
        self._gate = Gate(core, model=self._trainer.model, optimizer=self._trainer.optimizer, ranks=self._ranks)
        self._window = TrainerWindow(self._trainer, self._gate)
        if self._watching is not None:
            self._watching.begin(
                core.watch,
                model=self._trainer.model,
                optimizer=self._trainer.optimizer,
                process_group=self._process_group,
            )
        if state is not None:
            state.load(self._gate)
        self._learning_rate.begin(core, resumes=state is not None)
        self._schedule.begin(core, resumes=state is not None)
        if state is not None and core.is_first_rank:
            tell_first_rate(self._trainer, folder=state.folder)
        self._saving.begin(self._source)
        self._data.record_exclusion(core)
        self._num_trainings += 1
        self._micros = TrainerMicros(core, tap=self._new_tap(), data=self._data, window=self._window)
        self._window.hook()

    def _look_at_data(self) -> None:
        """Makes the runs to come those of the dataset that the trainer has by now."""
        self._has_other_data = self._data.look_again()
        if not self._has_other_data:
            return
        make, settings = self._new_core.func, self._new_core.keywords
        [header] = self._new_core.args
        header = self._described(header, dataset=self._data.dataset, row_id=self._row_id)
        self._new_core = functools.partial(make, header, **settings)

    def _look_at_checkpoint(self, resume_from_checkpoint: Any = None, *_: Any, **__: Any) -> None:
        """Reads what the checkpoint holds that the training is to go on from, as the trainer finds it."""
        out = Path(self._trainer.args.output_dir)

        def find() -> Path | None:
            found = resume_from_checkpoint
            if found is True:
                found = get_last_checkpoint(out) if out.is_dir() else None  # type: ignore[no-untyped-call]
            return Path(found) if found else None  # none: the trainer says so itself

        self._source = look_before_resuming(
            find,
            out=out,
            is_named=resume_from_checkpoint is not True,
            reads=self._trainer.args.local_process_index == 0,
            check_fit=functools.partial(refuse_if_not_all_load, trainer=self._trainer),
            model_to_give=functools.partial(model_to_give, trainer=self._trainer),
            ranks=self._together,
            core=self._core,
        )

    def _remove_taps(self) -> None:
        if self._micros is not None:
            self._micros.remove()
            self._micros = None
            self._window.unhook()

    def _end_training(self, reason: str, *, has_begun: bool) -> None:
        """Closes the log and says what it holds; never raises, for training may be ending by an exception already.

        Of one that was refused before it began nothing is said: the log at hand is an earlier one's.
        """
        self._training = False
        self._remove_taps()
        self._saving.end()
        self._gate.remove()
        self._data.tell_outcome()
        if has_begun and self._core.is_first_rank:
            self._window.tell_further_terms()
        self._core.close(reason=reason)
        self._has_ended = True
        if self._watching is not None:
            self._watching.remove()
        if has_begun and self.folder is not None and self._core.is_first_rank:
            tell_findings(self.folder, ended_by=reason)

    # Words.

    def _introduction(self, *, record: bool) -> str:
        does = f"records {self._data.recorded}" if record else "does not record"
        if self._core.config is None:
            return f"Trimtab {does}; nothing is ever skipped (no guard). Evaluations are recorded as results, not rows."
        return f"Trimtab {does}; its guard ({self._core.config.rule}) keeps anomalous micro-batches out of the update."


def attach_to(trainer: Any, **settings: Any) -> TrainerRun:
    """What `trimtab.attach` calls for an object of transformers.

    Args:
        trainer: A `Trainer`, also of a class of the user's own.
        settings: Those of `attach`.

    Raises:
        UsageError: If it is no trainer.
    """
    if not isinstance(trainer, Trainer):
        raise UsageError(
            f"Of transformers attach knows the Trainer, found {type(trainer).__module__}.{type(trainer).__qualname__}: "
            "hand over the trainer, or use trimtab.Run in a loop of your own."
        )
    return TrainerRun(trainer, **settings)


class _Moments(TrainerCallback):
    """The trainer's moments, as the run's verbs."""

    def __init__(self, run: TrainerRun) -> None:
        self._run = run

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._run._begin_training()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        core, step = self._run._core, state.global_step + 1
        if core.step == step and core.window.num_micros:
            return  # the rest of a stream's last pass was not stepped: its gradients count in this window
        core.begin_step(step)
        self._run._window.begin()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._run._window.before_optimizer()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self._run._holds:
            self._run._window.hold_schedule()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._run._window.end()
        self._run._core.tell_findings()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **_: Any
    ) -> None:
        if self._run._training:  # beside a training there is no step to which a result belongs
            core, facts = self._run._core, evaluation_facts(metrics)
            if "loss" in facts:
                core.evaluation(facts.pop("loss"), facts, step=state.global_step)
            else:  # of a model without labels, or metrics alone
                core.event(EVALUATION_EVENT, facts, step=state.global_step)


class _AfterSaves(TrainerCallback):
    """The moment at which a checkpoint is whole."""

    def __init__(self, run: TrainerRun) -> None:
        self._run = run

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._run._training:
            self._run._saving.describe(self._run._core)
