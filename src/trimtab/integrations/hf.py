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
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, NoReturn

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_pt_utils import LabelSmoother

from trimtab.analysis import rewind
from trimtab.errors import TrimtabError, UsageError
from trimtab.guard import GuardConfig
from trimtab.notices import say, warn_once
from trimtab.run import switched_off
from trimtab.torch.capture import CapturingLoss, TokenLosses
from trimtab.torch.loader import ROW_KEY, tag_rows
from trimtab.torch.gradients import drop_gradients, scale_gradients, total_norm
from trimtab.torch.losses import RowLosses, reduce_to_rows
from trimtab.torch.run import Run
from trimtab.torch.skip import anchored_zero
from trimtab.torch.smoothing import CapturingSmoother
from trimtab.torch.tap import LossTap, row_columns
from trimtab.torch.transfer import to_host
from trimtab.torch.window import WindowTotals
from trimtab.values import RunHeader, StepReason, Verdict


_IGNORED = -100
"""Label of a token that is not supervised, everywhere in transformers."""


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
        if getattr(trainer, "trimtab_run", None) is not None:
            raise UsageError("Trimtab is attached to this trainer already: attach once, before trainer.train().")
        if trainer.args.n_gpu > 1:
            raise UsageError(
                f"This trainer drives {trainer.args.n_gpu} GPUs from one process (DataParallel), where a micro-batch "
                "has several losses: set CUDA_VISIBLE_DEVICES to one GPU, or start it with torchrun."
            )
        self._trainer = trainer
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
        trainer.trimtab_run = self
        self._row_id = row_id
        self._rows: Any = None
        self._in_training_step = False
        self._tap = LossTap()
        self._untap: Callable[[], None] = lambda: None
        self._begin_window()
        if switched_off() or (not record and self._core.guard is None):
            return
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
        args = self._trainer.args
        return RunHeader(
            run_id=None,
            backend="transformers",
            task=getattr(self._trainer.model, "loss_type", None),
            batch_size=args.per_device_train_batch_size,
            experiment=args.run_name if args.run_name != args.output_dir else None,
        )

    # Hooks on the trainer.

    def _hook(self) -> None:
        trainer = self._trainer
        build_loader, training_step = trainer.get_train_dataloader, trainer.training_step
        compute_loss, train = trainer.compute_loss, trainer.train
        clip = trainer.accelerator.clip_grad_norm_

        @functools.wraps(build_loader)
        def tagged_loader() -> Any:
            loader = build_loader()
            tag_rows(loader, row_id=self._row_id)
            return loader

        @functools.wraps(training_step)
        def recorded_training_step(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
            self._rows = inputs.pop(ROW_KEY, None) if isinstance(inputs, MutableMapping) else None
            self._in_training_step = True
            try:
                reported: torch.Tensor = training_step(model, inputs, *args, **kwargs)
            finally:
                self._in_training_step = False
            self._totals.loss = self._totals.loss + reported
            return reported

        @functools.wraps(compute_loss)
        def judged_loss(model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._in_training_step:  # an evaluation
                return compute_loss(model, inputs, *args, **kwargs)
            labels = inputs.get("labels") if isinstance(inputs, Mapping) else None
            loss, tokens = self._tap.run(functools.partial(compute_loss, model, inputs, *args, **kwargs))
            num_items = kwargs.get("num_items_in_batch")
            self._per_token = num_items is not None
            return self._take_loss(loss, tokens, labels, num_items=num_items)

        @functools.wraps(clip)
        def measured_clip(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            parameters = list(parameters)
            norm = self._before_clip(parameters)
            if norm is None:
                norm = clip(parameters, max_norm, *args, **kwargs)
            self._norm_seen, self._clip_at = norm, max_norm
            return norm

        @functools.wraps(train)
        def recorded_train(*args: Any, **kwargs: Any) -> Any:
            if self._core.closed:  # a second train() is a run of its own
                self._core = self._new_core()
            reason = "closed"
            try:
                return train(*args, **kwargs)
            except BaseException as error:
                reason = type(error).__name__
                raise
            finally:
                self._end(reason)

        trainer.get_train_dataloader = tagged_loader
        trainer.training_step = recorded_training_step
        trainer.compute_loss = judged_loss
        trainer.accelerator.clip_grad_norm_ = measured_clip
        trainer.train = recorded_train

    def _begin_training(self) -> None:
        """Puts the taps where this model computes its loss, until training ends."""
        trainer = self._trainer
        self._model = trainer.model
        places: list[CapturingLoss | CapturingSmoother] = []
        undo: list[Callable[[], None]] = []
        base = trainer.model.get_base_model() if hasattr(trainer.model, "get_base_model") else trainer.model
        if callable(getattr(base, "loss_function", None)):
            before = base.__dict__.get("_loss_function")
            place = CapturingLoss(base.loss_function)
            base.loss_function = place
            places.append(place)
            undo.append(functools.partial(_restore_loss_function, base, before))
        smoother = trainer.label_smoother
        if type(smoother) is LabelSmoother:  # of a user's own smoother the formula is not known
            trainer.label_smoother = CapturingSmoother(smoother)
            places.append(trainer.label_smoother)
            undo.append(functools.partial(setattr, trainer, "label_smoother", smoother))
        self._tap = LossTap(*places)
        self._untap = lambda: [step() for step in undo]

    def _take_loss(
        self, loss: torch.Tensor, tokens: TokenLosses | None, labels: torch.Tensor | None, *, num_items: Any
    ) -> torch.Tensor:
        """Judges and records one micro-batch; gives the loss to call backward on."""
        reduced = self._rows_of(tokens)
        if reduced is None:
            self._say_no_row_losses()
            num_tokens = (labels != _IGNORED).sum() if labels is not None else torch.ones((), dtype=torch.int64)
            loss_sum = loss.detach() * (num_items if num_items is not None else num_tokens)
        else:
            loss_sum, num_tokens = reduced.loss_sum, reduced.num_tokens
        verdict: Verdict | None = None
        if self._core.guard is not None:
            # The final loss may hold further terms (a router's): it must be finite as well, if it has tokens at all.
            verdict = self._core.judge(float(loss_sum), int(num_tokens), aux=float(loss.detach()))
        if reduced is not None:
            self._core.record_micro_batch(
                to_host(reduced.rows),
                to_host(reduced.row_loss_sums),
                to_host(reduced.row_num_tokens),
                verdict=verdict,
                packed=reduced.packed,
            )
        else:
            rows = self._rows.flatten().unique() if self._rows is not None else torch.zeros(0, dtype=torch.int64)
            nothing = torch.zeros(rows.shape[0], dtype=torch.int64)
            self._core.record_micro_batch(to_host(rows), nothing, nothing, verdict=verdict)
        self._totals.num_tokens = self._totals.num_tokens + num_tokens
        if verdict is None:
            return loss
        if not verdict.keep:
            say("guard", self._skipped(verdict))
            return anchored_zero(self._parameters(), like=loss)
        if verdict.reason == "no_tokens" and not math.isfinite(float(loss.detach())):
            # A mean over no tokens is 0/0: nothing to learn from, and nothing to blame anybody for.
            return anchored_zero(self._parameters(), like=loss)
        self._totals.num_kept_tokens = self._totals.num_kept_tokens + num_tokens
        return loss

    def _rows_of(self, tokens: TokenLosses | None) -> RowLosses | None:
        if tokens is None or self._rows is None:
            return None
        shifted = bool(getattr(self._trainer, "_loss_shifts_labels", False))
        columns = row_columns(tokens, self._rows, shifted=shifted)
        if columns is None:
            return None
        losses, supervised, rows = columns
        return reduce_to_rows(losses, rows=rows, mask=supervised)

    def _before_clip(self, parameters: list[nn.Parameter]) -> torch.Tensor | None:
        """With a guard, looks at the norm before clipping; gives it if the step must be dropped, else None."""
        core = self._core
        if core.guard is None:
            return None
        self._reason = core.drop_reason()
        if self._reason is not None:
            return torch.zeros(())
        if core.guard.config.skipped_tokens == "removed" and core.window.num_skipped_micros:
            self._remove_skipped(parameters)
        if self._trainer.accelerator.scaler is not None:  # a scaler looks for itself, and halves its scale
            return None
        norm = total_norm(parameters)
        if math.isfinite(float(norm)):
            return None
        self._reason = self._nonfinite_norm(norm)
        return norm

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
        optimizer = self._trainer.optimizer
        self._lr = optimizer.param_groups[0]["lr"]
        if self._reason is not None:
            drop_gradients(self._parameters())

    def _after_step(self) -> None:
        """Records the step that the trainer has just counted."""
        scaler = self._trainer.accelerator.scaler
        reason: StepReason = self._reason if self._reason is not None else "stepped"
        if scaler is not None and self._trainer.accelerator.optimizer_step_was_skipped:
            reason = "scaler_overflow"
        known = self._reason is None or self._reason == "nonfinite_norm"
        norm = self._norm_seen if known else None
        something_left = self._core.guard is None or self._core.window.num_kept_tokens > 0
        self._core.end_step(
            reason,
            loss=to_host(self._totals.loss) if something_left else math.nan,
            num_tokens=to_host(self._totals.num_tokens),
            grad_norm=to_host(norm) if isinstance(norm, torch.Tensor) else norm,
            lr=to_host(self._lr) if isinstance(self._lr, torch.Tensor) else self._lr,
            clipped=to_host(norm > self._clip_at) if isinstance(norm, torch.Tensor) else None,
            loss_scale=scaler.get_scale() if scaler is not None else None,
        )
        self._begin_window()

    def _begin_window(self) -> None:
        self._totals = WindowTotals()
        self._reason: StepReason | None = None
        self._norm_seen: Any = None
        self._clip_at = math.inf
        self._lr: Any = math.nan

    # Words.

    def _introduction(self, *, record: bool) -> str:
        does = "records rows, losses and steps of this Trainer" if record else "does not record"
        if self._core.config is None:
            return f"Trimtab {does}; nothing is ever skipped (no guard). Evaluations are recorded as results, not rows."
        return f"Trimtab {does}; its guard ({self._core.config.rule}) keeps anomalous micro-batches out of the update."

    def _skipped(self, verdict: Verdict) -> str:
        step, micro = self._core.step, self._core.window.num_micros - 1
        compared = f", {verdict.baseline:.4g} expected" if verdict.baseline is not None else ""
        return f"Guard skipped micro-batch {micro} of step {step}: {verdict.reason}, loss {verdict.loss:.4g}{compared}."

    def _say_no_row_losses(self) -> None:
        why = (
            "the batch carries no rows (its collator returns no mapping)"
            if self._rows is None
            else "its loss is not one plain cross-entropy over tokens (compiled, weighted, fused or of another kind)"
        )
        warn_once(
            "hf",
            f"Trimtab cannot tell what each row cost, because {why}: rows are recorded without shares.",
            cause=f"no row losses {id(self)}",
        )
        self._core.event("no_row_losses", {"why": why})

    def _end(self, reason: str) -> None:
        """Closes the log and says what it holds; never raises."""
        self._untap()
        folder = self.folder
        self._core.close(reason=reason)
        if folder is None:
            return
        try:
            num_findings = len(rewind(folder).spikes)
        except (TrimtabError, OSError):  # nothing recorded yet, or a disk that failed: said elsewhere
            return
        say("hf", f"{num_findings} finding{'' if num_findings == 1 else 's'}: trimtab rewind {self.run_id}")


class _Moments(TrainerCallback):  # type: ignore[misc]
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
        metrics = dict(metrics or {})
        self._run._core.evaluation(float(metrics.pop("eval_loss", math.nan)), metrics)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._run._core.event("checkpoint", {"folder": f"checkpoint-{state.global_step}"})


def _restore_loss_function(model: nn.Module, before: Any) -> None:
    if before is None:
        del model._loss_function
    else:
        model._loss_function = before
