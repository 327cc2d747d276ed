"""Hugging Face `Trainer`: where its moments become the verbs of a run. Seen with transformers 5.24, accelerate 1.15.

Everything is hooked on the one trainer that was handed over, nothing on a class:

    get_train_dataloader     rows are left out of the data, and their numbers added to the batches, inside the loader
                             that the trainer built
    training_step            the numbers are taken out of the batch before the model sees it
    compute_loss             token losses come out of the trainer's own cross-entropy; the guard decides
    clip_grad_norm_          the norm before clipping
    a callback               a step begins, is about to be taken (a dropped one loses its gradients), has ended
    train                    the end, also by an exception

As long as the guard leaves nothing out, data order, gradients and weights are those of the trainer without Trimtab,
bit for bit.
"""

from __future__ import annotations

import functools
import math
import os
from typing import Any, Final, NoReturn

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trimtab.dataset import DatasetFacts
from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.integrations.ending import tell_findings
from trimtab.integrations.hf_data import TrainingData
from trimtab.integrations.hf_tap import TrainerTap
from trimtab.notices import say, warn
from trimtab.run import switched_off
from trimtab.torch.exclusion import Exclusion
from trimtab.torch.gate import Gate
from trimtab.torch.gradients import current_lr, drop_gradients, scale_gradients, total_norm
from trimtab.torch.losses import RowLosses, rows_alone
from trimtab.torch.run import Run
from trimtab.torch.transfer import to_host
from trimtab.torch.window import WindowTotals, removed_factor
from trimtab.values import RunHeader, StepReason

_UNCOUNTED: Final = -1
"""Tokens of a step whose labels nobody has seen: its loss stands all the same."""

_MARK: Final = "trimtab_run"
"""Attribute by which a trainer that is attached is told from one that is not."""


class TrainerRun(Run):
    """A run whose loop is a Trainer's: the user calls `trainer.train()`, never `micro_batch` or `step`."""

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
    ) -> None:
        """Hooks into `trainer`; see `trimtab.attach`."""
        off = switched_off()
        if not off and _MARK in vars(trainer):
            raise UsageError("Trimtab is attached to this trainer already: attach once, before trainer.train().")
        if trainer.args.n_gpu > 1:
            raise UsageError(
                f"This trainer drives {trainer.args.n_gpu} GPUs from one process (DataParallel), where a micro-batch "
                "has several losses: set CUDA_VISIBLE_DEVICES to one GPU, or start it with torchrun."
            )
        self._trainer: Any = trainer
        super().__init__(
            out if out is not None else trainer.args.output_dir,
            model=trainer.model,
            guard=guard,
            accumulation=trainer.args.gradient_accumulation_steps,
            record=record,
            dataset=self._row_dataset(),
            row_id=row_id,
            run_id=run_id,
        )
        self._row_id = row_id
        exclusion = self._read_exclusion(exclude) if exclude is not None and not off else None
        self._data = self._new_data(row_id=row_id, record=record, exclusion=exclusion)
        self._training = False
        self._in_training_step = False
        self._num_trainings = 0
        self._clip: Any = None
        self._grad_norm: Any = None
        self._tap: TrainerTap | None = None
        self._said_no_row_losses = False
        self._begin_window()
        if off:
            if exclude is not None:
                warn("hf", f"TRIMTAB=off is set, so exclude= leaves nothing out: this trains on the rows of {exclude}.")
            return
        vars(trainer)[_MARK] = self
        if record or self._core.guard is not None or exclusion is not None:
            self._hook()
            trainer.add_callback(_Moments(self))
            say("hf", self._introduction(record=record))
        if exclusion is not None:
            say("hf", exclusion.introduction())

    def micro_batch(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises `UsageError`: the Trainer hands over its micro-batches itself."""
        raise UsageError("The Trainer hands over its micro-batches itself: call trainer.train().")

    def step(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Raises `UsageError`: the Trainer steps itself."""
        raise UsageError("The Trainer steps itself: call trainer.train().")

    def _host_header(self) -> RunHeader:
        args: TrainingArguments = self._trainer.args
        return RunHeader(
            run_id=None,
            backend="transformers",
            task=getattr(self._trainer.model, "loss_type", None),
            batch_size=args.per_device_train_batch_size,
            experiment=args.run_name if args.run_name != args.output_dir else None,
        )

    def _row_index(self, facts: DatasetFacts, row_id: str) -> str:
        if facts.num_rows is not None:
            return facts.row_index
        return f"column {row_id!r} of the stream where it holds integers, else {facts.row_index}"

    # What a host built on this one does in its own way.

    def _row_dataset(self) -> object:
        """The dataset that the row numbers index."""
        return self._trainer.train_dataset

    def _read_exclusion(self, path: str | os.PathLike[str]) -> Exclusion:
        """Which rows are left out of the training, because the file at `path` lists them."""
        return Exclusion(path, dataset=self._trainer.train_dataset)

    def _new_data(self, *, row_id: str, record: bool, exclusion: Exclusion | None) -> TrainingData:
        """What is known of the trainer's data; for the arguments see `trimtab.attach`."""
        return TrainingData(self._trainer, row_id=row_id, record=record, exclusion=exclusion)

    def _new_tap(self) -> TrainerTap:
        """Stand-ins where the trainer computes its loss."""
        return TrainerTap(self._trainer)

    def _recorded(self) -> str:
        """What is recorded, in words."""
        return "rows, losses and steps of this Trainer"

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
            self._data.take(inputs, core=self._core)
            num_micros = self._core.window.num_micros
            self._in_training_step = True
            try:
                reported: torch.Tensor = training_step(model, inputs, *args, **kwargs)
            finally:
                self._in_training_step = False
            if self._core.window.num_micros == num_micros:
                self._record_unjudged("its training_step does not call compute_loss")
            self._totals.loss = self._totals.loss + reported
            return reported

        @functools.wraps(compute_loss)
        def judged_loss(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._in_training_step or self._tap is None:  # an evaluation
                return compute_loss(model, inputs, *args, **kwargs)
            num_labels = self._tap.count_labels(inputs)
            compute = functools.partial(compute_loss, model, inputs, *args, **kwargs)
            result, rows = self._tap.run(compute, rows=self._data.rows)
            loss, outputs = (result[0], result[1:]) if isinstance(result, tuple) else (result, ())
            loss = self._take_loss(loss, rows, num_labels, num_items=kwargs.get("num_items_in_batch"))
            return (loss, *outputs) if outputs else loss

        @functools.wraps(train)
        def recorded_train(*args: Any, **kwargs: Any) -> Any:
            reason = "closed"
            self._training = True
            try:
                return train(*args, **kwargs)
            except BaseException as error:
                reason = type(error).__name__
                raise
            finally:
                self._end_training(reason)

        trainer.get_train_dataloader = tagged_loader
        trainer.training_step = recorded_training_step
        trainer.compute_loss = judged_loss
        trainer.train = recorded_train

    def _begin_training(self) -> None:
        """Puts the taps in place. A second training, also one the trainer itself starts over, is a run of its own."""
        self._remove_taps()
        core = self._core
        if self._num_trainings:
            core.close(reason="begun again")
            core = self._new_core(run_id=None)
        self._gate = Gate(core, model=self._trainer.model)
        self._data.record_exclusion(core)
        self._num_trainings += 1
        self._said_no_row_losses = False
        self._tap = self._new_tap()
        accelerator = self._trainer.accelerator
        self._clip = accelerator.clip_grad_norm_

        @functools.wraps(self._clip)
        def measured_clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            parameters = list(parameters)
            self._look_at_gradients(parameters)
            if self._reason is None:
                self._grad_norm = self._clip(parameters, max_norm, *args, **kwargs)
                self._clip_at = max_norm
            # A trainer logs what it gets; of a step without any gradient that counts, the norm is 0.
            return self._grad_norm if self._grad_norm is not None else torch.zeros(())

        accelerator.clip_grad_norm_ = measured_clip

    def _remove_taps(self) -> None:
        if self._tap is not None:
            self._tap.remove()
            self._tap = None
            self._trainer.accelerator.clip_grad_norm_ = self._clip

    # Once a micro-batch.

    def _take_loss(
        self, loss: torch.Tensor, rows: RowLosses | str, num_labels: torch.Tensor, *, num_items: Any
    ) -> torch.Tensor:
        """Judges and records one micro-batch; gives the loss to call backward on."""
        assert self._tap is not None, "training has begun"
        self._per_token = num_items is not None and self._tap.loss_is_over_window
        if isinstance(rows, str):
            self._say_no_row_losses(rows)
            loss_sum = loss.detach() * (num_items if self._per_token else num_labels)
            rows = rows_alone(self._data.known_rows(), loss_sum=loss_sum, num_tokens=num_labels)
        # The final loss may hold further terms (a router's, say): it must be finite as well.
        verdict = self._gate.take(rows, extra=loss)
        totals = self._totals
        totals.num_tokens = totals.num_tokens + rows.num_tokens
        if verdict is None:
            return loss
        if not verdict.keep:
            return self._gate.left_out(loss)
        totals.num_kept_tokens = totals.num_kept_tokens + rows.num_tokens
        if verdict.reason == "no_tokens" and not math.isfinite(float(loss.detach())):
            # A mean over no tokens is 0/0: nothing to learn from, and nothing to blame anybody for.
            return self._gate.left_out(loss)
        return loss

    def _record_unjudged(self, why: str) -> None:
        """Records a micro-batch whose loss went by unseen; what nobody judged is kept."""
        self._say_no_row_losses(why)
        rows = self._data.known_rows()
        nothing = torch.zeros(rows.numel(), dtype=torch.int64)
        self._core.record_micro_batch(to_host(rows.flatten()), nothing, nothing, packed=rows.dim() == 2)
        self._core.window.num_tokens += 1
        self._totals.num_tokens = torch.full((), _UNCOUNTED, dtype=torch.int64)

    def _say_no_row_losses(self, why: str) -> None:
        if not self._said_no_row_losses:
            self._said_no_row_losses = True
            warn("hf", f"Trimtab cannot tell what each row cost: {why}. Rows are recorded without shares.")
            self._core.event("no_row_losses", {"why": why})

    # Once an optimizer step.

    def _begin_window(self) -> None:
        self._totals = WindowTotals()
        self._reason: StepReason | None = None
        self._grad_norm = None
        self._clip_at = math.inf
        self._lr: Any = math.nan
        self._loss_scale: float | None = None

    def _look_at_gradients(self, parameters: list[nn.Parameter]) -> None:
        """With a guard, decides whether the step must be dropped; the norm it saw is that before clipping."""
        core, accelerator = self._core, self._trainer.accelerator
        if core.guard is None:
            return
        self._reason = self._gate.drop_reason()
        if self._reason is not None:
            accelerator.unscale_gradients()  # a scaler, if there is one, wants to have seen something
            return
        if core.guard.config.skipped_tokens == "removed" and core.window.num_skipped_micros:
            factor = removed_factor(core.window, by_token=self._per_token)
            scale_gradients(parameters, factor)
            self._totals.loss = self._totals.loss * factor
        if accelerator.scaler is not None:  # a scaler looks for itself, and halves its scale
            return
        norm = total_norm(parameters)
        self._reason = self._gate.norm_reason(norm)
        if self._reason is not None:
            self._grad_norm = norm

    def _before_optimizer(self) -> None:
        self._gate.lift_anchor()
        scaler = self._trainer.accelerator.scaler
        self._loss_scale = scaler.get_scale() if scaler is not None else None
        self._lr = current_lr(self._trainer.optimizer)
        if self._reason is not None:
            drop_gradients(self._gate.parameters())

    def _after_step(self) -> None:
        """Records the step that the trainer has just counted."""
        loss_scale, loss = self._loss_scale, self._totals.loss
        reason: StepReason = self._reason if self._reason is not None else "stepped"
        # accelerate's own flag stays down with a fused optimizer, whose step is called and does nothing.
        if loss_scale is not None and self._trainer.accelerator.scaler.get_scale() < loss_scale:
            reason = "scaler_overflow"
        if self._core.guard is not None and not self._core.window.num_kept_tokens:
            loss = torch.full((), math.nan)
        self._gate.end(
            reason,
            loss=loss,
            num_tokens=self._totals.num_tokens,
            norm=self._grad_norm,
            clip_at=self._clip_at,
            lr=self._lr,
            loss_scale=loss_scale,
        )
        self._begin_window()

    def _end_training(self, reason: str) -> None:
        """Closes the log and says what it holds; never raises, for training may be ending by an exception already."""
        self._training = False
        self._remove_taps()
        self._data.tell_outcome()
        self._core.close(reason=reason)
        if self.folder is not None:
            tell_findings(self.folder, ended_by=reason)

    # Words.

    def _introduction(self, *, record: bool) -> str:
        does = f"records {self._recorded()}" if record else "does not record"
        if self._core.config is None:
            return f"Trimtab {does}; nothing is ever skipped (no guard). Evaluations are recorded as results, not rows."
        return f"Trimtab {does}; its guard ({self._core.config.rule}) keeps anomalous micro-batches out of the update."


attach_to = TrainerRun
"""What `trimtab.attach` calls for a trainer of this host."""


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
        self._run._begin_window()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        self._run._before_optimizer()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._run._after_step()

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **_: Any
    ) -> None:
        if self._run._training:  # beside a training there is no step to which a result belongs
            metrics = dict(metrics or {})
            loss = float(metrics.pop("eval_loss", math.nan))
            self._run._core.evaluation(loss, metrics, step=state.global_step)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self._run._training:
            facts = {"folder": f"checkpoint-{state.global_step}"}
            self._run._core.event("checkpoint", facts, step=state.global_step)
