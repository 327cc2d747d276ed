"""A watch on a Trainer on two nodes that save each to a disk of its own: rank 0's word on the health counts on both."""

from pathlib import Path

import pytest

from trimtab.resume.manifest import read_manifest


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("router_of_a_node.py"))


@pytest.mark.long
def test_a_checkpoint_is_as_healthy_on_another_node_as_rank_0_says(pair, tmp_path):
    # given a router that sends all tokens to the first experts from step 5 on; rank 0 alone judges it
    pair.call("train", out=str(tmp_path), name="collapsed", watch=True, zeroes_at=5, model="gpt_oss")

    # then
    said = [[read_manifest(tmp_path / node / f"checkpoint-{step}") for step in (4, 8)] for node in ("0", "1")]
    for healthy, unhealthy in said:
        assert healthy.healthy
        assert unhealthy.healthy is False
    assert said[0][1].unhealthy_because == said[1][1].unhealthy_because
