"""Hugging Face `Trainer`: where its moments become the verbs of a run. Seen with transformers 5.24, accelerate 1.15.

Everything is hooked on the one trainer that was handed over, nothing on a class:

    get_train_dataloader     rows are added to the batches, inside the loader that the trainer built
    training_step            rows are taken out of the batch before the model sees it
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
from collections.abc import MutableMapping
from typing import Any, Final, NoReturn

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from trimtab.analysis import rewind
from trimtab.dataset import DatasetFacts
from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.integrations.hf_tap import TrainerTap
from trimtab.notices import say, warn
from trimtab.run import switched_off
from trimtab.torch.gradients import drop_gradients, scale_gradients, total_norm
from trimtab.torch.loader import ROW_KEY, tag_rows
from trimtab.torch.losses import RowLosses
from trimtab.torch.run import Run
from trimtab.torch.transfer import to_host
from trimtab.torch.window import WindowTotals
from trimtab.values import RunHeader, StepReason, Verdict

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
            dataset=trainer.train_dataset,
            row_id=row_id,
            run_id=run_id,
        )
        self._row_id = row_id
        self._rows: torch.Tensor | None = None
        self._training = False
        self._in_training_step = False
        self._num_trainings = 0
        self._clip: Any = None
        self._grad_norm: Any = None
        self._tap: TrainerTap | None = None
        self._said_no_row_losses = False
        self._begin_window()
        if off:
            return
        vars(trainer)[_MARK] = self
        if record or self._core.guard is not None:
            self._hook()
            trainer.add_callback(_Moments(self))
            say("hf", self._introduction(record=record))

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

    # Hooks on the trainer.

    def _hook(self) -> None:
        trainer = self._trainer
        build_loader, training_step = trainer.get_train_dataloader, trainer.training_step
        compute_loss, train = trainer.compute_loss, trainer.train

        @functools.wraps(build_loader)
        def tagged_loader() -> Any:
            loader = build_loader()
            if self._training:  # a loader that the user asks for is the user's
                tag_rows(loader, row_id=self._row_id)
            return loader

        @functools.wraps(training_step)
        def recorded_training_step(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            self._rows = inputs.pop(ROW_KEY, None) if isinstance(inputs, MutableMapping) else None
            num_micros = self._core.window.num_micros
            self._in_training_step = True
            try:
                reported: torch.Tensor = training_step(model, inputs, *args, **kwargs)
            finally:
                self._in_training_step = False
            if self._core.window.num_micros == num_micros:
                self._record_rows_alone("its training_step does not call compute_loss", verdict=None)
                self._core.window.num_tokens += 1  # what nobody judged is kept
            self._totals.loss = self._totals.loss + reported
            return reported

        @functools.wraps(compute_loss)
        def judged_loss(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._in_training_step or self._tap is None:  # an evaluation
                return compute_loss(model, inputs, *args, **kwargs)
            num_labels = self._tap.count_labels(inputs)
            compute = functools.partial(compute_loss, model, inputs, *args, **kwargs)
            result, rows = self._tap.run(compute, rows=self._rows)
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
        if self._num_trainings:
            self._core.close(reason="begun again")
            self._core = self._new_core(run_id=None)
        self._num_trainings += 1
        self._said_no_row_losses = False
        self._model = self._trainer.model
        self._tap = TrainerTap(self._trainer)
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
        self._lift_anchor()
        self._per_token = num_items is not None and self._tap.loss_is_over_window
        if isinstance(rows, RowLosses):
            loss_sum, num_tokens = rows.loss_sum, rows.num_tokens
        else:
            num_tokens = num_labels
            loss_sum = loss.detach() * (num_items if self._per_token else num_tokens)
        verdict = self._judge_micro(loss_sum, num_tokens, loss, rows) if self._core.guard is not None else None
        if isinstance(rows, RowLosses):
            self._core.record_micro_batch(
                to_host(rows.rows),
                to_host(rows.row_loss_sums),
                to_host(rows.row_num_tokens),
                verdict=verdict,
                packed=rows.packed,
            )
        else:
            self._record_rows_alone(rows, verdict=verdict)
        totals = self._totals
        totals.num_tokens = totals.num_tokens + num_tokens
        if verdict is None:
            return loss
        if not verdict.keep:
            return self._left_out(loss)
        totals.num_kept_tokens = totals.num_kept_tokens + num_tokens
        if verdict.reason == "no_tokens" and not math.isfinite(float(loss.detach())):
            # A mean over no tokens is 0/0: nothing to learn from, and nothing to blame anybody for.
            return self._left_out(loss)
        return loss

    def _judge_micro(
        self, loss_sum: torch.Tensor, num_tokens: torch.Tensor, loss: torch.Tensor, rows: RowLosses | str
    ) -> Verdict:
        """The guard's verdict; the one wait for the device."""
        # The final loss may hold further terms (a router's): it must be finite as well.
        wide = torch.float32 if loss.device.type == "mps" else torch.float64
        figures = torch.stack([figure.detach().to(loss.device, wide) for figure in (loss_sum, num_tokens, loss)])
        total, count, final = figures.tolist()
        first = rows.first_nonfinite_row if isinstance(rows, RowLosses) else lambda: None
        return self._core.judge(total, int(count), aux=final, first_nonfinite_row=first)

    def _record_rows_alone(self, why: str, *, verdict: Verdict | None) -> None:
        rows = torch.unique(self._rows) if self._rows is not None else torch.zeros(0, dtype=torch.int64)
        nothing = torch.zeros(rows.shape[0], dtype=torch.int64)
        self._core.record_micro_batch(to_host(rows), nothing, nothing, verdict=verdict)
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
        self._reason = core.drop_reason()
        if self._reason is not None:
            accelerator.unscale_gradients()  # a scaler, if there is one, wants to have seen something
            return
        if core.guard.config.skipped_tokens == "removed" and core.window.num_skipped_micros:
            self._remove_skipped(parameters)
        if accelerator.scaler is not None:  # a scaler looks for itself, and halves its scale
            return
        norm = total_norm(parameters)
        if not math.isfinite(float(norm)):
            self._grad_norm = norm
            self._reason = self._nonfinite_norm(norm)

    def _remove_skipped(self, parameters: list[nn.Parameter]) -> None:
        """Takes skipped tokens out of the divisor that the trainer has used already."""
        window = self._core.window
        if self._per_token:
            factor = window.num_tokens / window.num_kept_tokens
        else:
            factor = window.num_micros / window.num_kept_micros
        scale_gradients(parameters, factor)
        self._totals.loss = self._totals.loss * factor

    def _before_optimizer(self) -> None:
        self._lift_anchor()
        scaler = self._trainer.accelerator.scaler
        self._loss_scale = scaler.get_scale() if scaler is not None else None
        lr = self._trainer.optimizer.param_groups[0]["lr"]
        self._lr = lr.detach().clone() if isinstance(lr, torch.Tensor) else lr  # a scheduler changes it in place
        if self._reason is not None:
            drop_gradients(self._parameters())

    def _after_step(self) -> None:
        """Records the step that the trainer has just counted."""
        core, norm, loss_scale = self._core, self._grad_norm, self._loss_scale
        reason: StepReason = self._reason if self._reason is not None else "stepped"
        # accelerate's own flag stays down with a fused optimizer, whose step is called and does nothing.
        if loss_scale is not None and self._trainer.accelerator.scaler.get_scale() < loss_scale:
            reason = "scaler_overflow"
        something_left = core.guard is None or core.window.num_kept_tokens > 0
        core.end_step(
            reason,
            loss=to_host(self._totals.loss) if something_left else math.nan,
            num_tokens=to_host(self._totals.num_tokens),
            grad_norm=to_host(norm) if isinstance(norm, torch.Tensor) else norm,
            lr=to_host(self._lr) if isinstance(self._lr, torch.Tensor) else self._lr,
            clipped=to_host(norm > self._clip_at) if isinstance(norm, torch.Tensor) else None,
            loss_scale=loss_scale,
        )
        self._begin_window()

    def _end_training(self, reason: str) -> None:
        """Closes the log and says what it holds; never raises, for training may be ending by an exception already."""
        self._training = False
        self._remove_taps()
        self._core.close(reason=reason)
        folder = self.folder
        if folder is None:
            return
        try:
            num_findings = len(rewind(folder).spikes)
        except Exception as error:  # noqa: BLE001 - a fault in reading the log is no fault of the training
            warn("hf", f"Trimtab could not read its own log {folder}: {error}")
            return
        say("hf", f"{num_findings} finding{'' if num_findings == 1 else 's'}: trimtab rewind {self.run_id}")

    # Words.

    def _introduction(self, *, record: bool) -> str:
        does = "records rows, losses and steps of this Trainer" if record else "does not record"
        if self._core.config is None:
            return f"Trimtab {does}; nothing is ever skipped (no guard). Evaluations are recorded as results, not rows."
        return f"Trimtab {does}; its guard ({self._core.config.rule}) keeps anomalous micro-batches out of the update."


class _Moments(TrainerCallback):
    """The trainer's moments, as the run's verbs."""

    def __init__(self, run: TrainerRun) -> None:
        self._run = run

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._run._begin_training()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._run._core.begin_step(state.global_step + 1)
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
