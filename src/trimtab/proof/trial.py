"""`run_trial`: one training of somebody's loop in this process, with what a trial plants in it.

Enters: a factory, a `Trial`. Leaves: an `Outcome`, plain numbers that go from one process to another. Invariant: the
same trial of the same factory gives the same outcome; trials know nothing of one another, and leave the global random
state as they found it.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import torch
import torch.distributed as dist

from trimtab.errors import TrimtabWarning, UsageError
from trimtab.guard import GuardConfig
from trimtab.proof.faults import FAULTS, Plant, micros_at
from trimtab.proof.hosts import Windows
from trimtab.proof.loop import Factory, Loop, build_loop
from trimtab.proof.planting import Planting
from trimtab.proof.snapshot import Snapshot
from trimtab.proof.tokens import without_tokens
from trimtab.rules.aux.values import AuxAudit

GuardSetting = Literal["none", "off", "on", "lenient"]

GUARDS: Final[dict[GuardSetting, GuardConfig | None]] = {
    "none": None,
    "off": GuardConfig(),
    "on": GuardConfig(multiplier=10.0, min_history=3),
    "lenient": GuardConfig(multiplier=1e30, min_history=3),
}
"""What a factory is handed. One that is on: far above what healthy losses do, far below a planted spike; soon through
its warm-up. One that is lenient skips nothing that is finite: so it is seen whether the settings arrive."""

_SEED: Final = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One training.

    Attributes:
        guard: What the factory is handed, by its name in `GUARDS`.
        plants: What is done to which micro-batches, at most one plant a window.
        is_audit: Whether the loop's loss is audited, and nothing is trained.
    """

    guard: GuardSetting
    plants: tuple[Plant, ...] = ()
    is_audit: bool = False


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What came of a trial on one rank.

    Attributes:
        rank: This rank.
        snapshots: The state before the first window, and after each.
        losses: What the loop reported for each window; empty where it reports none.
        num_skipped: What it says it has skipped; None where it does not say.
        num_judged: What it says it was asked about; likewise.
        skipped_tokens: Whether it counts the tokens of what it skips.
        backed: What backward was called on in each micro-batch, window by window, without a guard; NaN where on nothing
            that was seen.
        num_micros: Micro-batches in each window.
        gradients: Flat, as the optimizer found them in the faulty window; None where it found none.
        is_reached: Whether a backward came to the model's output in every planted micro-batch of this rank.
        terms: The tensors of the model's output that a gradient flows through; known where something is planted.
        audit: What the audit of its auxiliary weights says; None where none was asked for, or the loop has none.
        not_applicable: Why the trial could not be made with this loop; empty where it was.
    """

    rank: int
    snapshots: Sequence[Snapshot] = ()
    losses: Sequence[float | None] = ()
    num_skipped: int | None = None
    num_judged: int | None = None
    skipped_tokens: str = "counted"
    backed: Sequence[Sequence[float]] = ()
    num_micros: Sequence[int] = ()
    gradients: np.ndarray | None = None
    is_reached: bool = True
    terms: tuple[str, ...] = ()
    audit: AuxAudit | None = None
    not_applicable: str = ""

    @property
    def end(self) -> Snapshot:
        """The state after the last window."""
        return self.snapshots[-1]

    @property
    def is_finite(self) -> bool:
        """Whether parameters and moments are, after every window."""
        return all(snapshot.is_finite for snapshot in self.snapshots)


def run_trial(factory: Factory, trial: Trial) -> Outcome:
    """Builds the loop anew and trains it once, or audits its loss.

    Among several ranks each calls it with the same trial, in the same order.

    Args:
        factory: Builds the loop.
        trial: The guard, and what is planted.

    Raises:
        UsageError: The factory gave no loop that can be proven, or the loop called its model otherwise than once a
            micro-batch.
        Exception: Whatever the factory or the loop raises.
    """
    rank = dist.get_rank() if dist.is_available() and dist.is_initialized() else 0
    with _quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        loop = build_loop(factory, GUARDS[trial.guard])
        if trial.is_audit:
            return Outcome(rank=rank, audit=_audit(loop))
        windows = _windows_with(loop, trial.plants, rank=rank)
        if windows is None:
            why = "its batches name no labels, targets or mask, so that nobody knows which tokens are supervised"
            return Outcome(rank=rank, not_applicable=why)
        planting = Planting(loop, trial.plants, rank=rank, sees_backward=trial.guard == "none")
        with planting.watching():
            losses = loop.train(windows)
        num_skipped = int(loop.num_skipped()) if loop.num_skipped is not None else None
        num_judged = int(loop.num_judged()) if loop.num_judged is not None else None
    return Outcome(
        rank=rank,
        snapshots=planting.snapshots,
        losses=_checked(losses, num_windows=len(windows)),
        num_skipped=num_skipped,
        num_judged=num_judged,
        skipped_tokens=loop.skipped_tokens,
        backed=planting.backed,
        num_micros=[len(micros) for micros in windows],
        gradients=planting.gradients,
        is_reached=planting.is_reached,
        terms=planting.terms,
    )


def _audit(loop: Loop) -> AuxAudit | None:
    if loop.audit is None:
        return None
    audit = loop.audit()
    if not isinstance(audit, AuxAudit):
        raise UsageError(
            f"Loop.audit gave an object of type {type(audit).__name__}, expected what "
            "trimtab.moe.audit_aux_weights(...) gives."
        )
    return audit


def _windows_with(loop: Loop, plants: Sequence[Plant], *, rank: int) -> Windows | None:
    """The loop's windows, without supervised tokens where a plant of this or another rank takes them.

    Whether that is possible is found out on every rank, for all must go on or none.
    """
    windows = [list(micros) for micros in loop.windows]
    for plant in plants:
        if plant.fault is None or not FAULTS[plant.fault].takes_tokens:
            continue
        for micro in micros_at(plant.place, num_micros=len(windows[plant.window])):
            emptied = without_tokens(windows[plant.window][micro])
            if emptied is None:
                return None
            if rank in plant.ranks:
                windows[plant.window][micro] = emptied
    return windows


def _checked(losses: Any, *, num_windows: int) -> Sequence[float | None]:
    if losses is None:
        return ()
    found = [None if loss is None else float(loss) for loss in losses]
    if len(found) != num_windows:
        raise UsageError(
            f"Loop.train gave {len(found)} losses for {num_windows} windows: give one a window (None where it has "
            "none), or None for all."
        )
    return found


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Trimtab's own words: a proof makes a guard skip on purpose, again and again."""
    logger = logging.getLogger("trimtab")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", TrimtabWarning)
            yield
    finally:
        logger.setLevel(level)
