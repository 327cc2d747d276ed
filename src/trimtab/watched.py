"""What a watch measures and what it finds: plain values, no behaviour beyond their own spelling.

The live half makes `RouterReport` and `Vitals` from numbers of a device; the log keeps them as events; the offline half
reads them back. The rules (`trimtab.rules`) make `WatchFinding` of both, live and offline alike. Standard library only.

Shapes: L layers, E experts of a layer, P populations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

from trimtab.text import listed, plain

Severity = Literal["critical", "warning", "notice"]

SEVERITIES: Final[tuple[Severity, ...]] = get_args(Severity)
"""The worst first."""

FindingKind = Literal[
    "collapse",
    "dead_experts",
    "z_band",
    "logits_growing",
    "load_balance_rising",
    "scale_changed",
    "counts_mismatch",
    "weight_applied_twice",
    "weight_not_applied",
    "weight_differs",
    "constant_aux",
    "accumulation_dependent",
    "logged_differs",
    "eval_regression",
    "eval_nonfinite",
    "eval_unchanged",
    "nonfinite",
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

FoundIn = Literal["router", "audit", "step", "evaluation", "machine"]
"""What a kind of finding is found in: a report of routers, an audit of a loss, ... ; "step" has the vitals of one."""


class KindFacts(NamedTuple):
    """What is to be known of a kind of finding.

    Attributes:
        of: What it is found in.
        told_by_spikes: Whether `rewind` tells it among its spikes and notes, and not a second time.
        only_live: Whether only the training could see it, because a log holds it of one rank alone.
    """

    of: FoundIn
    told_by_spikes: bool = False
    only_live: bool = False


KINDS: Final[Mapping[FindingKind, KindFacts]] = {
    "collapse": KindFacts("router"),
    "dead_experts": KindFacts("router"),
    "z_band": KindFacts("router"),
    "logits_growing": KindFacts("router"),
    "load_balance_rising": KindFacts("router"),
    "scale_changed": KindFacts("router"),
    "counts_mismatch": KindFacts("router"),
    "weight_applied_twice": KindFacts("audit"),
    "weight_not_applied": KindFacts("audit"),
    "weight_differs": KindFacts("audit"),
    "constant_aux": KindFacts("audit"),
    "accumulation_dependent": KindFacts("audit"),
    "logged_differs": KindFacts("audit"),
    "eval_regression": KindFacts("evaluation"),
    "eval_nonfinite": KindFacts("evaluation"),
    "eval_unchanged": KindFacts("evaluation"),
    "nonfinite": KindFacts("step", told_by_spikes=True),
    "grad_norm_jump": KindFacts("step", told_by_spikes=True),
    "grad_norm_stale": KindFacts("step"),
    "loss_scale_collapse": KindFacts("step"),
    "zero_loss": KindFacts("step", told_by_spikes=True),
    "clip_fraction": KindFacts("step"),
    "throughput": KindFacts("step"),
    "host_memory": KindFacts("machine", only_live=True),
    "device_memory": KindFacts("machine", only_live=True),
    "update_ratio": KindFacts("step"),
    "attention_logit": KindFacts("step"),
}
"""Every kind, with what is to be known of it."""

ZScale = Literal["layer", "sum", "mean"]
"""What a z that is not of a single layer is: of each layer, the sum over layers, or their mean."""

EVALUATION_EVENT: Final = "evaluation"
"""Kind of the event that keeps an evaluation, by whoever made it."""

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


_MOST_NAMED: Final = 2


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
        since_step: Last optimizer step after which this was known not to be so, so that it may have begun with the
            next; 0 where it never was. None where nobody knows, and of what is no state of the model.
    """

    kind: FindingKind
    severity: Severity
    step: int
    text: str
    layers: tuple[str, ...] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    marks_unhealthy: bool = False
    since_step: int | None = None

    @property
    def topic(self) -> str:
        """What it is about in few words: `collapse in blocks.1.gate`; plain ASCII."""
        where = f" in {listed(map(plain, self.layers), most=_MOST_NAMED)}" if self.layers else ""
        return f"{self.kind}{where}"

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
            "since_step": self.since_step,
        }
