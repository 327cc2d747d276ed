"""Real processes that serve trials: what goes wrong on a rank is told, ends in time, and does not end the proof."""

from pathlib import Path

import pytest

from trimtab.proof import case_names, prove
from trimtab.proof.cases import Case
from trimtab.proof.checks import judge
from trimtab.proof.faults import Plant
from trimtab.proof.trial import Trial
from trimtab.proof.workers import RanksError, Workers

HEALTHY = Trial(guard="none")
GUARDED = Trial(guard="on")
NAN_ON_RANK_1 = Trial(guard="on", plants=(Plant(window=2, place="last", ranks=(1,), fault="NaN"),))


@pytest.fixture(autouse=True)
def _here(monkeypatch):
    monkeypatch.chdir(Path(__file__).resolve().parents[2])


@pytest.fixture
def make_pair():
    pairs = []

    def make(name, num_ranks=2):
        pairs.append(Workers(f"tests.e2e.loops_that_fail:{name}", num_ranks=num_ranks, least_s=5.0))
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
def test_what_both_ranks_say_is_said_once_with_its_place_and_cut_between_words(make_pair):
    said = str(failed(make_pair("raises_alike"), GUARDED))
    assert said.startswith("every rank failed: FileNotFoundError: no rows.jsonl. word word")
    assert said.endswith("word ... (loops_that_fail.py:31)")
    assert len(said) < 600


@pytest.mark.long
def test_ranks_that_left_their_group_have_shown_nothing(make_pair):
    pair = make_pair("leaves_group")
    pair.run(HEALTHY)
    assert "the loop left the process group of its 2 ranks, found 1 in it" in str(failed(pair, GUARDED))


@pytest.mark.long
def test_ranks_that_meet_in_unlike_collectives_are_told_so_in_words_of_our_own(make_pair):
    error = failed(make_pair("reduces_otherwise"), GUARDED)
    assert "the ranks called different collectives: is a guard on one rank only?" in str(error)
    assert error.hung


@pytest.mark.long
def test_one_process_that_hangs_is_ended_and_the_next_trial_gets_a_new_one(make_pair):
    workers = make_pair("hangs_alone", num_ranks=1)
    workers.run(HEALTHY)
    error = failed(workers, GUARDED)
    assert str(error).endswith(" s it was not through, and was ended")
    assert (error.hung, error.is_over) == (False, True)
    (outcome,) = workers.run(HEALTHY)
    assert outcome.rank == 0


def test_one_process_lives_on_after_an_error(make_pair):
    workers = make_pair("raises_alike", num_ranks=1)
    assert not failed(workers, GUARDED).is_over
    (outcome,) = workers.run(HEALTHY)
    assert outcome.is_finite


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
    with Workers("tests.e2e.loops_that_fail:no_such", num_ranks=2) as pair:
        error = failed(pair, HEALTHY)
    assert "has no no_such; it has sound, dies, raises, raises_alike, leaves_group" in str(error)


@pytest.mark.long
def test_a_loop_that_never_comes_through_on_two_ranks_ends_its_proof_in_time():
    proof = prove("tests.e2e.loops_that_fail:raises", processes=(2,))
    assert [case.case for case in proof.cases] == case_names(processes=(2,))
    assert {(case.outcome, case.check) for case in proof.cases} == {("failed", "comes to its end")}
    told = [case for case in proof.cases if "no rows.jsonl of rank 1" in case.text]
    assert len(told) == 3
    assert all(case.text.startswith("It was not run: 3 trials before it") for case in proof.cases if case not in told)


def test_closing_workers_that_never_ran_does_nothing():
    workers = Workers("tests.e2e.loops_that_fail:sound", num_ranks=2)
    workers.close()
    workers.close()
