"""`Run` on two real ranks that have different micro-batches: one mean, one verdict, one voice."""

from pathlib import Path

import pytest

DECIDERS = ["host", "device"]


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("run_of_a_rank.py"))


@pytest.mark.parametrize("decide", [None, *DECIDERS])
def test_every_token_counts_alike_whichever_rank_has_it(pair, decide):
    # (10 x 4.0 + 30 x 2.0) / 40
    assert pair.call("way_of_uneven_tokens", decide=decide) == pytest.approx([2.5, 2.5], rel=1e-12)


def test_a_term_beside_the_tokens_is_a_mean_over_the_ranks(pair):
    assert pair.call("way_of_an_announced_term") == pytest.approx([6.0, 6.0], rel=1e-12)


@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize(
    ("term", "way"),
    [(6.0, 6.0), (None, 3.0), (float("nan"), 3.0)],
    ids=["a term that counts", "no term", "a term that is no number"],
)
def test_a_rank_without_tokens_counts_by_its_finite_terms_alone_and_nobody_is_skipped_for_it(pair, decide, term, way):
    # DDP divides the gradients of rank 0, 1 by w and 6 by v, by two; rank 1 has only its term to add
    expected = {"reason": "stepped", "w": 0.5, "v": way, "num_batches": 1}
    assert pair.call("after_a_rank_without_tokens", decide=decide, term=term) == [expected, expected]


def test_a_guard_alone_lets_the_statistics_of_a_rank_without_tokens_stand(pair):
    assert pair.call("batches_seen_beside_a_guard") == [1, 1]


def test_the_zeros_of_a_skip_stay_on_all_ranks(pair):
    assert pair.call("gradients_of_what_a_skip_alone_reached") == [[0.5, 0.0], [0.5, 0.0]]


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_lockup_is_said_by_the_first_rank_alone(pair, decide):
    first, second = pair.call("said_of_a_lockup", decide=decide)

    assert len([line for line in first if "the skipped losses are the new baseline" in line]) == 1
    assert [line for line in second if "new baseline" in line] == []
