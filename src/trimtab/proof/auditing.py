"""The case of a loop that audits the auxiliary terms of its own loss.

Enters: a way to run a trial. Leaves: the case's result; None where the loop has no audit. Invariant: what could not be
measured is not proven.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from trimtab.proof.checks import NOT_THROUGH
from trimtab.proof.evidence import RunTrial
from trimtab.proof.factory import last_line
from trimtab.proof.mistakes import Mistake
from trimtab.proof.trial import Trial
from trimtab.proven import CaseResult
from trimtab.rules.aux.values import told
from trimtab.watched import WatchFinding

AUX_WEIGHTS: Final = "aux weights"
"""What reports call the case, and its check."""

_AUDIT: Final = Trial(guard="none", is_audit=True)

_case: Final = partial(CaseResult, case=AUX_WEIGHTS, fault=None, place=None, processes=1, ranks=())
"""What became of the case, with what it has of no fault."""

_COMPARED: Final = {"accumulation_dependent": ("accumulated", "found"), "logged_differs": ("logged", "value")}
"""Which two figures a finding compares; "found" and "stated" of all others."""


def judge_audit(run: RunTrial) -> CaseResult | None:
    """Runs a loop's own audit, without a guard, and says what it shows.

    Args:
        run: Runs a trial in one process.
    """
    try:
        [outcome] = run(_AUDIT)
    except Exception as error:  # noqa: BLE001 - whatever it is, the case says so
        return _case(
            outcome="failed", check=NOT_THROUGH, text=f"The audit of the loop's loss failed: {last_line(error)}."
        )
    audit = outcome.audit
    if audit is None:
        return None
    said = told(audit)
    if audit.findings:
        found, expected = _two_numbers(audit.findings[0])
        mistake = Mistake.aux_weight_off
        text = mistake.sentence(said)
        return _case(
            outcome="failed", check=AUX_WEIGHTS, found=found, expected=expected, mistake=mistake.name, text=text
        )
    if not audit.is_sound:
        return _case(outcome="not_applicable", text=f"{'; '.join(audit.notes) or said}.")
    beside = "".join(f" Beside that, {note}." for note in audit.notes)
    return _case(outcome="proven", text=f"In the gradient {said}, alike whatever the accumulation.{beside}")


def _two_numbers(finding: WatchFinding) -> tuple[float | None, float | None]:
    names = _COMPARED.get(finding.kind, ("found", "stated"))
    found, expected = (finding.figures.get(name) for name in names)
    return _number(found), _number(expected)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None
