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
    only = _only_row(findings)
    if only:
        lines[-1] += f"; {only}: its share says nothing"
        return lines if _finding_at(findings) else [*lines, f"Step {step} is not a spike."]

    named = first.loss is not None and (not first.finite or (first.share or 0.0) >= CAUSE_SHARE)
    if _finding_at(findings) is None:
        return [f"Step {step} is not a spike; its largest row is {lines[-1]}"]
    if named:
        return [*lines, "Inspect or drop this row, then retrain."]
    return [*lines, f"No single row made step {step}: look at its rows together."]


def is_cause(spike: Spike) -> bool:
    """Whether the finding's leading row is what made it.

    It is not finite; or it carries half of the step's loss or more beside others, and the loss is what is out of line.
    """
    if spike.row is None or spike.row_share is None or spike.severity == "notice":
        return False
    # A leading row has tokens; only one that is not finite has no share all the same.
    return spike.row_share == 0.0 or (spike.row_share >= CAUSE_SHARE and not spike.is_only_row)


def _finding_at(findings: Findings) -> Spike | None:
    step = findings.step
    assert step is not None
    return next((spike for spike in findings.spikes if spike.first <= step <= spike.last), None)


def _only_row(findings: Findings) -> str | None:
    """How the first row stands alone in its step, if it does: then all of the loss is its own, whatever it is."""
    first, *others = findings.rows
    if not first.finite:
        return None
    if not others and not findings.rows_left_out:
        return "the only row in its step"
    # Rows without supervised tokens stand last: if one is second, so are all that were cut.
    is_only_loss = first.loss is not None and bool(others) and others[0].loss is None
    return "the only row with a loss in its step" if is_only_loss else None


def _why_this_step(findings: Findings) -> list[str]:
    if findings.step_reason != "grad_norm_before":
        return []
    if any(spike.severity != "notice" for spike in findings.spikes):
        return [
            f"The gradient norm jumped at step {findings.step}: its rows come first, the loss shows the harm later."
        ]
    return [
        f"The gradient norm jumped at step {findings.step}, but no loss is out of line: its rows are only suspects."
    ]


def _row_in_words(row: RowShare, *, step: int, num_nonfinite: int) -> str:
    if row.loss is None:
        return f"row {row.row}: no supervised tokens in step {step}"
    tokens = "1 token" if row.tokens == 1 else f"{row.tokens} tokens"
    if not row.finite:
        others = max(0, num_nonfinite - 1)
        more = {0: "", 1: "; 1 more row of the step is not finite"}.get(
            others, f"; {others} more rows of the step are not finite"
        )
        what = f"{row.loss:.5g}, beyond float32" if math.isfinite(row.loss) else f"{row.loss}"
        return f"row {row.row}: its loss is not finite ({what}) in step {step}, {tokens}{more}"
    if row.share is None:
        return f"row {row.row}: loss {row.loss:.5g} in step {step}, {tokens}"
    return f"row {row.row}: {row.share:.0%} of step {step}'s loss, {tokens}"
