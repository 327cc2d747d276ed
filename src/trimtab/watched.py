"""What a watch measures and what it finds: plain values, no behaviour beyond their own spelling.

The live half makes `RouterReport` and `Vitals` from numbers of a device; the log keeps them as events; the offline half
reads them back. The rules (`trimtab.rules`) make `WatchFinding` of both, live and offline alike. Standard library only.

Shapes: L layers, E experts of a layer, P populations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

Severity = Literal["critical", "warning", "notice"]

FindingKind = Literal[
    # Of a router.
    "collapse",
    "dead_experts",
    "z_band",
    "logits_growing",
    "load_balance_rising",
    "scale_changed",
    "counts_mismatch",
    # Of a weight in the loss, by an audit.
    "weight_applied_twice",
    "weight_not_applied",
    "weight_differs",
    "constant_aux",
    "accumulation_dependent",
    "logged_differs",
    # Of any run.
    "eval_regression",
    "eval_nonfinite",
    "eval_unchanged",
    "grad_norm_jump",
    "grad_norm_stale",
    "loss_scale_collapse",
    "zero_loss",
    "clip_fraction",
    "throughput",
    "host_memory",
    "device_memory",
    "update_ratio",
    "attention_logit",
]

ZScale = Literal["layer", "sum", "mean"]
"""What a z that is not of a single layer is: of each layer, the sum over layers, or their mean."""

ROUTER_EVENT: Final = "router"
"""Kind of the event that keeps a `RouterReport`."""

VITALS_EVENT: Final = "vitals"
"""Kind of the event that keeps `Vitals`."""

FINDING_EVENT: Final = "finding"
"""Kind of the event that keeps a `WatchFinding` as it was said."""

WATCH_EVENT: Final = "watch"
"""Kind of the event that keeps the settings of a watch, when it begins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerFigures:
    """What one router did over the tokens of a report; None where it is not known.

    Attributes:
        name: The router's name in the model.
        num_experts: E.
        top_k: Experts a token is sent to.
        num_tokens: Real tokens; padding is left out.
        z: Mean over tokens of logsumexp(logits)^2, float32 logits, without a factor.
        lse: Mean over tokens of logsumexp(logits), by which a z is told from a spread.
        load_balance: E * sum_i f_i P_i / k over all tokens of the report: 1 at balance, whatever k.
        counts: (E,) tokens sent to each expert; they sum to num_tokens * top_k.
        token_entropy: Mean over tokens of the entropy of the full softmax, nats: ln E where the router is uniform, 0
            where it is sure. Confidence.
        spread: Mean over tokens of the largest minus the smallest logit.
        max_logit: Largest absolute logit.
        population_cosine: Cosine between the weights of the populations; reported, never judged.
    """

    name: str
    num_experts: int | None = None
    top_k: int | None = None
    num_tokens: int | None = None
    z: float | None = None
    lse: float | None = None
    load_balance: float | None = None
    counts: tuple[int, ...] | None = None
    token_entropy: float | None = None
    spread: float | None = None
    max_logit: float | None = None
    population_cosine: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterReport:
    """The routers of a model over some steps.

    Attributes:
        step: Last optimizer step (1-based) in it.
        first_step: First one.
        layers: (L,) in the order of the model; empty where a log holds z alone.
        num_populations: Populations that the experts are split into, of E // P each.
        z: z where it is known for the model only, on `z_scale`.
        z_scale: What `z` is.
        z_factor: What every z here is multiplied by, hidden factors included; 1 for a report of ours. Figures of
            different factors are never compared raw.
        expected_tokens: Real tokens that went into the model, counted at its entrance; None where nobody could.
        num_ranks: Ranks whose tokens are in it.
        notes: What could not be measured and why, a sentence each.
    """

    step: int
    first_step: int
    layers: tuple[LayerFigures, ...] = ()
    num_populations: int = 1
    z: float | None = None
    z_scale: ZScale = "layer"
    z_factor: float = 1.0
    expected_tokens: int | None = None
    num_ranks: int = 1
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vitals:
    """What a machine and a model are like at one moment; None where it is not known.

    Attributes:
        step: Optimizer step (1-based) that had just ended; 0 at launch.
        host_available_bytes: Memory that this process may still take, the cgroup's limit included.
        host_needed_bytes: Memory that is about to be taken (a save), where that is why it was looked at.
        device_peak_bytes: Most memory that was allocated on the device so far, by this process.
        device_total_bytes: What the device has.
        update_ratio: By weight: |change in one step| / |weight|, 2-norms.
        attention_logit: Largest attention logit, of a model that offers it.
    """

    step: int
    host_available_bytes: int | None = None
    host_needed_bytes: int | None = None
    device_peak_bytes: int | None = None
    device_total_bytes: int | None = None
    update_ratio: Mapping[str, float] = field(default_factory=dict)
    attention_logit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchFinding:
    """Something that a watch warns of; never a reason to stop by itself.

    Attributes:
        kind: What.
        severity: "critical", "warning" or "notice".
        step: Optimizer step (1-based) at which it could be known; 0 at launch.
        text: One sentence with its figures, plain ASCII, without a full stop; names of layers stand in it as `plain`
            text.
        layers: Routers it is about; empty where it is about the run.
        figures: The numbers behind it, JSON-ready, finite or spelled as text.
        marks_unhealthy: Whether a checkpoint that is saved while it stands is not one to go on from.
    """

    kind: FindingKind
    severity: Severity
    step: int
    text: str
    layers: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    marks_unhealthy: bool = False

    def to_dict(self) -> dict[str, Any]:
        """The JSON object in the log and in `rewind --json`."""
        return {
            "kind": self.kind,
            "severity": self.severity,
            "step": self.step,
            "text": self.text,
            "layers": list(self.layers),
            "figures": dict(self.figures),
            "marks_unhealthy": self.marks_unhealthy,
        }
