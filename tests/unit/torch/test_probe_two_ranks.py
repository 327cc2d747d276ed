"""`generation_probe` on two real ranks: the same numbers as on one, and training goes on."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("probe_of_a_rank.py"))


def test_a_replica_is_probed_by_one_rank_alone(pair):
    expected, _ = pair.call("probe_plain")
    assert pair.call("probe_under_ddp_on_rank_0_alone") == [expected, None]


def test_a_sharded_model_is_probed_by_all_and_is_sharded_afterwards(pair):
    expected, _ = pair.call("probe_plain")
    for rank in pair.call("probe_sharded"):
        assert rank["are_shards"]
        assert rank["found"]["top_ids"] == expected["top_ids"]
        assert rank["found"]["entropy"] == pytest.approx(expected["entropy"], rel=1e-6)
