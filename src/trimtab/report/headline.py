"""The answer in words: which row made the step, and what to do about it.

Enters: findings. Leaves: two or three sentences. Invariant: a row is only called the cause where its share, or its
being not finite, says so.
"""

from __future__ import annotations

import math

from trimtab.values import Findings, RowShare, Spike

CAUSE_SHARE = 0.5
"""Share of a step's loss from which its first row is named as the cause."""


def headline(findings: Findings) -> list[str]:
    """Sentences on the listed step's first row; none where no rows are listed."""
    if not findings.rows or findings.step is None:
        return []
    step, first = findings.step, findings.rows[0]
    if not findings.row_losses_known:
        return [f"What each row of step {step} cost was not recorded: look at its rows together."]
    lines = [*_why_this_step(findings), _row_in_words(first, step=step, num_nonfinite=findings.num_nonfinite_rows)]
    if first.finite and len(findings.rows) + findings.rows_left_out == 1:
        lines[-1] += "; the only row in its step: its share says nothing"
        return lines if _finding_at(findings) else [*lines, f"Step {step} is not a spike."]

    named = first.loss is not None and (not first.finite or (first.share or 0.0) >= CAUSE_SHARE)
    if _finding_at(findings) is None:
        return [f"Step {step} is not a spike; its largest row is {lines[-1]}"]
    if named:
        return [*lines, "Inspect or drop this row, then retrain."]
    return [*lines, f"No single row made step {step}: look at its rows together."]


def is_cause(spike: Spike) -> bool:
    """Whether the finding's leading row carries half of its step's loss or more, or is not finite."""
    if spike.row is None or spike.row_share is None:
        return False
    # A leading row has tokens; only one that is not finite has no share all the same.
    return spike.row_share >= CAUSE_SHARE or spike.row_share == 0.0


def _finding_at(findings: Findings) -> Spike | None:
    step = findings.step
    assert step is not None
    return next((spike for spike in findings.spikes if spike.first <= step <= spike.last), None)


def _why_this_step(findings: Findings) -> list[str]:
    if findings.step_reason != "grad_norm_before":
        return []
    return [f"The gradient norm jumped at step {findings.step}: its rows come first, the loss shows the harm later."]


def _row_in_words(row: RowShare, *, step: int, num_nonfinite: int) -> str:
    if row.loss is None:
        return f"row {row.row}: no supervised tokens in step {step}"
    tokens = "1 token" if row.tokens == 1 else f"{row.tokens} tokens"
    if not math.isfinite(row.loss):
        others = max(0, num_nonfinite - 1)
        more = {0: "", 1: "; 1 more row of the step is not finite"}.get(
            others, f"; {others} more rows of the step are not finite"
        )
        return f"row {row.row}: its loss is not finite ({row.loss}) in step {step}, {tokens}{more}"
    if row.share is None:
        return f"row {row.row}: loss {row.loss:.5g} in step {step}, {tokens}"
    return f"row {row.row}: {row.share:.0%} of step {step}'s loss, {tokens}"
