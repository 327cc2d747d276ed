"""The rows to leave out of the next run, as a file that a trainer reads.

Enters: findings. Leaves: a JSON-ready document: `version` 1, `run_id`, `dataset_fingerprint` of the dataset that the
row numbers index (null if the run did not compute one), `rows`, each once, those of the worst finding first, and
`findings`: of each step with a finding the rows it puts into `rows`, and why those or none. Invariant: a row is listed
if and only if a `Blame` names it, so whatever a headline says to drop is listed.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.findings import BlameReason, Findings

_REASONS: Final[dict[BlameReason, str]] = {
    "share": "the row carries half of the step's loss or more",
    "nonfinite": "the loss is not finite",
    "mostly_nonfinite": "half of the step's rows or more are not finite: the model was broken, not its rows",
    "only_row": "the only row of its step with a loss: its share says nothing",
    "spread": "no row carries half of the step's loss",
    "no_shares": "the losses of the step have different signs: its rows have no shares",
    "no_losses": "no row of the step has a loss",
    "suspect": "the gradient norm jumped, but no loss is out of line soon after: the rows are only suspects",
}


def drop_list(findings: Findings, *, dataset_fingerprint: str | None) -> dict[str, Any]:
    """The document; `rows` is empty where no single row made a finding.

    Args:
        findings: What `rewind` found, with the leading row of each finding looked up.
        dataset_fingerprint: The fingerprint in the log's header.
    """
    blamed = [spike.blame for spike in findings.spikes if spike.blame is not None]
    # A step asked for inside a stretch need not be its peak.
    if findings.blame is not None and findings.blame.rows:
        blamed.append(findings.blame)
    by_step = {blame.step: blame for blame in blamed}
    return {
        "version": 1,
        "run_id": findings.run_id,
        "dataset_fingerprint": dataset_fingerprint,
        "rows": list(dict.fromkeys(row for blame in by_step.values() for row in blame.rows)),
        "findings": [
            {"step": blame.step, "rows": list(blame.rows), "reason": _REASONS[blame.reason]}
            for blame in by_step.values()
        ],
    }
