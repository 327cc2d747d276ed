"""What the offline half finds in a log: plain values, no behaviour beyond their own spelling.

Enters: nothing. Leaves: `Findings` of one run, made of `Spike`, `RowShare` and `Blame`; `SharedSpike` and `Comparison`
of several. The analysis makes them, a report draws them, and the live half knows none of them. Standard library only.
Invariant: whatever came from a log is spelled as strict JSON, and in a notebook as text.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import Any, Final, Literal

from trimtab.router_summary import RouterSummary
from trimtab.text import plain
from trimtab.values import json_number
from trimtab.watched import Severity, WatchFinding

SpikeKind = Literal["spike", "nonfinite", "shift", "ramp", "periodic", "grad_norm", "source"]
Signal = Literal["loss", "grad_norm"]
StepChoice = Literal["asked", "worst", "grad_norm_before"]
BlameReason = Literal[
    "share",
    "nonfinite",
    "never_finite",
    "mostly_nonfinite",
    "only_row",
    "spread",
    "no_shares",
    "no_losses",
    "suspect",
]

_FLOAT32_INFINITE: Final = float.fromhex("0x1.ffffffp+127")
"""From here on the nearest float32 is infinite; the rules judge float32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Which rows of a step are named as the cause of a finding, and why those or none.

    Attributes:
        step: The step.
        rows: Rows named, in the order of the step's row table; none where the reason names none.
        reason: Names rows: "share" (the first carries half of the step's loss or more, beside others), "nonfinite",
            "never_finite" (not finite, unlike others that were so in another step: those share a sequence with one).
            Names none: "mostly_nonfinite" (several rows, half of the step's or more, and the run did not come back:
            the model's doing), "only_row" (its share says nothing), "spread" (no row carries half), "no_shares" (losses
            of different signs), "no_losses" (no row has one), "suspect" (rows would be named, but no finding of a loss
            is at the step or follows soon).
    """

    step: int
    rows: tuple[int, ...]
    reason: BlameReason


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
        row: The row that leads the peak step; of a gradient norm that jumped the one that leads its first step, where
            the harm begins. None where it was not looked up or no rows are known.
        row_share: That row's share of its step's loss, 0..1; None likewise, and where the step's rows have no shares.
        segment: Which of several runs in one file it is in, from 1; None for a log of one run.
        blame: Which rows are named as its cause: those of the peak step; of a gradient norm that jumped, those of its
            first step. None where the rows were not looked up or none are known.
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
    segment: int | None = None
    blame: Blame | None = None

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
            "segment": self.segment,
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
        name: The user's own id of it; None where the log holds none.
        table_row: Its row in the table that the dataset is a selection of; None where it is none, or nobody knows.
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
    name: str | None = None
    table_row: int | None = None

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
            "name": self.name,
            "table_row": self.table_row,
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
        blame: Which rows of `step` are named as the cause of a finding; None where no rows are known.
        num_ranks: Ranks that the run had.
        preview_withheld: Why the rows have no preview, a clause; None where they have, or none was asked for.
        health: What a watch warns of (routers, evaluations, the pace ...), worst first, then by step; cut to 1,000.
        health_left_out: How many were cut.
        router: The last report of the routers; None where there is none.
        router_at_finding: The report at which the first finding about them was made; None where that is `router`, or
            none was made.
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
    blame: Blame | None = None
    num_ranks: int = 1
    preview_withheld: str | None = None
    health: tuple[WatchFinding, ...] = ()
    health_left_out: int = 0
    router: RouterSummary | None = None
    router_at_finding: RouterSummary | None = None

    @property
    def num_findings(self) -> int:
        """Spikes and what concerns the health, those that were cut too."""
        return len(self.spikes) + self.spikes_left_out + len(self.health) + self.health_left_out

    @property
    def first_row_is_cause(self) -> bool:
        """Whether the first of `rows` is named as the cause of a finding."""
        return bool(self.rows) and self.blame is not None and self.rows[0].row in self.blame.rows

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
            "preview_withheld": self.preview_withheld,
            "health": [finding.to_dict() for finding in self.health],
            "health_left_out": self.health_left_out,
            "router": None if self.router is None else self.router.to_dict(),
            "router_at_finding": None if self.router_at_finding is None else self.router_at_finding.to_dict(),
            "notices": list(self.notices),
        }

    def _repr_html_(self) -> str:
        """The findings and the rows as two tables, for a notebook; whatever a log holds is shown as text."""
        title = f"Run {self.run_id}: {self.num_steps} steps, {self.num_findings} findings"
        spikes = _html_table([spike.to_dict() for spike in self.spikes[:20]])
        rows = _html_table([row.to_dict() for row in self.rows])
        health = "".join(
            f"<p>{_html_text(f'{one.severity}, step {one.step}, {one.kind}: {one.text}')}</p>"
            for one in self.health[:20]
        )
        notices = "".join(f"<p>{_html_text(notice)}</p>" for notice in self.notices)
        return f"<p><b>{_html_text(title)}</b></p>{spikes}{health}<p>Rows of step {self.step}</p>{rows}{notices}"


@dataclass(frozen=True, slots=True)
class SharedSpike:
    """A spike that several runs have in common.

    Attributes:
        step: Step at which it peaks in all of them; of stretches that overlap and peak at different steps the first
            that they have in common; None where only the row is the same.
        rows: Rows that lead the step in at least two of the runs.
        runs: The runs, by id, or by path where a log names none; in the order given.
        rows_known: Whether at least two of the runs name a leading row.
        last: Of stretches that peak at different steps the last step that they have in common; else None.
    """

    step: int | None
    rows: tuple[int, ...]
    runs: tuple[str, ...]
    rows_known: bool
    last: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `rewind --json` with several runs."""
        return {"step": self.step, "rows": list(self.rows), "runs": list(self.runs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Several runs side by side.

    Attributes:
        runs: What was found in each, in the order given.
        shared: What is out of line in two of them or more, the most widespread first.
        num_different: How many different runs these are: two logs of one run, by its id, count as one.
    """

    runs: tuple[Findings, ...]
    shared: tuple[SharedSpike, ...]
    num_different: int

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `rewind --json` with several runs; strict JSON."""
        return {
            "version": 1,
            "runs": [findings.to_dict() for findings in self.runs],
            "shared": [spike.to_dict() for spike in self.shared],
        }


def _html_table(records: list[dict[str, Any]]) -> str:
    if not records:
        return "<p>none</p>"
    head = "".join(f"<th>{_html_text(name)}</th>" for name in records[0])
    body = "".join(f"<tr>{''.join(f'<td>{_html_text(v)}</td>' for v in record.values())}</tr>" for record in records)
    return f"<table><tr>{head}</tr>{body}</table>"


def _html_text(value: object) -> str:
    """A cell's text: floats short, and nothing that a page could take for markup."""
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return html.escape(plain(text))
