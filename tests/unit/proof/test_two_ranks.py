"""Loops on two ranks: what is wired right is proven, and what goes wrong on two ranks only is told by its name."""

import functools
from pathlib import Path

import pytest

from trimtab.proof.cases import cases_of
from trimtab.proof.checks import judge
from trimtab.proof.workers import Workers

pytestmark = pytest.mark.long

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def results_of(name, only=lambda case: True):
    with Workers(f"tests.proof.{name}", num_ranks=2) as pair:
        run = functools.cache(pair.run)
        return [judge(case, run) for case in cases_of(2) if only(case)]


@pytest.mark.parametrize(
    "name",
    [
        "run_loop",
        "token_run_loop",
        "scaled_run_loop",
        "fsdp_run_loop",
        "tensor_guard_loop",
        "scalar_guard_loop",
        "kit_engine",
    ],
)
def test_a_loop_that_is_wired_right_is_proven_on_two_ranks(name):
    results = results_of(f"good:{name}")
    assert [result.text for result in results if result.outcome != "proven"] == []
    assert len(results) == 47


def test_a_trainer_is_proven_on_two_ranks():
    results = results_of("good:trainer", lambda case: case.fault in (None, "NaN"))
    assert [result.text for result in results if result.outcome != "proven"] == []
    assert len(results) == 12


def test_a_backward_left_out_shows_where_it_was_the_last_one():
    # when
    results = results_of(
        "broken:last_backward_left_out", lambda case: case.fault == "finite spike" and case.guard == "on"
    )
    # then
    failed = [result for result in results if result.outcome == "failed"]
    assert {(result.place, result.ranks) for result in failed} == {
        (place, ranks) for place in ("last", "two") for ranks in ((1,), (0, 1))
    }
    for result in failed:
        assert (result.check, result.mistake) == ("ranks alike", "last_backward_left_out")
        assert result.found > 1e-3
        assert result.expected == 0.0


def test_a_decision_of_each_rank_shows_where_one_rank_has_the_fault():
    # when
    results = results_of("broken:per_rank_decision", lambda case: case.fault == "finite spike" and case.guard == "on")
    # then
    failed = [result for result in results if result.outcome == "failed"]
    assert {(result.place, result.ranks) for result in failed} == {
        (place, (1,)) for place in ("first", "middle", "last", "two", "all")
    }
    for result in failed:
        assert result.mistake == "per_rank_decision"
        assert (result.found, result.expected) == (0.0, {"all": 3.0, "two": 2.0}.get(result.place, 1.0))
        assert "rank 0 skipped 0" in result.text


@pytest.mark.parametrize("mistake", ["zeroed_by_multiplication", "zero_gradients_stepped", "tokens_zeroed_too"])
def test_a_mistake_of_one_process_has_the_same_name_on_two_ranks(mistake):
    results = results_of(f"broken:{mistake}", lambda case: case.fault == "NaN" and case.place in ("first", "all"))
    assert {result.mistake for result in results if result.outcome == "failed"} == {mistake}
