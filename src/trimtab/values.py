"""What both halves share: plain values, no behaviour beyond their own spelling.

The live half makes `MicroBatch`, `StepRow` and `Event` and hands them to the recorder; the log gives them back as
columns. What the offline half makes of those is in `trimtab.findings`. Standard library only: a value that carries
arrays names their type, and imports nothing for it.

Shapes: R rows in a micro-batch.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, get_args

VerdictReason = Literal[
    "off", "no_tokens", "nonfinite", "warmup", "baseline_not_positive", "rebaselined", "spike", "normal"
]
StepReason = Literal["stepped", "all_skipped", "no_tokens", "nonfinite_norm", "scaler_overflow", "dropped"]

VERDICT_REASONS: Final[tuple[VerdictReason, ...]] = get_args(VerdictReason)
"""Why a guard decided as it did, in the order in which it asks. The log stores the index into this tuple."""

REASON_CODE: Final[dict[str, int]] = {reason: code for code, reason in enumerate(VERDICT_REASONS)}

STEP_REASONS: Final[tuple[StepReason, ...]] = get_args(StepReason)
"""What became of an optimizer step. The log stores the index into this tuple."""

STEP_CODE: Final[dict[str, int]] = {reason: code for code, reason in enumerate(STEP_REASONS)}

GRADIENTLESS: Final[tuple[StepReason, ...]] = ("all_skipped", "no_tokens")
"""Reasons of steps in which no gradient counted: a norm that a device has measured all the same says nothing."""

RUN_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")
"""What a run id looks like: it names a folder, and must neither climb out of another one nor hide in it."""


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
        dataset_files: Files of the table that the dataset's rows lie in, absolute; none where they were in memory only.
        dataset_index_files: Files that say which row of the table each row is; none where rows are the table's.
        dataset_columns: Columns that the rows have; none where no file is named.
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
    dataset_files: tuple[str, ...] = ()
    dataset_index_files: tuple[str, ...] = ()
    dataset_columns: tuple[str, ...] = ()


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
        reason: Index into `VERDICT_REASONS` of the guard's verdict; 0 ("off") without a guard. It and `keep` may still
            be on their way from the device that decided.
        keep: Whether it took part in the update.
        packed: The entries are single tokens of packed sequences, each naming its row: the writer sums the entries of
            one row into one occurrence and leaves out entries that are not supervised, unless their row has no others.
    """

    step: int
    micro: int
    rows: Any
    loss_sums: Any
    num_tokens: Any
    reason: Any = 0
    keep: Any = True
    packed: bool = False


class RowIds(NamedTuple):
    """What rows are beside their number, handed to the recorder once a row; the log keeps it in its `ids` table.

    All parts are parallel and one-dimensional; one that nobody knows is None. As in a `MicroBatch` each is an array or
    something that `numpy.asarray` turns into one when the writer asks, and not earlier: looking an id up takes time
    that a training step does not have. There may be no rows at all, of a micro-batch whose rows are all known already.

    Attributes:
        rows: (N,) int64 dataset row numbers.
        table_rows: (N,) int64, of a dataset that is a selection: the rows of the table underneath.
        digests: (N,) int64, `trimtab.spelling.row_digest` of the rows' content: how a row of a stream is known again;
            0 where there is none, or where the number has stood for rows of different content.
        names: (N,) objects, the user's own ids, str; None where a row has none.
    """

    rows: Any
    table_rows: Any = None
    digests: Any = None
    names: Any = None


class StepRow(NamedTuple):
    """One optimizer step as the training side knows it.

    All but `step` and `wall_s` may be 0-d arrays or tensors, or numbers still on their way from a device: the writer
    converts them.

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
    reason: Any = 0
    clipped: Any = None
    loss_scale: Any = None
    wall_s: float = math.nan
    num_tokens: Any = 0
    num_skipped_micros: Any = 0
    num_skipped_tokens: Any = 0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened beside the steps: an evaluation, a resume, a warning, a count of drops.

    Attributes:
        kind: What happened, for example "evaluation", "resume", "dropped", "warning".
        step: Optimizer step during which it happened (0 before the first).
        time: Seconds since the epoch.
        facts: JSON-ready details; floats that are not finite are spelled as strings when written.
        ranks: Ranks that recorded it alike, ascending, where a log of several is read; else none.
    """

    kind: str
    step: int
    time: float
    facts: dict[str, Any] = field(default_factory=dict)
    ranks: tuple[int, ...] = field(default=(), compare=False)


def json_number(value: float | None) -> float | str | None:
    """A number as strict JSON can hold it: NaN and infinities become "nan", "inf", "-inf"; None stays None."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return "nan"
    return "inf" if value > 0 else "-inf"


def nonfinite_number(found: object) -> float | None:
    """The number that `json_number` has spelled as text; None for whatever else.

    Example:
        >>> nonfinite_number("-inf"), nonfinite_number(1.5), nonfinite_number("1.5")
        (-inf, None, None)
    """
    return _NONFINITE.get(found) if isinstance(found, str) else None


_NONFINITE: Final = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}
