"""The answer in words: which row made the step, and what to do about it.

Enters: findings. Leaves: a few sentences. Invariant: a row is called the cause only where the findings say so.
"""

from __future__ import annotations

import math

from trimtab.findings import Blame, Findings, RowShare
from trimtab.text import plain
from trimtab.watched import KINDS, SEVERITIES

MAX_ROWS = 20
"""Rows named in one sentence."""

MAX_NAME_CHARS = 200
"""Characters of the user's own id of a row that are told."""


def headline(findings: Findings) -> list[str]:
    """Sentences on the listed step's first row; none where no rows are listed."""
    if not findings.rows or findings.step is None:
        return []
    step, first = findings.step, findings.rows[0]
    if not findings.row_losses_known:
        return [
            f"What each row of step {step} cost was not recorded: look at its rows together.",
            *_beside_the_rows(findings),
        ]
    is_finding = any(spike.first <= step <= spike.last for spike in findings.spikes)
    row = _row_in_words(first, step=step, num_nonfinite=findings.num_nonfinite_rows)
    if findings.blame is not None and findings.blame.reason == "only_row":
        lines = [*_why_this_step(findings), f"{row}; {_only_row(findings)}: its share says nothing"]
        return lines if is_finding else [*lines, f"Step {step} is not a spike."]
    if not is_finding:
        return [f"Step {step} is not a spike; its largest row is {row}"]
    return [*_why_this_step(findings), row, *_what_to_do(findings), *_neighbours(findings)]


def _what_to_do(findings: Findings) -> list[str]:
    step, reason = findings.step, findings.blame.reason if findings.blame is not None else None
    if findings.first_row_is_cause:
        assert findings.blame is not None, "it names the row"
        return _inspect(findings.blame)
    if reason == "mostly_nonfinite":
        return [f"Half of step {step}'s rows or more are not finite: that is the model. Look at the steps before."]
    if reason != "suspect":
        return [f"No single row made step {step}: look at its rows together.", *_beside_the_rows(findings)]
    # Said already where the norm is why the step was chosen.
    return [] if findings.step_reason == "grad_norm_before" else [_suspects(findings)]


def _beside_the_rows(findings: Findings) -> list[str]:
    """What a watch had found in the model by then: where it stands, rows explain little."""
    assert findings.step is not None, "rows of a step are listed"
    of_model = [
        found
        for found in findings.health
        if found.severity != "notice" and KINDS[found.kind].of in ("router", "step") and found.step <= findings.step
    ]
    if not of_model:
        return []
    first = min(of_model, key=lambda found: (SEVERITIES.index(found.severity), found.step))
    when = "there" if first.step == findings.step else f"at step {first.step}, before it"
    return [f"Its rows may not be why: {first.kind} was found {when}, which is of the model."]


def _inspect(blame: Blame) -> list[str]:
    if blame.reason != "nonfinite" or len(blame.rows) == 1:
        return ["Inspect or drop this row, then retrain."]
    listed = ", ".join(map(str, blame.rows[:MAX_ROWS]))
    more = f" and {len(blame.rows) - MAX_ROWS} more" if len(blame.rows) > MAX_ROWS else ""
    return [
        f"Inspect each of rows {listed}{more} before you drop any: in a packed sequence a NaN goes through all rows "
        "behind the one that carries it."
    ]


def _neighbours(findings: Findings) -> list[str]:
    """Rows that are not finite because they share a sequence with one that made it so."""
    if findings.blame is None or findings.blame.reason != "never_finite":
        return []
    num_others = findings.num_nonfinite_rows - len(findings.blame.rows)
    which = "1 other such row was" if num_others == 1 else f"{num_others} other such rows were"
    return [f"The {which} finite in another step: packed into one sequence, a NaN goes through all of its rows."]


def _only_row(findings: Findings) -> str:
    has_others = len(findings.rows) > 1 or findings.rows_left_out
    return "the only row with a loss in its step" if has_others else "the only row in its step"


def _why_this_step(findings: Findings) -> list[str]:
    if findings.step_reason != "grad_norm_before":
        return []
    if any(spike.severity != "notice" for spike in findings.spikes):
        return [
            f"The gradient norm jumped at step {findings.step}: its rows come first, the loss shows the harm later."
        ]
    return [_suspects(findings)]


def _suspects(findings: Findings) -> str:
    near = " near it" if any(spike.severity != "notice" for spike in findings.spikes) else ""
    why = f"The gradient norm jumped at step {findings.step}, but no loss{near} is out of line"
    return f"{why}: its rows are only suspects."


def _row_in_words(row: RowShare, *, step: int, num_nonfinite: int) -> str:
    which = f"row {row.row}" if row.name is None else f"row {row.row} (id {_shown(row.name)})"
    if row.loss is None:
        return f"{which}: no supervised tokens in step {step}"
    tokens = "1 token" if row.tokens == 1 else f"{row.tokens} tokens"
    if not row.finite:
        others = max(0, num_nonfinite - 1)
        more = {0: "", 1: "; 1 more row of the step is not finite"}.get(
            others, f"; {others} more rows of the step are not finite"
        )
        what = f"{row.loss:.5g}, beyond float32" if math.isfinite(row.loss) else f"{row.loss}"
        return f"{which}: its loss is not finite ({what}) in step {step}, {tokens}{more}"
    if row.share is None:
        return f"{which}: loss {row.loss:.5g} in step {step}, {tokens}"
    return f"{which}: {row.share:.0%} of step {step}'s loss, {tokens}"


def _shown(name: str) -> str:
    """An id in printable ASCII; of a long one the start, marked as such."""
    text = plain(name)
    return text if len(text) <= MAX_NAME_CHARS else text[: MAX_NAME_CHARS - 3] + "..."
