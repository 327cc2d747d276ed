"""What a proof says of itself."""

import math

from trimtab.proven import CaseResult, Proof


def case(name, outcome, **fields):
    return CaseResult(
        **{"case": name, "fault": "NaN", "place": "last", "processes": 1, "ranks": (0,), "outcome": outcome, **fields}
    )


def proof(*cases):
    return Proof(factory="loop:build", seconds=1.25, cases=cases)


def test_it_is_proven_where_nothing_failed_and_something_was_proven():
    assert proof(case("a", "proven"), case("b", "not_applicable")).proven
    assert not proof(case("a", "proven"), case("b", "failed")).proven


def test_nothing_is_proven_by_no_case_or_by_cases_that_did_not_apply():
    assert not proof().proven
    assert not proof(case("a", "not_applicable")).proven


def test_each_mistake_is_named_once_and_in_order():
    found = proof(
        case("a", "failed", mistake="second"),
        case("b", "failed", mistake="first"),
        case("c", "failed", mistake="second"),
        case("d", "failed"),
    )
    assert found.mistakes == ("second", "first")


def test_the_document_holds_every_case_and_spells_what_is_not_finite():
    document = proof(case("a", "failed", check="all finite", found=math.nan, expected=0.0, text="Bad.")).to_dict()
    assert document == {
        "version": 1,
        "factory": "loop:build",
        "proven": False,
        "seconds": 1.25,
        "cases": [
            {
                "case": "a",
                "fault": "NaN",
                "place": "last",
                "processes": 1,
                "ranks": [0],
                "outcome": "failed",
                "check": "all finite",
                "found": "nan",
                "expected": 0.0,
                "mistake": None,
                "text": "Bad.",
            }
        ],
        "mistakes": [],
    }
