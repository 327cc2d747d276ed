"""What the routers of a model looked like in one report, as a reader sees it: plain values.

Enters: nothing; the analysis makes them of a `RouterReport`, a report draws them. Leaves: `RouterSummary`, made of
`LayerSummary`. Invariant: whatever came from a log is spelled as strict JSON. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from trimtab.values import json_number
from trimtab.watched import ZScale


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSummary:
    """What one router did over a report; None where it is not known.

    Attributes:
        name: The router's name in the model, or the column of another tool's log.
        num_experts: E.
        z: Mean over tokens of logsumexp(logits)^2.
        load_balance: 1 at balance.
        max_vio: Largest load over mean load, minus 1.
        token_entropy: Mean over tokens of the entropy of the full softmax, nats: ln E where the router is uniform, 0
            where it is sure. Confidence.
        load_entropy: Entropy of the load, nats: ln E at balance, 0 where one expert has all. Balance.
        num_silent: Experts without a token in the report, whether or not chance explains it.
        population_shares: (P,) share of the routed tokens that each population of experts gets.
        population_cosine: Cosine between the weights of the populations.
    """

    name: str
    num_experts: int | None = None
    z: float | None = None
    load_balance: float | None = None
    max_vio: float | None = None
    token_entropy: float | None = None
    load_entropy: float | None = None
    num_silent: int | None = None
    population_shares: tuple[float, ...] | None = None
    population_cosine: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `rewind --json`; non-finite numbers are strings."""
        return {field.name: _spelled(getattr(self, field.name)) for field in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSummary:
    """One report of a model's routers.

    Attributes:
        step: Last optimizer step (1-based) in it.
        first_step: First one.
        z: z where it is known for the model only, on `z_scale`.
        z_scale: What `z` is of; None without one.
        layers: The worst in front, those that a finding names before all others.
        layers_left_out: How many more were cut.
        notes: What could not be measured up to it and why, a sentence each, each once.
    """

    step: int
    first_step: int
    z: float | None
    z_scale: ZScale | None
    layers: tuple[LayerSummary, ...]
    layers_left_out: int = 0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `rewind --json`; non-finite numbers are strings."""
        return {
            "step": self.step,
            "first_step": self.first_step,
            "z": json_number(self.z),
            "z_scale": self.z_scale,
            "layers": [layer.to_dict() for layer in self.layers],
            "layers_left_out": self.layers_left_out,
            "notes": list(self.notes),
        }


def _spelled(figure: Any) -> Any:
    if isinstance(figure, tuple):
        return [json_number(share) for share in figure]
    return json_number(figure) if isinstance(figure, float) else figure
