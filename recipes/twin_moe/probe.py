"""`--probe`: how many tokens a second a shape trains at on this device, and how much memory it takes at most.

In goes a configuration, out come a `Probed` and lines for the person who asked. Invariant: nothing of it stays: no
folder, no log, no entry in the list of runs; and the random numbers of the process are as before.
"""

from __future__ import annotations

import statistics
import sys
import time
from dataclasses import dataclass
from typing import Final

import torch

from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import TwinConfig
from recipes.twin_moe.console import Tell, say
from recipes.twin_moe.engine import Engine

if sys.platform != "win32":
    import resource

_NUM_WARMUP_STEPS: Final = 3
"""Steps before the clock is looked at: memory is fetched, kernels are chosen, AdamW makes its moments."""

_NUM_STEPS: Final = 10
"""Steps that are timed, each by itself."""

_MAX_S: Final = 30.0
"""Seconds after which no further step is begun: a shape that is far too large for its device is known by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """What a shape takes on a device.

    Attributes:
        tokens_per_s: Tokens trained on in a second, in the median step.
        step_s: Seconds of the median step: forward and backward of `accumulation` micro-batches, and the update.
        num_steps: Steps that were timed.
        before_bytes: `peak_bytes` before the model was made.
        peak_bytes: The most memory that was taken: on CUDA what torch allocated on the device; on the CPU the resident
            set of this process, Python and torch included. None where nothing tells it.
        total_bytes: What the device has; None on the CPU.
    """

    tokens_per_s: float
    step_s: float
    num_steps: int
    before_bytes: int | None
    peak_bytes: int | None
    total_bytes: int | None


def probe(config: TwinConfig, *, device: str | torch.device = "cpu", tell: Tell = say) -> Probed:
    """Trains a shape for some steps, guarded and watched as it would be, and forgets it; waits for the device.

    Args:
        config: The shape: model, batch, accumulation, precision.
        device: Where to.
        tell: What to do with a line for the person who waits.

    Raises:
        ConfigError: The shape does not fit into the device's memory.
    """
    where = torch.device(device)
    is_cuda = where.type == "cuda"
    if is_cuda:
        torch.cuda.reset_peak_memory_stats(where)
    before_bytes = _peak_bytes(where)
    total_bytes = torch.cuda.get_device_properties(where).total_memory if is_cuda else None
    try:
        with (
            torch.random.fork_rng(devices=[where] if is_cuda else []),
            Engine(config, out=None, device=where) as engine,
        ):
            tell(_shape(engine))
            seconds = _timed(engine)
            num_tokens = engine.num_tokens
    except torch.OutOfMemoryError as error:
        raise ConfigError(
            f"{config.preset}: micro-batches of {config.data.batch_size} x {config.data.num_tokens} tokens do not fit "
            f"on {where} ({_memory(total_bytes)}): give a smaller data.batch_size, and a larger accumulation."
        ) from error
    step_s = statistics.median(seconds)
    found = Probed(
        tokens_per_s=num_tokens / step_s,
        step_s=step_s,
        num_steps=len(seconds),
        before_bytes=before_bytes,
        peak_bytes=_peak_bytes(where),
        total_bytes=total_bytes,
    )
    tell(
        f"{found.tokens_per_s:,.0f} tokens a second: {1000 * step_s:,.1f} ms for a step of {num_tokens:,} tokens, the "
        f"median of {len(seconds)}"
    )
    tell(f"peak memory {_memory(found.peak_bytes)} {_of_what(found)}")
    return found


def _timed(engine: Engine) -> list[float]:
    """Seconds of each step that is timed; at least one."""
    began, seconds = time.perf_counter(), []
    for number in range(_NUM_WARMUP_STEPS + _NUM_STEPS):
        since = time.perf_counter()
        engine.train_step()
        if engine.device.type == "cuda":
            torch.cuda.synchronize(engine.device)
        now = time.perf_counter()
        is_late = now - began > _MAX_S
        if number >= _NUM_WARMUP_STEPS or is_late:
            seconds.append(now - since)
        if is_late:
            break
    return seconds


def _peak_bytes(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu" or sys.platform == "win32":
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # bytes there, kilobytes elsewhere


def _shape(engine: Engine) -> str:
    config, model = engine.config, engine.config.model
    num_parameters = engine.model.num_parameters()
    return (
        f"{config.preset} on {engine.device}, {config.precision}: {num_parameters.total:,} parameters, "
        f"{num_parameters.active:,} of them act on a token; {model.num_layers} layers of {model.num_experts} experts; "
        f"{config.accumulation} micro-batches of {config.data.batch_size} x {config.data.num_tokens} tokens a step"
    )


def _of_what(found: Probed) -> str:
    if found.total_bytes is not None:
        return f"allocated, of {_memory(found.total_bytes)}"
    return f"of this process, {_memory(found.before_bytes)} of it before the model was made"


def _memory(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else f"{num_bytes / 1e6:,.0f} MB"
