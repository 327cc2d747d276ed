"""The rows of the history, and on which scale each column is: a column is added here, in the function of its row.

In go what the engine measured, out come mappings of plain values by column. Invariants: the figures of many steps come
to the host in one transfer; a figure beside them that fails is null, and costs no other column.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import torch

import trimtab
from recipes.twin_moe.console import Contained
from recipes.twin_moe.engine import Engine, Evaluated, Measured
from recipes.twin_moe.segments import Start, path_of
from trimtab import memory

SCALES: Final[Mapping[str, str]] = {
    "loss": "ce + lbl_weighted + z_weighted + xpop_weighted, mean over the micro-batches that were kept",
    "ce": "nats a token, mean over the micro-batches that were kept",
    "lbl": "mean over layers, Switch: 1 at balance; mean over all micro-batches of the step",
    "z": "mean over layers of the mean of logsumexp(router logits)^2; mean over all micro-batches of the step",
    "z_mean": "z under the name by which trimtab rewind knows its scale",
    "xpop": "mean over layers of the size of the cosine between the populations' weights",
    "grad_norm": "2-norm of all gradients before clipping",
    "tokens_per_s": "over the steps since the last write, or of an evaluation since the last one",
}
"""What the columns are measured on: a part of the record, for figures on another scale are not comparable."""


def fetch(measured: Sequence[Measured]) -> list[list[float]]:
    """The sums of each of some steps, brought to the host at once; waits for the device."""
    return torch.stack([step.sums for step in measured]).cpu().tolist()


def segment_row(engine: Engine, *, start: Start, begins_at_step: int) -> dict[str, Any]:
    """What the rows behind it are of: of each call that trains, one."""
    return {
        "kind": "segment",
        "segment": start.segment.number,
        "run_id": engine.run.run_id,
        "preset": engine.config.preset,
        "begins_at_step": begins_at_step,
        "resumed_from": None if start.resume is None else str(path_of(start.resume)),
        "weights_from": None if start.weights is None else str(path_of(start.weights)),
        "scales": dict(SCALES),
        "settings": asdict(engine.config),
        "device": str(engine.device),
        "versions": {
            "trimtab": trimtab.__version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "time": time.time(),
    }


def step_row(
    engine: Engine,
    measured: Measured,
    sums: Sequence[float],
    *,
    segment: int,
    tokens_per_s: float | None,
    contained: Contained,
) -> dict[str, Any]:
    """A step.

    Args:
        engine: What took it.
        measured: The step.
        sums: Its figures, of `fetch`.
        segment: The number of its segment.
        tokens_per_s: Over the steps that were fetched with it.
        contained: Asks for a figure that may fail.
    """
    outcome, accumulation, optim = measured.outcome, engine.config.accumulation, engine.config.optim
    total, *terms = sums
    lbl, z, xpop = (term / accumulation for term in terms)
    # What backward was called on is divided by `accumulation`, and 0 where the guard left it out; so is the loss.
    num_kept = accumulation - outcome.num_skipped_micros
    scale = accumulation / num_kept if num_kept else None
    return {
        "kind": "step",
        "segment": segment,
        "run_id": engine.run.run_id,
        "step": measured.step,
        "loss": None if scale is None else total * scale,
        "ce": None if scale is None else outcome.loss * scale,
        "lbl": lbl,
        "z": z,
        "z_mean": z,  # a name that says the scale: `trimtab rewind` takes a z without it for a sum over layers
        "xpop": xpop,
        "lbl_weighted": optim.lbl_weight * lbl,
        "z_weighted": optim.z_weight * z,
        "xpop_weighted": optim.xpop_weight * xpop,
        "lr": outcome.lr,
        "grad_norm": outcome.grad_norm,
        "tokens_per_s": tokens_per_s,
        "device_memory_bytes": contained("device memory", lambda: _device_peak_bytes(engine.device)),
        "reason": outcome.reason,
        "num_skipped_micros": outcome.num_skipped_micros,
    }


def eval_row(
    engine: Engine,
    found: Evaluated,
    *,
    best: Mapping[str, Any] | None,
    segment: int,
    tokens_per_s: float | None,
    contained: Contained,
) -> dict[str, Any]:
    """An evaluation.

    Args:
        engine: What evaluated.
        found: What it found; a figure that is added there is a column.
        best: `Engine.best_eval()` with this one; None: not known.
        segment: The number of its segment.
        tokens_per_s: Over the steps since the last one.
        contained: Asks for a figure that may fail.
    """
    best = best or {}
    watched = contained("watch figures", engine.run.watch_figures) or {}
    return {
        "kind": "eval",
        "segment": segment,
        "run_id": engine.run.run_id,
        "eval_loss": found.ce,
        **found._asdict(),
        "clip_fraction": watched.get("clip_fraction"),
        "regress_streak": best.get("num_worse"),
        "best_eval": best.get("best"),
        "best_eval_step": best.get("best_step"),
        "tokens_per_s": tokens_per_s,
        "device_memory_bytes": contained("device memory", lambda: _device_peak_bytes(engine.device)),
        "host_available_bytes": contained("host memory", memory.available_bytes),
    }


def _device_peak_bytes(device: torch.device) -> int | None:
    """The most that was taken on the device up to now; None on the CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
