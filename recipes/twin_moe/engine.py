"""The engine: it owns forward, backward, step, evaluation and checkpoints; Trimtab guards, records and watches it.

In go micro-batches by number, out come trained weights, a log of the run, and checkpoints. Invariants: a training that
was interrupted goes on, bit for bit on the CPU, as one that was not; on a CUDA device no step waits for the host but
where a router's load has to be known (`recipes.twin_moe.model`); the schedule advances with every step, stepped or not.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import torch

import trimtab
from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import TwinConfig
from recipes.twin_moe.data import Batch, MicroBatches, eval_batches
from recipes.twin_moe.losses import loss_terms, token_losses
from recipes.twin_moe.model import Output
from recipes.twin_moe.parts import build_parts, schedule_of
from trimtab import moe
from trimtab.checkpoint import Checkpointer, CheckpointInfo, Resumed, RoundTrip, round_trip

GUARD: Final = trimtab.GuardConfig(rule="robust")
"""A micro-batch whose loss stands out of the last hundred ones, or is not finite, is left out of its update."""

_DEAD_CHANCE: Final = 1e-6
"""An expert without a token is dead where chance explains it with less, as in `trimtab.WatchConfig`."""


class Measured(NamedTuple):
    """One step before its figures are on the host.

    Attributes:
        step: The optimizer step (1-based).
        outcome: What became of it.
        sums: (4,) float64 on the device: over the micro-batches the sum of the losses that backward was called on, and
            of lbl, z, xpop without their weights.
    """

    step: int
    outcome: trimtab.StepOutcome
    sums: torch.Tensor


class Evaluated(NamedTuple):
    """What the held-out text says of the weights as they are: plain values, each a column of the history.

    Attributes:
        step: Optimizer steps that are behind them.
        ce: Mean cross-entropy, nats a token.
        z: Router z, mean over layers.
        population_shares: (P,) share of the routed tokens of each population, mean over layers.
        dead_fraction: Experts without a token, of those of all layers; None where so few tokens prove nothing.
    """

    step: int
    ce: float
    z: float
    population_shares: list[float]
    dead_fraction: float | None


class Engine:
    """One training. Use it as a context, so that its run is closed, and its hooks come off, whatever happens.

    while engine.step < config.num_steps:
        engine.train_step()
    engine.evaluate(), engine.save(checkpointer, best_eval=engine.best_eval())

    Attributes:
        config: The settings.
        device: Where it trains.
        model: The model.
        optimizer: AdamW.
        scheduler: Warm-up, then a cosine.
        run: Trimtab's `Run`: recorder, guard, watch.
        step: Steps that are behind, stepped or not: the schedule's clock.
        loss: Of the last step, as it was logged; None before the first one.
        num_tokens: Tokens of one step.
    """

    def __init__(
        self,
        config: TwinConfig,
        *,
        out: Path | None,
        device: str | torch.device = "cpu",
        guard: trimtab.GuardConfig | None = GUARD,
    ) -> None:
        """Makes all that trains; nothing is written before the first step.

        Args:
            config: The settings.
            out: Folder under which the log of the run is written; None: nothing is recorded.
            device: Where to train.
            guard: Settings of the guard; None: nothing is ever left out.
        """
        self.config = config
        self.device = torch.device(device)
        torch.manual_seed(config.seed)
        self.model, self.optimizer, self.scheduler = build_parts(config, device=self.device)
        self.step = 0
        self.num_tokens = config.accumulation * config.data.batch_size * config.data.num_tokens
        self._batches = MicroBatches(config.data, seed=config.seed)
        self._held_out = eval_batches(config.data)
        self._outcome: trimtab.StepOutcome | None = None
        self._saved_loss: float | None = None
        watch = moe.RouterWatch(
            self.model,
            routers=lambda model: {f"blocks.{layer}.router": router for layer, router in enumerate(model.routers)},
            num_populations=config.model.num_populations,
            experts=lambda model: model.expert_weights(),
            top_k=config.model.top_k,
            config=trimtab.WatchConfig(report_every=config.report_every),
        )
        self.run = trimtab.Run(
            out,
            record=out is not None,
            model=self.model,
            optimizer=self.optimizer,
            accumulation=config.accumulation,
            max_grad_norm=config.optim.max_grad_norm,
            guard=guard,
            watch=watch,
            schedule=schedule_of(config),
            dataset=self._batches.windows,
            row_id="window",
        )

    def train_step(self, micro_batches: Sequence[Batch] | None = None) -> Measured:
        """Trains one step, of `accumulation` micro-batches; waits for no figure of it.

        Args:
            micro_batches: What to train on; None: the micro-batches that are due, by their number.
        """
        sums = torch.zeros(4, dtype=torch.float64, device=self.device)
        first = self.step * self.config.accumulation
        due = range(first, first + self.config.accumulation)
        for batch in micro_batches if micro_batches is not None else (self._batches[number] for number in due):
            output = self._forward(batch.input_ids)
            terms = loss_terms(output, batch.labels.to(self.device), optim=self.config.optim, model=self.model)
            loss = self.run.micro_batch(terms.token_losses, rows=batch.rows, aux=terms.aux)
            loss.backward()
            sums += torch.stack([part.detach().double() for part in (loss, terms.lbl, terms.z, terms.xpop)])
        outcome = self.run.step()
        self.scheduler.step()  # stepped or not: the window is the schedule's clock
        self.step += 1
        self._outcome = outcome
        return Measured(self.step, outcome, sums)

    @property
    def loss(self) -> float | None:
        """Of the last step, as it was logged; None before the first one. Waits for the device."""
        return self._saved_loss if self._outcome is None else self._outcome.loss

    @torch.no_grad()
    def evaluate(self) -> Evaluated:
        """Looks at the held-out text, which changes nothing; waits for the device once at its end."""
        model = self.config.model
        sums = torch.zeros(2, dtype=torch.float64, device=self.device)
        counts = torch.zeros(model.num_layers, model.num_experts, dtype=torch.int64, device=self.device)
        num_tokens = 0
        self.model.eval()
        try:
            for batch in self._held_out:
                output = self._forward(batch.input_ids)
                layers = list(output.router_logits)
                losses = token_losses(output, batch.labels.to(self.device))
                sums += torch.stack([losses.double().mean(), moe.router_z_loss(layers).double().mean()])
                counts += moe.expert_counts(layers, top_k=model.top_k)
                num_tokens += losses.numel()
        finally:
            self.model.train()
        ce, z = (sums / len(self._held_out)).tolist()
        load = counts.cpu()
        of_populations = load.view(model.num_layers, model.num_populations, -1).sum(-1).double()
        shares = (of_populations / of_populations.sum(-1, keepdim=True)).mean(0)
        is_enough = (1 - model.top_k / model.num_experts) ** num_tokens < _DEAD_CHANCE
        return Evaluated(
            step=self.step,
            ce=ce,
            z=z,
            population_shares=shares.tolist(),
            dead_fraction=(load == 0).double().mean().item() if is_enough else None,
        )

    def best_eval(self) -> dict[str, Any] | None:
        """`best`, `best_step` and `num_worse`, the evaluations in a row that were worse; None where there was none.

        It is the watch that counts them, so that they go on with its state in a checkpoint.
        """
        figures = self.run.watch_figures().get("evaluations", {}).get("")
        return None if figures is None else {name: figures[name] for name in ("best", "best_step", "num_worse")}

    # Checkpoints.

    def save(self, checkpointer: Checkpointer, *, best_eval: Mapping[str, Any] | None) -> CheckpointInfo | None:
        """Saves everything that decides how training goes on; waits for the device and the disk.

        Args:
            checkpointer: What saves it.
            best_eval: For the person who goes on from it, as `best_eval()` gives it; it decides nothing, and a figure
                that cannot be told must not cost the save.

        Returns:
            What was saved; None where it failed, which was said.
        """
        return checkpointer.save(
            self.step,
            model=self.model,
            optimizer=self.optimizer,
            scheduler=self.scheduler,
            run=self.run,
            loss=self.loss,
            data={"next_micro_batch": self.step * self.config.accumulation},
            best_eval=best_eval,
            config=asdict(self.config),
        )

    def resume(
        self, checkpointer: Checkpointer, checkpoint: CheckpointInfo | Path, *, lr: float | None = None
    ) -> Resumed:
        """Goes on where `save` was called; before the first step.

        Args:
            checkpointer: What loads it.
            checkpoint: Which one.
            lr: Peak learning rate from here on, that of `config`, at the same place of the schedule; None: as saved.

        Raises:
            CheckpointError: It cannot be gone on from.
            ConfigError: It is at another place of the data than its step says.
        """
        with _without_notes():
            resumed = checkpointer.load(
                checkpoint, model=self.model, optimizer=self.optimizer, scheduler=self.scheduler, run=self.run, lr=lr
            )
        found, expected = resumed.data, {"next_micro_batch": resumed.step * self.config.accumulation}
        if not isinstance(found, Mapping) or dict(found) != expected:
            raise ConfigError(
                f"{resumed.path}: says {found!r} of its place in the data, expected {expected}: it is of "
                "another trainer."
            )
        self.step, self._saved_loss = resumed.step, resumed.loss
        return resumed

    def load_weights(self, checkpointer: Checkpointer, checkpoint: CheckpointInfo | Path) -> Resumed:
        """Begins from a checkpoint's weights; steps, schedule, moments and random numbers begin anew.

        Raises:
            CheckpointError: It is not whole, or of another model.
        """
        with _without_notes():
            return checkpointer.load(checkpoint, model=self.model)

    def round_trip(self, checkpoint: CheckpointInfo) -> RoundTrip:
        """Loads what was just saved into parts made afresh, compares bit for bit, probes, and records what came of it.

        The training and its random numbers stay as they are. Takes memory for a second model with its moments.
        """
        with _without_notes(), self._autocast():  # for the probe; nothing else computes
            return round_trip(
                checkpoint,
                build=lambda: build_parts(self.config, device=self.device),
                model=self.model,
                optimizer=self.optimizer,
                scheduler=self.scheduler,
                step=self.step,
                loss=self.loss,
                run=self.run,
                probe_ids=self._held_out[0].input_ids.to(self.device),
            )

    # The run.

    def close(self) -> None:
        """Ends the run in good order; a second call does nothing."""
        self.run.close()

    def __enter__(self) -> Self:
        """Gives the engine itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the run, naming the error that ended it, if any."""
        self.run.__exit__(kind, error, trace)

    def _forward(self, input_ids: torch.Tensor) -> Output:
        with self._autocast():
            return self.model(input_ids.to(self.device))

    def _autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bfloat16")


@contextmanager
def _without_notes() -> Iterator[None]:
    """Keeps Trimtab from telling what the trainer tells in its own words; warnings are told all the same."""
    logger = logging.getLogger("trimtab.checkpoint")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)
