"""Two real processes that serve trials: what goes wrong on a rank is told, ends in time, and does not end the proof."""

from pathlib import Path

import pytest

from trimtab.proof import case_names, prove
from trimtab.proof.cases import Case
from trimtab.proof.checks import judge
from trimtab.proof.faults import Plant
from trimtab.proof.pair import Pair, RanksError
from trimtab.proof.trial import Trial

HEALTHY = Trial(guard="none")
GUARDED = Trial(guard="on")
NAN_ON_RANK_1 = Trial(guard="on", plants=(Plant(window=2, place="last", ranks=(1,), fault="NaN"),))


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])


@pytest.fixture
def make_pair():
    pairs = []

    def make(name):
        pairs.append(Pair(f"tests.e2e.loops_that_fail:{name}", least_s=5.0))
        return pairs[-1]

    yield make
    for pair in pairs:
        pair.close()


def failed(pair, trial):
    with pytest.raises(RanksError) as caught:
        pair.run(trial)
    return caught.value


@pytest.mark.long
def test_one_pair_serves_all_trials_and_gives_both_outcomes(make_pair):
    pair = make_pair("sound")
    for trial, num_skipped in ((HEALTHY, 0), (GUARDED, 0), (NAN_ON_RANK_1, 1)):
        first, second = pair.run(trial)
        assert (first.rank, second.rank) == (0, 1)
        assert first.end.digest == second.end.digest
        assert first.num_skipped == second.num_skipped == num_skipped


@pytest.mark.long
def test_a_rank_that_dies_is_told_with_its_last_words_and_the_next_trial_gets_a_new_pair(make_pair):
    pair = make_pair("dies")
    error = failed(pair, GUARDED)
    assert str(error).startswith("rank 1 failed: the process ended with exit code 7; the last it said: about to die")
    assert not error.hung
    # then
    first, second = pair.run(HEALTHY)
    assert first.end.digest == second.end.digest


@pytest.mark.long
def test_a_rank_that_raises_is_told_and_the_other_is_not_waited_for(make_pair):
    error = failed(make_pair("raises"), GUARDED)
    assert "rank 1 failed: FileNotFoundError: no rows.jsonl of rank 1" in str(error)
    assert not error.hung


@pytest.mark.long
def test_ranks_that_wait_for_one_another_for_ever_are_ended(make_pair):
    pair = make_pair("hangs")
    pair.run(HEALTHY)
    error = failed(pair, GUARDED)
    assert error.hung
    assert "the ranks do not make the same collective calls" in str(error)


@pytest.mark.long
def test_a_collective_that_one_rank_makes_after_a_skip_is_told_by_its_name(make_pair):
    case = Case(guard="on", processes=2, fault="finite spike", place="last", ranks=(0, 1))
    result = judge(case, make_pair("hangs_once_it_skips").run)
    assert (result.outcome, result.check, result.mistake) == ("failed", "comes to its end", "collectives_unlike")


@pytest.mark.long
def test_a_factory_that_a_rank_cannot_import_is_told_by_that_rank():
    with Pair("tests.e2e.loops_that_fail:no_such") as pair:
        error = failed(pair, HEALTHY)
    assert "has no no_such; it has sound, dies, raises, hangs, hangs_once_it_skips" in str(error)


@pytest.mark.long
def test_a_loop_that_never_comes_through_on_two_ranks_ends_its_proof_in_time():
    proof = prove("tests.e2e.loops_that_fail:raises", processes=(2,))
    assert [case.case for case in proof.cases] == case_names(processes=(2,))
    assert {(case.outcome, case.check) for case in proof.cases} == {("failed", "comes to its end")}
    told = [case for case in proof.cases if "no rows.jsonl of rank 1" in case.text]
    assert len(told) == 3
    assert all(case.text.startswith("It was not run: 3 trials before it") for case in proof.cases if case not in told)


def test_closing_a_pair_that_never_ran_does_nothing():
    pair = Pair("tests.e2e.loops_that_fail:sound")
    pair.close()
    pair.close()
