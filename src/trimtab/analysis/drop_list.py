"""The rows to leave out of the next run, as a document that `attach(exclude=)` reads.

Enters: findings, and what their log says of its rows. Leaves: the document of `trimtab.drop_list`: the rows that are
blamed, those of the worst finding first, and `findings`: of each step with a finding the rows it puts into `rows`, and
why those or none. Invariant: a row is listed if and only if a `Blame` names it, so whatever a headline says to drop is
listed.
"""

from __future__ import annotations

from typing import Any, Final

from trimtab.analysis.blame import blamed_step
from trimtab.drop_list import spell_drop_list
from trimtab.findings import BlameReason, Findings
from trimtab.log.columns import IdColumns
from trimtab.values import RunHeader

_REASONS: Final[dict[BlameReason, str]] = {
    "share": "the row carries half of the step's loss or more",
    "nonfinite": "the loss is not finite",
    "never_finite": "the loss is finite in no step, unlike that of the step's other rows that are not finite",
    "mostly_nonfinite": "half of the step's rows or more are not finite: the model was broken, not its rows",
    "only_row": "the only row of its step with a loss: its share says nothing",
    "spread": "no row carries half of the step's loss",
    "no_shares": "the losses of the step have different signs: its rows have no shares",
    "no_losses": "no row of the step has a loss",
    "suspect": "the gradient norm jumped, but no loss is out of line soon after: the rows are only suspects",
}
_NO_ROWS: Final = "no rows of the step were recorded"


def drop_list(findings: Findings, *, header: RunHeader, ids: IdColumns) -> dict[str, Any]:
    """The document; `rows` is empty where no single row made a finding.

    Args:
        findings: What `rewind` found in a log that holds rows, with the leading row of each finding looked up.
        header: That of the log it was found in; says which dataset the numbers index.
        ids: What the rows of that log are known by.
    """
    found = [
        (blamed_step(spike) if spike.blame is None else spike.blame.step, spike.blame) for spike in findings.spikes
    ]
    # A step asked for inside a stretch need not be its peak.
    if findings.blame is not None and findings.blame.rows:
        found.append((findings.blame.step, findings.blame))
    rows = list(dict.fromkeys(row for _, blame in found if blame is not None for row in blame.rows))
    known = ids.digests_of(rows)
    return spell_drop_list(
        {row: known.get(row) for row in rows},
        run_id=findings.run_id,
        dataset_fingerprint=header.dataset_fingerprint,
        num_rows=header.num_rows,
        findings=[
            {"step": step, "rows": [], "reason": _NO_ROWS}
            if blame is None
            else {"step": step, "rows": list(blame.rows), "reason": _REASONS[blame.reason]}
            for step, blame in dict.fromkeys(found)
        ],
    )
