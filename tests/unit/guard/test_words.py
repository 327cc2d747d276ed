"""What is said of a guard's decisions: a few lines of each kind, by one rank."""

import logging

import pytest

from trimtab.guard.words import SKIPS_SAID, GuardWords
from trimtab.values import Verdict

SPIKE = Verdict(keep=False, reason="spike", loss=9.0, baseline=1.0)


@pytest.fixture(autouse=True)
def heard(caplog):
    caplog.set_level(logging.INFO, logger="trimtab")


def test_of_many_skips_of_a_guard_the_first_twenty_are_said_and_the_last_of_them_says_so(caplog):
    words = GuardWords(rank=0)

    for call in range(1, 31):
        words.skipped_call(SPIKE, call=call)

    assert len(caplog.messages) == SKIPS_SAID == 20
    assert caplog.messages[0] == "Guard skipped call 1: spike, loss 9, 1 expected."
    assert caplog.messages[19].startswith("Guard skipped call 20: ")
    assert ["Further ones" in line for line in caplog.messages] == [False] * 19 + [True]


def test_of_many_skips_of_a_run_the_first_twenty_are_said_and_the_last_of_them_says_so(caplog):
    words = GuardWords(rank=0)

    for step in range(1, 31):
        if words.says_skip(is_cause=True):
            words.skipped(SPIKE, step=step, micro=0, leader=None)

    assert len(caplog.messages) == 20
    assert ["Further ones" in line for line in caplog.messages] == [False] * 19 + [True]


SAID_ONCE = {
    "outside model": lambda words, step: words.outside_model(step),
    "no tokens": lambda words, step: words.no_tokens(step),
    "nonfinite norm": lambda words, step: words.nonfinite_norm(step, norm=float("inf"), parameter="weight"),
    "lost": lambda words, step: words.lost(step, num_held=1_024),
}


@pytest.mark.parametrize("kind", SAID_ONCE)
def test_what_every_rank_knows_is_said_once_and_by_rank_0(caplog, kind):
    for rank in (1, 0):
        words = GuardWords(rank=rank)
        for step in (1, 2):
            SAID_ONCE[kind](words, step)
        assert len(caplog.messages) == (rank == 0)


def test_skips_of_a_guard_are_said_by_rank_0_also_where_that_is_known_late(caplog):
    words = GuardWords(rank=1)
    words.skipped_call(SPIKE, call=1)
    assert not caplog.messages

    words.rank = 0
    words.skipped_call(SPIKE, call=2)

    assert caplog.messages == ["Guard skipped call 2: spike, loss 9, 1 expected."]


def test_parameters_that_the_model_holds_are_not_spoken_of(caplog):
    GuardWords(rank=0).outside_model(0)

    assert not caplog.messages
