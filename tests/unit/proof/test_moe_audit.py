"""A loop's audit of its weights is a case of its proof: a sound loop is proven, each broken one fails by a finding."""

import pytest

from trimtab.proof.auditing import AUX_WEIGHTS, judge_audit
from trimtab.proof.proving import prove
from trimtab.proof.trial import Trial, run_trial
from trimtab.proof.workers import Workers

BROKEN = {
    "factor_inside": (1e-5, 1e-3, "a factor of 0.01 stands inside the term"),
    "squared": (1e-4, 1e-2, "it is the weight squared"),
    "ignored": (0.0, 1e-3, "the loss does not hold it"),
    "constant": (0.0, 1e-2, "its gradient is 0"),
    "undivided": (4e-3, 1e-3, "it is not divided by the accumulation"),
}


@pytest.fixture
def judged(loops):
    """The case of a loop of `tests/proof/aux_audit.py`, judged in this process."""

    def judge(name):
        factory = loops(name)
        return judge_audit(lambda trial: (run_trial(factory, trial),))

    return judge


def test_a_loop_whose_weights_are_as_stated_is_proven(judged):
    case = judged("aux_audit:sound")

    assert (case.case, case.outcome, case.check) == (AUX_WEIGHTS, "proven", None)
    assert case.text == (
        "In the gradient z weighs 0.001 (stated 0.001) and load_balance weighs 0.01 (stated 0.01), alike whatever the "
        "accumulation."
    )


@pytest.mark.parametrize(("name", "numbers"), BROKEN.items(), ids=BROKEN)
def test_a_loop_whose_loss_is_broken_fails_with_both_numbers_and_what_to_do(judged, name, numbers):
    found, expected, words = numbers

    case = judged(f"aux_audit:{name}")

    assert (case.outcome, case.check, case.mistake) == ("failed", AUX_WEIGHTS, "aux_weight_off")
    assert (case.found, case.expected) == (pytest.approx(found, rel=1e-2, abs=1e-6), pytest.approx(expected, rel=1e-2))
    assert words in case.text
    assert case.text.endswith("divide both by the accumulation.")


def test_a_loop_without_an_audit_has_no_such_case(judged):
    assert judged("good:run_loop") is None


def test_what_could_not_be_measured_is_not_proven(judged):
    case = judged("aux_audit:rough")

    assert case.outcome == "not_applicable"
    assert "too rough to judge" in case.text


@pytest.mark.parametrize(
    ("name", "words"),
    [("raising", "micro_batches is empty"), ("no_audit_at_all", "Loop.audit gave an object of type int")],
)
def test_an_audit_that_fails_fails_its_case(judged, name, words):
    case = judged(f"aux_audit:{name}")

    assert (case.outcome, case.check, case.mistake) == ("failed", "comes to its end", None)
    assert words in case.text


def test_an_audit_comes_back_from_the_process_that_made_it(loops):
    loops("aux_audit:sound")
    with Workers("tests.proof.aux_audit:squared", num_ranks=1) as workers:
        [outcome] = workers.run(Trial(guard="none", is_audit=True))

    [finding] = outcome.audit.findings
    assert finding.kind == "weight_applied_twice"


@pytest.mark.long
@pytest.mark.parametrize(("name", "is_proven"), [("sound", True), ("squared", False)])
def test_a_proof_has_the_case_beside_those_of_the_guard(loops, name, is_proven):
    loops("aux_audit:sound")
    told = []

    proof = prove(f"tests.proof.aux_audit:{name}", processes=(1,), progress=told.append)

    assert proof.proven == is_proven, [case.text for case in proof.failed]
    assert (told[-1].case, len(told)) == (AUX_WEIGHTS, 26)
    assert [case.case for case in proof.failed] == ([] if is_proven else [AUX_WEIGHTS])
    assert proof.mistakes == (() if is_proven else ("aux_weight_off",))
