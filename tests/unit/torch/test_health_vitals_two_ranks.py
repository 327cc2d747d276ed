"""How far a step moves what is sharded: each rank measures its part, under the weight's own name."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("vitals_of_a_rank.py"))


@pytest.mark.long
def test_the_part_of_a_shard_moves_as_far_as_the_whole(pair):
    for measured in pair.call("measure"):
        assert set(measured["sharded"]) == set(measured["whole"]) == {"0.weight", "2.weight"}
        # half of the rows of a weight whose rows are alike
        assert measured["sharded"] == pytest.approx(measured["whole"], rel=0.2)
