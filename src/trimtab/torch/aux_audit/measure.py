"""What an audit measures of one micro-batch: gradients of the loop's loss and of terms, as dot products.

Enters: a micro-batch, the loop's loss, terms by their definitions. Leaves: a `Measured`, plain numbers. Invariant: the
two forwards draw the same random numbers, and the loss is refused where a number of it is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from trimtab.errors import UsageError
from trimtab.rules.aux.held import Outside
from trimtab.rules.aux.projection import Gram
from trimtab.text import listed, plain
from trimtab.torch.aux_audit.calls import Reading, layers_read
from trimtab.torch.aux_audit.grams import dot_products, gradient
from trimtab.torch.aux_audit.held import parts_outside
from trimtab.torch.aux_audit.model import Listening
from trimtab.torch.rng import CheckedRng
from trimtab.torch.router.families import Router

Losses = Callable[[Any, int], Mapping[str, Any]]
"""The loop's loss: takes a micro-batch and the accumulation; gives "total", "ce" and what the loop logs."""

TOTAL: Final = "total"
CE: Final = "ce"
ROUTER_LOGITS: Final = "router_logits"

TOTAL_AT, WINDOW_AT, CE_AT, FIRST_TERM_AT = 0, 1, 2, 3
"""Places of gradients in a matrix of dot products."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a term is made of.

    Attributes:
        batch: The micro-batch.
        given: What the loop's loss gave for it.
        logits: (L,) of (..., E), the routers' logits with their graph.
        mask: Which tokens are real; None: all.
    """

    batch: Any
    given: Mapping[str, Any]
    logits: Sequence[torch.Tensor]
    mask: torch.Tensor | None


Made = Callable[[Seen], Any]
"""Makes a term, 0-d, as it is defined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Numbers of one micro-batch.

    Attributes:
        gram: (M, M) dot products of the gradients of total, of total in a window times the accumulation, of ce, and of
            each term.
        total: Value of the loss at accumulation 1.
        ce: Value of ce.
        values: Of each term.
        given: Numbers that the loop's loss gave, by name.
        outside: Parts of the gradients by the logits, of ce and of each term, that ce itself has none of.
        is_rough: Whether gradients are of half precision, or of products that a GPU rounds so.
        num_calls: How often the router that was called most was called; 0 where nobody listened.
        num_layers: L; None where no logits are needed.
        num_experts: E; None likewise, and where layers differ.
    """

    gram: Gram
    total: float
    ce: float
    values: tuple[float, ...]
    given: Mapping[str, float]
    outside: tuple[Outside, ...]
    is_rough: bool
    num_calls: int
    num_layers: int | None
    num_experts: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measuring:
    """How micro-batches of one audit are measured.

    Attributes:
        losses: The loop's loss.
        accumulation: N.
        mask: Gives the real tokens of a micro-batch; None: all are.
        routers: Whom to listen to; none where no term is made of logits.
        needs_logits: Whether one is.
        parameters: By which gradients are taken.
        all_parameters: The model's, none of which has a gradient before `losses` is called.
        top_k: k; None where it is not known.
        drawn: What generators are put back to before each forward.
        reading: What is taken of routers that are called more than once.
    """

    losses: Losses
    accumulation: int
    mask: Callable[[Any], torch.Tensor | None] | None
    routers: Sequence[Router]
    needs_logits: bool
    parameters: Sequence[torch.Tensor]
    all_parameters: Sequence[torch.Tensor]
    top_k: int | None
    drawn: CheckedRng
    reading: Reading = "first"

    def measure(self, batch: Any, terms: Mapping[str, Made]) -> Measured:
        """Two forwards, and a gradient of each value.

        Args:
            batch: The micro-batch.
            terms: What is measured beside total and ce, in this order.

        Raises:
            UsageError: The loss gives something else than it must, or is not finite; no router is heard.
        """
        window = gradient(_scalar(self._given(batch, self.accumulation), TOTAL), self.parameters, name=TOTAL)
        window = [None if part is None else part * self.accumulation for part in window]
        listening = Listening()
        with listening.to(self.routers if self.needs_logits else ()):
            given = self._given(batch, 1)
        total, ce = _scalar(given, TOTAL), _scalar(given, CE)
        logits = self._logits(given, listening) if self.needs_logits else []
        seen = Seen(batch=batch, given=given, logits=logits, mask=self.mask(batch) if self.mask is not None else None)
        values = {name: _scalar({name: made(seen)}, name) for name, made in terms.items()}
        if not total.requires_grad:
            raise UsageError(
                'losses gave a "total" without a gradient: give the tensor that the loop calls backward on, before it '
                "does, and outside of no_grad."
            )
        of_total = gradient(total, self.parameters, name=TOTAL)
        if all(part is None for part in of_total):
            raise UsageError(
                "The loss does not depend on the routers' parameters: are they of another model than the one that "
                "losses calls? Pass the model of the loop, or parameters= that the loss trains; with activation "
                "checkpointing pass use_reentrant=False to it."
            )
        by = [*self.parameters, *logits]
        apart = [gradient(value, by, name=name) for name, value in ((CE, ce), *values.items())]
        gradients = [of_total, window, *(one[: len(self.parameters)] for one in apart)]
        by_logits = [one[len(self.parameters) :] for one in apart]
        experts = {layer.shape[-1] for layer in logits}
        return Measured(
            gram=_finite(dot_products(gradients)),
            total=float(total.detach()),
            ce=float(ce.detach()),
            values=tuple(float(value.detach()) for value in values.values()),
            given={name: number for name, value in given.items() if (number := _number(value)) is not None},
            outside=parts_outside(by_logits, logits, top_k=self.top_k) if logits else (),
            is_rough=any(_is_rough(values) for values in (*self.all_parameters, *logits)),
            num_calls=max(map(len, listening.heard.values()), default=0),
            num_layers=len(logits) or None,
            num_experts=experts.pop() if len(experts) == 1 else None,
        )

    def _given(self, batch: Any, accumulation: int) -> Mapping[str, Any]:
        self.drawn.restore()
        given = self.losses(batch, accumulation)
        if any(parameter.grad is not None for parameter in self.all_parameters):
            raise UsageError(
                "losses called backward: it must give tensors of one forward, before any backward, for gradients are "
                "taken here, term by term. The model's gradients are as they were."
            )
        if not isinstance(given, Mapping) or TOTAL not in given or CE not in given:
            found = f"a mapping of {listed(map(repr, given))}" if isinstance(given, Mapping) and given else type(given)
            raise UsageError(
                f'losses gave {plain(str(found))}, expected a mapping with "total" (what backward is called on) and '
                '"ce" (the loss without any auxiliary term, undivided), 0-d tensors with their graph.'
            )
        return given

    def _logits(self, given: Mapping[str, Any], listening: Listening) -> list[torch.Tensor]:
        own, heard = given.get(ROUTER_LOGITS), listening.heard
        if own is not None:
            logits = {f"{ROUTER_LOGITS}[{place}]": layer for place, layer in enumerate(own)}
        else:
            # In the order of the model, whatever the order of the calls.
            calls = {router.name: heard[router.name] for router in self.routers if router.name in heard}
            logits = layers_read(calls, reading=self.reading)
            if listening.unread:
                name, why = next(iter(listening.unread.items()))
                raise UsageError(
                    f"The router {plain(name)} cannot be read: {why}. Pass routers= that can, or have losses give the "
                    'logits of all of them as "router_logits".'
                )
        if not logits:
            raise UsageError(
                "No router gave logits while losses ran: pass routers= (the modules), have losses give their logits as "
                '"router_logits", and hand over the model as it was before torch.compile.'
            )
        for name, layer in logits.items():
            if not isinstance(layer, torch.Tensor) or not layer.requires_grad:
                raise UsageError(
                    f"The logits of {plain(name)} carry no gradient: with activation checkpointing pass "
                    "use_reentrant=False to it, or switch it off for the audit; else look for a detach or no_grad on "
                    "the way to them."
                )
        return list(logits.values())


def _scalar(given: Mapping[str, Any], name: str) -> torch.Tensor:
    value = given[name]
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        found = f"shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"type {type(value).__name__}"
        raise UsageError(f"{plain(name)} is of {found}, expected a 0-d tensor with its graph.")
    if not math.isfinite(float(value.detach())):
        raise UsageError(
            f"{plain(name)} is {float(value.detach())} on one of the micro-batches: nothing can be measured there; "
            "audit on healthy ones."
        )
    return value.reshape(())


def _number(value: Any) -> float | None:
    """What a loop logs; of another kind of value nothing is known."""
    if isinstance(value, torch.Tensor):
        return float(value.detach()) if value.numel() == 1 else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_rough(values: torch.Tensor) -> bool:
    if values.is_cuda and torch.get_float32_matmul_precision() != "highest":
        return True
    return values.is_floating_point() and torch.finfo(values.dtype).bits < 32


def _finite(gram: list[list[float]]) -> list[list[float]]:
    if not all(math.isfinite(value) for row in gram for value in row):
        raise UsageError(
            "A gradient of the routers' parameters is not finite on one of the micro-batches: nothing can be measured "
            "there; audit on healthy ones, or in float32."
        )
    return gram
