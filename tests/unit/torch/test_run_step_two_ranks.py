"""The step of a `Run` on two real ranks: what was made in the wrong order is refused, and shards are left clean."""

from pathlib import Path

import pytest

DECIDERS = ["host", "device"]


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("steps_of_a_rank.py"))


@pytest.mark.parametrize("decide", [None, "host"])
def test_a_run_made_before_the_process_group_is_refused_on_every_rank(pair, tmp_path, decide):
    told = pair.call("run_made_before_the_group", meeting=str(tmp_path / "meeting"), decide=decide)

    assert all("Make the Run after torch.distributed.init_process_group" in error for error in told)


@pytest.mark.parametrize("decide", [None, *DECIDERS])
def test_an_optimizer_made_before_the_model_was_sharded_is_refused_on_every_rank(pair, decide):
    told = pair.call("optimizer_made_before_the_shards", decide=decide)

    assert all("before fully_shard" in error for error in told)


@pytest.mark.parametrize("decide", DECIDERS)
def test_two_runs_of_one_sharded_model_lose_a_step_only_where_the_fault_was(pair, decide):
    first, second = pair.call("halves_of_a_sharded_model", decide=decide)

    assert first == second
    assert first["is_finite"]
    assert first["reasons"] == ["stepped", "stepped", "nonfinite_norm", "stepped", "stepped", "stepped"]
