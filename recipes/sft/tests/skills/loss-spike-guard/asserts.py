"""Proof that the guard in this recipe leaves no trace of a micro-batch that it skips.

Copy this file to tests/skills/loss-spike-guard/asserts.py, set FACTORY and, where that is not the folder above tests,
ROOT, and run it:

    pytest tests/skills/loss-spike-guard/asserts.py

It trains what the factory builds under planted faults, in one process and in two, and compares every training with one
that never saw the bad loss. Only these two lines are yours to change: a test that was loosened proves nothing.
"""

from pathlib import Path

import pytest

from trimtab.proof import CaseResult, case_names, prove

FACTORY = "recipes.sft.engine:build"
ROOT = Path(__file__).resolve().parents[5]
"""The folder that FACTORY is imported from."""
PROCESSES = (1, 2)


@pytest.fixture(scope="module")
def cases() -> dict[str, CaseResult]:
    """Every case of one proof, by its name; a factory that cannot be loaded or built is an error that says why."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        proof = prove(FACTORY, processes=PROCESSES)
    return {case.case: case for case in proof.cases}


@pytest.mark.parametrize("name", case_names(processes=PROCESSES))
def test_a_case_is_proven(cases: dict[str, CaseResult], name: str) -> None:
    """A case that the loop has nothing to plant in is skipped, with the reason."""
    case = cases[name]
    if case.outcome == "not_applicable":
        pytest.skip(case.text)
    assert case.outcome == "proven", f"{case.text} Found {case.found}, expected {case.expected}."


def test_nothing_beside_these_cases_fails(cases: dict[str, CaseResult]) -> None:
    """A loop with an audit of its auxiliary weights has one case more."""
    assert [case.text for case in cases.values() if case.outcome == "failed"] == []
