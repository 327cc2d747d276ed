"""Proof that the guard in this recipe leaves no trace of a micro-batch that it skips.

Copy this file to tests/skills/loss-spike-guard/asserts.py, set FACTORY, and run it from the root of the repository:

    pytest tests/skills/loss-spike-guard/asserts.py

It trains what the factory builds under planted faults, in one process and in two, and compares every training with one
that never saw the bad loss. Only the line FACTORY is yours to change: a test that was loosened proves nothing.
"""

import pytest

from trimtab.proof import prove

FACTORY = "module:factory"


@pytest.fixture(scope="module")
def proof():
    """The proof, run once; a factory that cannot be loaded or built is an error that says why."""
    return prove(FACTORY, processes=(1, 2))


def test_no_case_of_the_proof_fails(proof):
    """Every case that applies to the recipe is proven; the message names the mistake and the two numbers."""
    failed = [case.text for case in proof.cases if case.outcome == "failed"]
    assert not failed, "\n".join(["the wiring of the guard is wrong:", *failed])
    assert proof.proven


@pytest.mark.parametrize("processes", [1, 2])
def test_cases_were_proven_in_one_process_and_in_two(proof, processes):
    """A proof in which nothing was run would fail nothing either."""
    assert [case for case in proof.cases if case.processes == processes and case.outcome == "proven"]
