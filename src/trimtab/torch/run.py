"""`Run`: Trimtab in a training loop of one's own, in one process or on every rank of several.

Enters: unreduced losses and the dataset rows they belong to, once a micro-batch; once a window the wish to step.
Leaves: a loss that is safe to call backward on whatever the verdict, a `StepOutcome`, and the log. Without a guard
the parameters stay bit-identical to those of the same loop without Trimtab, and nothing waits for a CUDA device. With a
guard that decides on the device nothing waits either, but for optimizers that are not fused: those take one look of the
host a step. A guard that decides on the host looks at the loss once a micro-batch and at the norm once a step. Among
several ranks `micro_batch` and `step` say which sums they take, and who waits for them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from torch import nn

from trimtab.dataset import DatasetFacts, describe
from trimtab.errors import UsageError
from trimtab.guard import GuardConfig
from trimtab.rules.schedule import Schedule
from trimtab.rules.watch_config import WatchConfig
from trimtab.run import RunCore, switched_off
from trimtab.torch.gate import Gate
from trimtab.torch.gradients import clip_gradients
from trimtab.torch.live_run import LiveRun
from trimtab.torch.losses import Per, reduce_to_rows
from trimtab.torch.meeting import meeting_place
from trimtab.torch.outcome import StepOutcome
from trimtab.torch.ranks import Ranks
from trimtab.torch.router.watch import RouterWatch
from trimtab.torch.schedule import current_lr, loss_scale
from trimtab.torch.settings import at_least_one, check_guard, check_max_grad_norm, check_parts, check_schedule
from trimtab.torch.stepped import SteppedParameters
from trimtab.torch.watch_of import watch_of
from trimtab.torch.window import WindowMean
from trimtab.values import RunHeader
from trimtab.watching import OnFinding

__all__ = ["Run", "StepOutcome"]


class Run(LiveRun):
    """Records a loop of one's own and keeps anomalous micro-batches out of its updates.

    Example:
        >>> import tempfile, torch, trimtab
        >>> model = torch.nn.Linear(4, 1)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> folder = tempfile.mkdtemp()
        >>> with trimtab.Run(folder, model=model, optimizer=optimizer, max_grad_norm=1.0) as run:
        ...     losses = model(torch.ones(2, 4)).squeeze(1) ** 2
        ...     loss = run.micro_batch(losses, per="sample", rows=[0, 1])
        ...     loss.backward()
        ...     outcome = run.step()
        >>> outcome.reason
        'stepped'
    """

    def __init__(
        self,
        out: str | os.PathLike[str] | None,
        *,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        accumulation: int = 1,
        max_grad_norm: float | None = None,
        normalize: Literal["micro", "window"] = "micro",
        guard: GuardConfig | None = None,
        record: bool = True,
        watch: bool | WatchConfig | RouterWatch | None = None,
        on_finding: OnFinding | None = None,
        schedule: Schedule | None = None,
        dataset: object | None = None,
        row_id: str = "row_id",
        run_id: str | None = None,
        process_group: torch.distributed.ProcessGroup | None = None,
    ) -> None:
        """Prepares a run; the run folder is made when the first micro-batch arrives.

        Args:
            out: Folder under which `trimtab/<run_id>` is written; may be None with `record=False`.
            model: The model, or what it is wrapped in (DDP, `torch.compile`), or one that `fully_shard` has sharded;
                required with a guard, which acts on its parameters.
            optimizer: The optimizer; required for `step`.
            accumulation: Micro-batches in one window (one optimizer step). 1 where the host divides itself.
            max_grad_norm: Clip gradients to this total 2-norm; `math.inf` measures and records the norm without
                clipping; None neither measures nor clips, unless a guard needs the norm.
            normalize: "micro": every micro-batch counts alike, its loss is a mean over its tokens. "window": every
                token of the window counts alike, on whichever rank.
            guard: Settings of the guard. None: nothing is ever skipped or dropped, not even a NaN.
            record: False: no folder, no registry entry, no thread.
            watch: True: looks after the run's health, and after the routers of a model that has any it knows; see
                docs/health.md and docs/router.md. A `WatchConfig`: likewise, by these settings. A `RouterWatch`: by
                its settings, and after the routers that it taps. Never stops training, and leaves parameters
                bit-identical. Pass it on every rank.
            on_finding: Called with each `WatchFinding`, between two steps, in the thread that trains. An `Exception`
                in it is said once, and not raised.
            schedule: The learning rates that the loop means to train with, of the whole run; written into the log at
                the begin of every attempt, so that `trimtab gate` compares the rates of the steps with them. Nothing
                here sets a rate.
            dataset: What the row numbers index; its length and fingerprint go into the log. Nothing is drawn from it
                beyond plain lists.
            row_id: What the row number is called in the log's description of itself.
            run_id: An existing run under `out` to continue as its next attempt, or a name for a new one.
            process_group: The ranks that train together on different rows; their guards decide as one. None: the
                default group where torch.distributed is initialised, else this process alone. With tensor or context
                parallelism pass the data-parallel group. Make the run on every rank, each in the same order.

        Raises:
            UsageError: If a setting makes no sense.
        """
        if switched_off():
            guard, record, watch, on_finding = None, False, None, None
        accumulation = at_least_one(accumulation, name="accumulation", unit="micro-batches")
        max_grad_norm = check_max_grad_norm(max_grad_norm)
        if normalize not in ("micro", "window"):
            raise UsageError(f'normalize must be "micro" or "window", found {normalize!r}.')
        check_parts(model=model, optimizer=optimizer)
        check_guard(guard, model=model)
        check_schedule(schedule)
        watching = watch_of(watch, on_finding=on_finding)
        header = replace(self._host_header(), accumulation=accumulation, row_index=f"{row_id} as given to micro_batch")
        if dataset is not None:
            header = self._described(header, dataset=dataset, row_id=row_id)
        self._ranks, self._process_group = Ranks.of(process_group), process_group
        meet = meeting_place(self._ranks, out=out, header=header, guard=guard)
        self._new_core = partial(
            RunCore,
            header,
            out=out,
            guard=guard,
            record=record and self._ranks.records,
            meet=meet,
            rank=self._ranks.rank,
            watch=watching.new if watching is not None else None,
        )
        core = self._new_core(run_id=run_id)
        if schedule is not None:
            core.state_schedule(schedule)
        mean = WindowMean(normalize=normalize, accumulation=accumulation, guard=core.config, ranks=self._ranks)
        gate = Gate(core, model=model, optimizer=optimizer, ranks=self._ranks)
        super().__init__(gate, mean=mean, watching=watching)
        if watching is not None:
            watching.begin(core.watch, model=model, optimizer=optimizer, process_group=process_group)
            if core.is_first_rank:
                watching.introduce(model)
        self._optimizer = optimizer
        self._stepped = SteppedParameters(model, optimizer) if optimizer is not None else None
        self._accumulation = accumulation
        self._max_grad_norm = max_grad_norm

    # Once a micro-batch.

    def begin_window(self, num_tokens: int, *, num_micros: int | None = None) -> None:
        """Announces the window that begins, so that `aux` can be weighed under `normalize="window"`.

        Args:
            num_tokens: Supervised tokens of the whole window, over all ranks; the same number on every rank.
            num_micros: Its micro-batches on one rank, by which `aux` is divided; None: `accumulation`.

        Raises:
            UsageError: If a window is open already or a count is not positive.
        """
        if self._core.window.num_micros:
            raise UsageError(
                f"begin_window came after micro-batch {self._core.window.num_micros} of the window: call it first."
            )
        num_tokens = at_least_one(num_tokens, name="num_tokens", unit="supervised tokens")
        if num_micros is not None:
            num_micros = at_least_one(num_micros, name="num_micros", unit="micro-batches")
        self._mean.announce(num_tokens=num_tokens, num_micros=num_micros)

    def micro_batch(
        self,
        losses: torch.Tensor,
        *,
        rows: torch.Tensor | Sequence[int],
        per: Per | None = None,
        mask: torch.Tensor | None = None,
        tokens: torch.Tensor | Sequence[int] | None = None,
        aux: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Records one micro-batch, judges it, and gives the loss to call backward on.

        The first call makes the run folder. With a guard that decides on the host (see `GuardConfig.decide`) this
        waits for the device once, and once more to name the row of a skip that is said; with one that decides on the
        device it waits in the first call only, without any never (on CUDA: elsewhere copies for the log wait).

        Among several ranks a guard sums three numbers over them; in its first call it also compares settings, and
        gathers each `fully_shard` module once. Under `normalize="window"`, with a guard or without, the first call
        without `begin_window` sums one number. A sum on the CPU (gloo) blocks until every rank has called this; by NCCL
        only the device waits, but in the first call, and in each where the host decides.

        Args:
            losses: Unreduced: (B, T) a token, or (N,) with `per` saying what an entry is.
            rows: Dataset rows: (B,) or (B, T) for packed sequences (the row of each token); (N,) for 1-d losses.
            per: "token" or "sample"; token for 2-d losses, required for 1-d ones.
            mask: Which entries are supervised, in the shape of `losses`. None: all.
            tokens: (N,) supervised tokens behind each loss of `per="sample"`; default 1.
            aux: 0-d, further loss terms of this micro-batch (router z, load balance): added divided by `accumulation`
                (or by the `num_micros` of `begin_window`), and left out with the micro-batch when it is skipped.

        Returns:
            A 0-d tensor, for a backward of its own before `step`: with a guard, one backward for the losses of two
            micro-batches raises `UsageError`. Under `normalize="micro"`: (mean + aux) / accumulation. Under "window" it
            is for backward only: its scale is put right by `step`.

        Raises:
            UsageError: If the window is complete already, or a shape, dtype or combination makes no sense, or if the
                run was made before torch.distributed was initialised.
            GuardLockupError: If the guard is set to raise on a lock-up; where the device decides, when the host hears
                of it.
        """
        window = self._core.window
        if window.num_micros >= self._accumulation:
            raise UsageError(
                f"The window of step {self._core.step} is complete ({self._accumulation} micro-batches): call "
                "run.step() when run.window_complete is True, before the next micro_batch."
            )
        self._mean.check_aux(aux)
        if window.num_micros == 0:
            self._ranks.refuse_change(self._process_group)
            if self._stepped is not None:
                self._stepped.begin_window()
        reduced = reduce_to_rows(losses, rows=rows, per=per, mask=mask, tokens=tokens)
        decision = self._gate.take(reduced, extra=aux)
        return self._gate.bind(self._mean.take(reduced, aux, decision), decision)

    @property
    def window_complete(self) -> bool:
        """Whether the window holds `accumulation` micro-batches and `step` is due."""
        return self._core.window.num_micros >= self._accumulation

    @property
    def window_open(self) -> bool:
        """Whether the window holds a micro-batch that was not stepped yet, as it may at the end of an epoch."""
        return self._core.window.num_micros > 0

    # Once a window.

    def step(self, scaler: torch.amp.GradScaler | None = None) -> StepOutcome:
        """Clips, steps the optimizer (or drops the step), and clears the gradients: those of what the optimizer holds.

        Before the window is full this closes it: the gradients are scaled up as if it had its full size. A window
        whose every micro-batch was skipped, or that holds no supervised token, or whose gradient norm is not finite,
        leaves parameters and optimizer state as they are; only with a guard. Call the scheduler after every step,
        stepped or not: the window is its clock. The optimizer's `step` is called either way; one that is dropped finds
        no gradients, or is told by the device to change nothing. With a guard it waits for the device once, but where
        the device decides and the optimizer is fused. Among several ranks `normalize="window"` without a guard sums the
        window's tokens over them (a guard has summed them already), and norms of sharded gradients are summed.

        Args:
            scaler: The gradient scaler whose `scale(loss).backward()` was used, if any; it is updated here.

        Returns:
            What became of the step.

        Raises:
            UsageError: If there is no optimizer, or no micro-batch since the last step, or if the optimizer holds none
                of the model's parameters and finds no gradient, or if the ranks' watches have different settings.
            GuardLockupError: As `micro_batch`, where the device decides; the step may be called again.
        """
        core, gate, optimizer, stepped = self._core, self._gate, self._optimizer, self._stepped
        if optimizer is None or stepped is None:
            raise UsageError("run.step() needs the optimizer: pass optimizer= to Run.")
        window = core.window
        if window.num_micros == 0:
            raise UsageError(
                f"run.step() was called for step {core.step} without any micro_batch since the last step: at the end "
                "of an epoch write `if run.window_open: run.step()`."
            )
        gate.hear()  # what it may raise comes before anything has happened
        parameters = stepped.now()
        if not gate.may_lack_gradients:
            stepped.look_for_motion(parameters, words=core.words, step=core.step)
        scale_before = None
        if scaler is not None:
            scale_before = loss_scale(scaler, device=stepped.device)
            scaler.unscale_(optimizer)  # looks at the zeros of a skip, too: a scaler wants to have seen something
        norms = None
        if not gate.close_window():
            norms = self._mean.put_right(parameters, window, measures=self._max_grad_norm is not None)
        verdict = gate.judge_step(norms)
        stepped.clear_beside(where=verdict.is_for_norm)
        if norms is not None and self._max_grad_norm is not None:
            clip_gradients(parameters, max_norm=self._max_grad_norm, norm=norms.total)
        if scaler is None or scale_before is None:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
            overflowed = loss_scale(scaler, device=scale_before.device) < scale_before
            verdict = verdict.after_scaler(overflowed=overflowed)
        optimizer.zero_grad(set_to_none=True)
        outcome = gate.end(
            verdict,
            loss=self._mean.reported_loss(window),
            num_tokens=self._mean.num_tokens,
            norm=norms.total if norms is not None else None,
            clip_at=self._max_grad_norm,
            lr=current_lr(optimizer),
            loss_scale=scale_before,
        )
        self._mean.begin()
        core.tell_findings()
        return outcome

    # Within.

    def _host_header(self) -> RunHeader:
        """What only the host knows of the run; an integration tells more."""
        return RunHeader(run_id=None, backend="torch")

    def _described(self, header: RunHeader, *, dataset: object, row_id: str) -> RunHeader:
        """The header with what the dataset says about itself."""
        facts = describe(dataset)
        return facts.in_header(header, row_index=self._row_index(facts, row_id))

    def _row_index(self, facts: DatasetFacts, row_id: str) -> str:
        """What a row number of the dataset indexes, in words."""
        return f"{row_id}: {facts.row_index}"
