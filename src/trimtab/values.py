"""What travels between the rooms: plain values, no behaviour beyond their own spelling.

The live half makes `MicroBatch`, `StepRow` and `Event` and hands them to the recorder; the log gives them back as
columns; the offline half turns columns into `Findings`; a report draws `Findings`. Standard library only: a value
that carries arrays names their type, and imports nothing for it.

Shapes: R rows in a micro-batch.
"""

from __future__ import annotations

import html
import math
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

VERDICT_REASONS: Final = (
    "off",
    "no_tokens",
    "nonfinite",
    "warmup",
    "baseline_not_positive",
    "rebaselined",
    "spike",
    "normal",
)
"""Why a guard decided as it did, in the order in which it asks. The log stores the index into this tuple."""

STEP_REASONS: Final = ("stepped", "all_skipped", "no_tokens", "nonfinite_norm", "scaler_overflow", "dropped")
"""What became of an optimizer step. The log stores the index into this tuple."""

_FLOAT32_INFINITE: Final = float.fromhex("0x1.ffffffp+127")
"""From here on the nearest float32 is infinite; the rules judge float32."""

VerdictReason = Literal[
    "off", "no_tokens", "nonfinite", "warmup", "baseline_not_positive", "rebaselined", "spike", "normal"
]
StepReason = Literal["stepped", "all_skipped", "no_tokens", "nonfinite_norm", "scaler_overflow", "dropped"]
SpikeKind = Literal["spike", "nonfinite", "shift", "ramp", "periodic", "grad_norm", "source"]
Severity = Literal["critical", "warning", "notice"]
Signal = Literal["loss", "grad_norm"]
StepChoice = Literal["asked", "worst", "grad_norm_before"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """One decision about one micro-batch (live) or one step (offline).

    Attributes:
        keep: Whether it takes part in the update.
        reason: Why; one of `VERDICT_REASONS`.
        loss: The judged mean loss, rounded to float32 and held as float64.
        baseline: What it was compared with (mean or median of the window); None while there is no baseline.
        threshold: The value it had to exceed to be a spike; None while there is no baseline.
        scale: The robust scale (same unit as the loss) behind the threshold; None for rules without one.
    """

    keep: bool
    reason: VerdictReason
    loss: float
    baseline: float | None = None
    threshold: float | None = None
    scale: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """What is known when a run starts; `run.json` in the run folder.

    Attributes:
        run_id: Unique name of the run, also its folder's name.
        backend: What trains: "torch", "transformers", "mlx", or what a foreign log says.
        task: What is trained, for example "causal-lm", or None.
        world_size: Number of ranks.
        num_rows: Rows in the dataset; None for a stream.
        batch_size: Rows in one micro-batch on one rank; None where unknown or varying.
        accumulation: Micro-batches in one optimizer step.
        dataset_fingerprint: Tells whether a dataset at hand is the one that was trained on; None if not computed.
        row_index: What a row number indexes, in words.
        created: Start of the run, seconds since the epoch.
        out: The folder the user named.
        experiment: An experiment name under `out`, where the host has one.
        trimtab_version: Version that wrote the log.
    """

    run_id: str | None
    backend: str
    task: str | None = None
    world_size: int = 1
    num_rows: int | None = None
    batch_size: int | None = None
    accumulation: int = 1
    dataset_fingerprint: str | None = None
    row_index: str = "index into the dataset handed to the trainer"
    created: float = 0.0
    out: str | None = None
    experiment: str | None = None
    trimtab_version: str = ""


class MicroBatch(NamedTuple):
    """One micro-batch on one rank, as it is handed to the recorder on the hot path.

    `rows`, `loss_sums` and `num_tokens` are parallel and one-dimensional: numpy arrays, or anything that
    `numpy.asarray` turns into one (a tensor on the host, a copy still in flight), not to be changed afterwards.
    An entry without tokens has no loss, whatever value stands there: it is recorded as 0 tokens and loss 0.

    Attributes:
        step: 1-based optimizer step.
        micro: 0-based place inside the step.
        rows: (R,) int64 dataset row numbers; a row that stands twice occurred twice.
        loss_sums: (R,) float32 sums of the loss over the row's supervised tokens; not finite stays as it is.
        num_tokens: (R,) integer counts of supervised tokens.
        reason: Index into `VERDICT_REASONS` of the guard's verdict; 0 ("off") without a guard.
        keep: Whether it took part in the update.
        packed: The entries are single tokens of packed sequences, each naming its row: the writer sums the entries of
            one row into one occurrence and leaves out entries that are not supervised, unless their row has no others.
    """

    step: int
    micro: int
    rows: Any
    loss_sums: Any
    num_tokens: Any
    reason: int = 0
    keep: bool = True
    packed: bool = False


class StepRow(NamedTuple):
    """One optimizer step as the training side knows it. Floats may be 0-d arrays or tensors: the writer converts them.

    Attributes:
        step: 1-based optimizer step.
        loss: What the run reports as its loss (skipped contributions left out); NaN if unknown.
        grad_norm: Gradient norm before clipping; None where nobody measured it.
        lr: Learning rate of the first parameter group when the step was taken.
        reason: Index into `STEP_REASONS`.
        clipped: Whether clipping changed the gradient; None where unknown.
        loss_scale: The gradient scaler's scale; None without one.
        wall_s: Seconds since the previous step ended; NaN for the first.
        num_tokens: Supervised tokens of the step on this rank.
        num_skipped_micros: Micro-batches that the guard left out.
        num_skipped_tokens: Their supervised tokens.
    """

    step: int
    loss: Any
    grad_norm: Any
    lr: Any
    reason: int = 0
    clipped: Any = None
    loss_scale: Any = None
    wall_s: float = math.nan
    num_tokens: Any = 0
    num_skipped_micros: int = 0
    num_skipped_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened beside the steps: an evaluation, a resume, a warning, a count of drops.

    Attributes:
        kind: What happened, for example "evaluation", "resume", "dropped", "warning".
        step: Optimizer step during which it happened (0 before the first).
        time: Seconds since the epoch.
        facts: JSON-ready details; floats that are not finite are spelled as strings when written.
    """

    kind: str
    step: int
    time: float
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spike:
    """One finding: a step, or a stretch of measured steps in a row, that is out of line.

    Attributes:
        step: Where it peaks.
        first: First step of the stretch.
        last: Last step of the stretch.
        num_steps: Measured steps in it that are out of line.
        kind: What kind of finding.
        signal: Which series showed it.
        severity: "critical" (not finite), "warning" (a loss spike), "notice" (a gradient-norm spike).
        rule: "robust" or "median": which rule decided at the peak.
        value: The signal at the peak.
        loss: The step loss at the peak; None where the step has none.
        baseline: Median of the window before it; None while there is none.
        score: Distance from the baseline in robust scales; None under `median` and for non-finite values.
        row: The row that leads the peak step's row table; None where it was not looked up or no rows are known.
        row_share: That row's share of the step's loss, 0..1; None likewise, and where the step's rows have no shares.
        is_only_row: Whether no other row of the peak step has supervised tokens: then the share says nothing.
    """

    step: int
    first: int
    last: int
    num_steps: int
    kind: SpikeKind
    signal: Signal
    severity: Severity
    rule: str
    value: float
    loss: float | None
    baseline: float | None
    score: float | None
    row: int | None = None
    row_share: float | None = None
    is_only_row: bool = False

    @property
    def ratio(self) -> float | None:
        """Value over baseline; None where the baseline is missing or not positive."""
        if self.baseline is None or not self.baseline > 0:
            return None
        return self.value / self.baseline

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `rewind --json`; non-finite numbers are strings."""
        return {
            "step": self.step,
            "first": self.first,
            "last": self.last,
            "num_steps": self.num_steps,
            "kind": self.kind,
            "signal": self.signal,
            "severity": self.severity,
            "rule": self.rule,
            "value": json_number(self.value),
            "loss": json_number(self.loss),
            "baseline": json_number(self.baseline),
            "ratio": json_number(self.ratio),
            "score": json_number(self.score),
            "row": self.row,
            "row_share": json_number(self.row_share),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RowShare:
    """One row of one step, with its part in the step's loss.

    Attributes:
        row: Dataset row number.
        count: How often it occurred in the step.
        loss: Its mean loss over supervised tokens; NaN or infinite as recorded; None without supervised tokens.
        tokens: Its supervised tokens.
        share: Its loss sum over the step's loss sum, 0..1; 0.0 for a row that is not finite; None where the step's
            losses do not add up to more than 0, or have different signs.
        excess: Its loss minus its own usual loss (its other occurrences in the run) or the run's level before the
            step; None where neither is known or the loss is not finite.
        repetition: How repetitive its data is, 0..1; None without the data.
        rank: Rank that trained on it; the lowest, if several did.
        preview: Its text, sanitised; None without the data.
    """

    row: int
    count: int
    loss: float | None
    tokens: int
    share: float | None
    excess: float | None
    repetition: float | None = None
    rank: int = 0
    preview: str | None = None

    @property
    def finite(self) -> bool:
        """False for a row with supervised tokens whose loss is NaN, infinite, or infinite as a float32."""
        return self.loss is None or abs(self.loss) < _FLOAT32_INFINITE

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `rewind --json`; non-finite numbers are strings."""
        return {
            "row": self.row,
            "count": self.count,
            "loss": json_number(self.loss),
            "tokens": self.tokens,
            "share": json_number(self.share),
            "excess": json_number(self.excess),
            "repetition": json_number(self.repetition),
            "rank": self.rank,
            "preview": self.preview,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What `rewind` found in one run: values only, drawn by a report.

    Attributes:
        run_id: The run's id; None for a foreign log without one.
        source: Path that was read.
        rule: Rule that was asked for: "robust" or "median".
        num_steps: Optimizer steps in the log (superseded attempts left out).
        step: Step whose rows are listed; None if there is no spike and none was asked for.
        step_reason: Why that step.
        spikes: Findings, worst first, cut to 1,000.
        spikes_left_out: How many were cut.
        rows: Rows of `step`, the suspicious ones first, cut to `top`.
        rows_left_out: How many were cut.
        num_nonfinite_rows: Rows of `step` with supervised tokens whose loss is not finite, those that were cut too.
        notices: What a reader should know: damage, superseded attempts, which rule decided.
        row_losses_known: False where the rows of `step` were recorded without what each of them cost.
    """

    run_id: str | None
    source: str
    rule: str
    num_steps: int
    step: int | None
    step_reason: StepChoice | None
    spikes: tuple[Spike, ...]
    spikes_left_out: int
    rows: tuple[RowShare, ...]
    rows_left_out: int
    notices: tuple[str, ...]
    num_nonfinite_rows: int = 0
    row_losses_known: bool = True

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `rewind --json`; strict JSON, non-finite numbers are "nan", "inf", "-inf"."""
        return {
            "version": 1,
            "run_id": self.run_id,
            "source": self.source,
            "rule": self.rule,
            "num_steps": self.num_steps,
            "step": self.step,
            "step_reason": self.step_reason,
            "spikes": [spike.to_dict() for spike in self.spikes],
            "spikes_left_out": self.spikes_left_out,
            "rows": [row.to_dict() for row in self.rows],
            "rows_left_out": self.rows_left_out,
            "notices": list(self.notices),
        }

    def _repr_html_(self) -> str:
        """The findings and the rows as two tables, for a notebook; whatever a log holds is shown as text."""
        title = f"Run {self.run_id}: {self.num_steps} steps, {len(self.spikes) + self.spikes_left_out} findings"
        spikes = _html_table([spike.to_dict() for spike in self.spikes[:20]])
        rows = _html_table([row.to_dict() for row in self.rows])
        notices = "".join(f"<p>{_html_text(notice)}</p>" for notice in self.notices)
        return f"<p><b>{_html_text(title)}</b></p>{spikes}<p>Rows of step {self.step}</p>{rows}{notices}"


def _html_table(records: list[dict[str, Any]]) -> str:
    if not records:
        return "<p>none</p>"
    head = "".join(f"<th>{_html_text(name)}</th>" for name in records[0])
    body = "".join(f"<tr>{''.join(f'<td>{_html_text(v)}</td>' for v in record.values())}</tr>" for record in records)
    return f"<table><tr>{head}</tr>{body}</table>"


def _html_text(value: object) -> str:
    """A cell's text: floats short, and no character that a page could take for markup or direction."""
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return html.escape(text.encode("ascii", "backslashreplace").decode("ascii"))


def json_number(value: float | None) -> float | str | None:
    """A number as strict JSON can hold it: NaN and infinities become "nan", "inf", "-inf"; None stays None."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"
