"""A mistake put into Trimtab itself is caught by the proof of a loop that makes none."""

from pathlib import Path

import pytest

from trimtab.proof import prove

CAUGHT = {
    # name: processes, a case that fails, the check that says so, the mistake that a loop makes to look like it
    "sign": (1, "guard on, no fault", "same as no guard", "healthy_run_changed"),
    "bound": (1, "finite spike, last micro-batch", "skips counted", "not_skipped"),
    "kept_nan": (1, "NaN, first micro-batch", "skips counted", "nonfinite_kept"),
    "stepped_veto": (1, "no tokens, all micro-batches", "skipped window moves nothing", "zero_gradients_stepped"),
    "lost_reduction": (2, "finite spike, first micro-batch, rank 1 of 2", "skips counted", "per_rank_decision"),
}
QUICK = ("sign",)


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in CAUGHT]
)
def test_a_mutation_of_trimtab_is_caught(name):
    # given
    processes, case, check, mistake = CAUGHT[name]
    # when
    proof = prove(f"tests.proof.mutants:{name}", processes=(processes,))
    # then
    assert not proof.proven
    failed = {case.case: case for case in proof.failed}
    assert (failed[case].check, failed[case].mistake) == (check, mistake)
    assert failed[case].found != failed[case].expected


@pytest.mark.long
def test_what_is_replaced_by_the_same_is_no_mistake():
    assert prove("tests.proof.mutants:unchanged", processes=(1,)).failed == ()
