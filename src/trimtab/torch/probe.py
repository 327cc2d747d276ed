"""`generation_probe`: what a model that was just loaded would say next, in four numbers.

Enters: a model and token ids. Leaves: a `Probe`: whether the logits are finite, the five likeliest tokens, the entropy
and the coefficient of variation of the distribution over the vocabulary, and which of five shapes that has. Invariant:
nothing of a training moves: mode, gradients, buffers and random numbers are as before.

Shapes: B sequences, T tokens, V words of the vocabulary.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeGuard

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.resume.round_trip import ProbeFacts
from trimtab.torch.module_names import module_inside
from trimtab.torch.rng import kept_rng

if TYPE_CHECKING:
    from torch.distributed.fsdp import FSDPModule

Shape = Literal["peaked", "flat", "uniform", "one-hot", "nonfinite"]

NUM_TOP: Final = 5

UNIFORM_CV: Final = 0.1
"""Coefficient of variation up to which a distribution is uniform. Weights that are zero, or a head that nothing
reaches, have 0; initialised weights have the spread of their logits, 0.08 (a Llama of width 16) and more with the
width. Who has learned no more than which words are frequent is far above: a tenth is 0.005 nats below ln V."""

FLAT: Final = 0.95
"""Part of ln V from which the entropy is that of a model that knows little, though it is not uniform. Models that were
only initialised have 0.986 (GPT-2 of width 768), and less the wider they are: one of width 4,096 is not told from a
trained one by this. Trained language models have 2 to 5 of 10.8 nats, half of it or less; but a small one that is sound
may have 0.96 on text that is not its own. So neither is said."""

ONE_HOT_ENTROPY: Final = 1e-3
"""Entropy in nats from which downwards nothing but one word is left: it has 0.9999 or more of the probability. A sure
model gives a word that must come 0.99 to 0.999, which is 0.1 to 0.01 nats with a vocabulary of 50,000; below stands a
model whose logits have run away, everywhere. So the surest position does not decide: the mean over positions does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe(ProbeFacts):
    """What a model gave for the last token of each sequence, and for all positions in the mean.

    Attributes:
        shape: "peaked" (as a trained model), "flat" (a model that knows little, or one that was only initialised),
            "uniform" (entropy ln V, cv 0: weights at zero, or a head that nothing reaches), "one-hot" (logits that ran
            away), "nonfinite".
        num_nonfinite: Logits that are NaN or infinite, of all positions; not those of `num_masked`.
        num_masked: Logits of minus infinity, of all positions, where others of the position are finite: words that the
            model rules out, as those by which a vocabulary is padded. They have probability 0, and the other numbers
            are of the rest.
        top_ids: The likeliest tokens after the first sequence's last one, the likeliest first; none where not finite.
        top_probabilities: Their probabilities, 0..1.
        entropy: Of the distribution, in nats, 0 to ln V; mean over positions. NaN where a logit is not finite.
        cv: Its standard deviation over its mean, 0 (uniform) to the root of V - 1 (one-hot); mean over positions.
        vocabulary_size: V.
    """

    shape: Shape
    num_masked: int
    top_ids: tuple[int, ...]
    top_probabilities: tuple[float, ...]

    @property
    def remark(self) -> str:
        """What is to be said of it, in one sentence."""
        if self.shape == "nonfinite":
            return (
                f"{self.num_nonfinite} logits are not finite: weights are NaN or infinite, or the precision overflows."
            )
        numbers = f"entropy {self.entropy:.3g} of at most {math.log(self.vocabulary_size):.3g} nats, cv {self.cv:.3g}"
        if self.num_masked:
            numbers += f"; {self.num_masked} logits are -inf, probability 0"
        if self.shape == "uniform":
            return (
                f"Every token is as likely as any other ({numbers}): as of weights that were not restored, or a head "
                "that nothing reaches."
            )
        if self.shape == "flat":
            return (
                f"The distribution is nearly flat ({numbers}): as of a model that has learned little, or of weights "
                "that were only initialised; these ids do not tell which."
            )
        if self.shape == "one-hot":
            return f"One token takes all ({numbers}): the logits ran away, or a scale was restored twice."
        best = f"token {self.top_ids[0]} leads with {self.top_probabilities[0]:.3g}"
        return f"The distribution is peaked, as a trained model's is: {best} ({numbers})."


def generation_probe(model: nn.Module, input_ids: torch.Tensor) -> Probe:
    """Runs a model once, forward only, and looks at what it would say next. Waits for the device.

    Call it between two windows: after loading a checkpoint, and before the first step. Among several ranks of a model
    that `fully_shard` has sharded every rank calls it, each with any ids, for its forward gathers weights; a rank that
    does not leaves the others waiting. Under DDP one rank may call it alone: the module inside is run, that of
    `torch.compile` too.

    Args:
        model: Called as `model(input_ids)`; gives logits (B, T, V), (T, V) or (B, V), or a tuple or a mapping that
            begins with them, or an object with `.logits`.
        input_ids: (B, T) or (T,) integer token ids, T of 1 or more; moved to the model's device.

    Returns:
        What was found. The model's mode, gradients and buffers, and the global random numbers of Python, NumPy and
        torch, are as before.

    Raises:
        UsageError: The ids are no integers, or there are none; or what the model gives holds no logits.

    Example:
        >>> probe = generation_probe(nn.Embedding(4, 8), torch.tensor([[1, 2]]))
        >>> probe.vocabulary_size
        8
    """
    check_ids(input_ids)
    inside = module_inside(model)
    ids = input_ids.reshape(-1, input_ids.shape[-1])
    place = next(inside.parameters(), None)
    if place is not None:
        ids = ids.to(place.device)
    with _untouched(inside), torch.no_grad():
        logits = _logits(inside(ids))
        if hasattr(logits, "full_tensor"):  # a head that tensor parallelism has split
            logits = logits.full_tensor()
        return _probe(logits.detach().reshape(-1, logits.shape[-1]), last=ids.shape[1] if logits.dim() > 2 else 1)


def check_ids(input_ids: object) -> None:
    """Refuses, with `UsageError`, what are no token ids."""
    if not isinstance(input_ids, torch.Tensor) or input_ids.is_floating_point() or input_ids.dtype == torch.bool:
        raise UsageError(f"generation_probe takes token ids, a tensor of integers, found {_spelled(input_ids)}.")
    if not input_ids.numel() or input_ids.dim() not in (1, 2):
        raise UsageError(f"generation_probe takes token ids of shape (B, T) or (T,), found {_spelled(input_ids)}.")


def _probe(logits: torch.Tensor, *, last: int) -> Probe:
    """Of (N, V) logits, whose first sequence ends at place `last`."""
    size = logits.shape[-1]
    masked = torch.isneginf(logits)
    masked &= ~masked.all(-1, keepdim=True)  # a position without any word left is broken
    num_nonfinite, num_masked = int((~(torch.isfinite(logits) | masked)).sum()), int(masked.sum())
    if num_nonfinite:
        return Probe(
            shape="nonfinite",
            num_nonfinite=num_nonfinite,
            num_masked=num_masked,
            top_ids=(),
            top_probabilities=(),
            entropy=math.nan,
            cv=math.nan,
            vocabulary_size=size,
        )
    entropies, variations, most = [], [], []
    for row, is_masked in zip(logits, masked, strict=True):  # float64 of all would take 8 bytes for each word
        logs = _log_probabilities(row[~is_masked] if num_masked else row)
        probabilities = logs.exp()
        entropies.append(float(-(probabilities * logs).sum()))
        variations.append(float((probabilities * logs.numel() - 1).square().mean().sqrt()))
        most.append(math.log(logs.numel()))
    best = _log_probabilities(logits[last - 1]).exp().topk(min(NUM_TOP, size))
    entropy, cv, limit = (math.fsum(values) / len(values) for values in (entropies, variations, most))
    return Probe(
        shape=_shape(entropy, cv, limit=limit),
        num_nonfinite=0,
        num_masked=num_masked,
        top_ids=tuple(best.indices.tolist()),
        top_probabilities=tuple(best.values.tolist()),
        entropy=entropy,
        cv=cv,
        vocabulary_size=size,
    )


def _shape(entropy: float, cv: float, *, limit: float) -> Shape:
    if limit > 0 and cv <= UNIFORM_CV:
        return "uniform"
    if limit > 0 and entropy >= FLAT * limit:
        return "flat"
    return "one-hot" if entropy <= ONE_HOT_ENTROPY else "peaked"


def _log_probabilities(logits: torch.Tensor) -> torch.Tensor:
    """(V,) in float64, on the CPU where a device has none."""
    wide = logits.cpu() if logits.device.type == "mps" else logits
    return torch.log_softmax(wide.to(torch.float64), dim=-1)


def _logits(output: Any) -> torch.Tensor:
    """The logits in what a model gave."""
    found = getattr(output, "logits", None)
    if found is None and isinstance(output, dict):
        found = output.get("logits")
    if found is None:
        found = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(found, torch.Tensor) or found.dim() not in (2, 3) or not found.is_floating_point():
        raise UsageError(
            "generation_probe needs logits of shape (B, T, V) from model(input_ids), as a tensor, first in a tuple, or "
            f"as .logits; found {_spelled(found)}. Wrap the model so that it gives them."
        )
    return found


@contextmanager
def _untouched(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards every module's mode, every buffer and every random number is as before."""
    modes = [(module, module.training) for module in model.modules()]
    # A forward may fill a buffer in place, put another tensor in its place, or add one.
    buffers = [(module, dict(module._buffers)) for module in model.modules()]
    values = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        with kept_rng():
            for module, _ in modes:
                module.training = False  # `eval()` may be a method of the user's that does more
            yield
    finally:
        for module, mode in modes:
            module.training = mode
            # A forward without a backward leaves the root of a `fully_shard` model gathered.
            if _is_sharded(module):
                module.reshard()
        for module, before in buffers:
            for name in [name for name, buffer in module._buffers.items() if before.get(name, module) is not buffer]:
                if name in before:
                    module._buffers[name] = before[name]
                else:
                    delattr(module, name)
        with torch.no_grad():
            for buffer, value in values:
                if not torch.equal(buffer, value):
                    buffer.copy_(value)


def _is_sharded(module: nn.Module) -> TypeGuard[FSDPModule]:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # takes long to load, and who sharded a module has loaded it
    return fsdp is not None and isinstance(module, fsdp.FSDPModule)


def _spelled(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__
