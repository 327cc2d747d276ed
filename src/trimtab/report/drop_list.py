"""The rows to leave out of the next run, as a file that a trainer reads.

Enters: findings. Leaves: a JSON-ready document: `version` 1, `run_id`, `dataset_fingerprint` of the dataset that the
row numbers index (null if the run did not compute one), and `rows`, each once, those of the worst finding first.
Invariant: a row is listed only if it was not finite, or carried half of the loss of a finding that the loss itself made
and did not stand alone in its step. A gradient norm that jumped makes a suspect, not a cause.
"""

from __future__ import annotations

from typing import Any

from trimtab.report.headline import is_cause
from trimtab.values import Findings


def drop_list(findings: Findings, *, dataset_fingerprint: str | None) -> dict[str, Any]:
    """The document; `rows` is empty where no single row made a finding.

    Args:
        findings: What `rewind` found, with the leading row of each finding looked up.
        dataset_fingerprint: The fingerprint in the log's header.
    """
    rows = dict.fromkeys(spike.row for spike in findings.spikes if is_cause(spike))
    return {
        "version": 1,
        "run_id": findings.run_id,
        "dataset_fingerprint": dataset_fingerprint,
        "rows": list(rows),
    }
