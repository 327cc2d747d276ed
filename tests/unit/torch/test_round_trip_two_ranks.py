"""Round trips on two real ranks: each compares what it holds, all get the same result, and training is untouched."""

from pathlib import Path

import pytest

from trimtab import open_log

KINDS = ("under_ddp", "sharded")


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("round_trip_of_a_rank.py"))


@pytest.mark.parametrize("kind", KINDS)
def test_ranks_that_load_each_checkpoint_again_train_as_those_that_do_not(kind, pair, tmp_path):
    around = pair.call("train", folder=str(tmp_path / "around"), kind=kind, goes_round=True)
    plain = pair.call("train", folder=str(tmp_path / "plain"), kind=kind, goes_round=False)
    assert [rank["training"] for rank in around] == [rank["training"] for rank in plain]
    assert around[0]["results"] == around[1]["results"]
    assert [(result["step"], result["same"], result["differences"]) for result in around[0]["results"]] == [
        (step, True, []) for step in range(1, 4)
    ]
    assert around[0]["results"][-1]["probe"]["vocabulary_size"] == 7


@pytest.mark.parametrize("kind", KINDS)
def test_what_differs_on_one_rank_is_told_on_both_with_its_rank(kind, pair, tmp_path):
    one, other = pair.call("go_round", folder=str(tmp_path), kind=kind, change_on=1)
    assert one == other
    [difference] = [text for text in one["differences"] if "weight" in text]
    assert difference.startswith("rank 1: 0.weight differs in 1 of ")
    # Rank 1 holds the last three of the seven rows; places are those in the whole.
    assert f"at [{4 if kind == 'sharded' else 0}, 0] it is 9.0 in the training" in difference
    assert not one["same"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_checkpoint_is_the_same_result_on_both(kind, pair, tmp_path):
    one, other = pair.call("go_round", folder=str(tmp_path), kind=kind, flip=True)
    assert one["same"] is False
    assert one["differences"] == other["differences"]
    assert "step_1" in one["differences"][0]


def test_a_rank_that_cannot_build_holds_no_other(pair, tmp_path):
    one, other = pair.call("fails_on_rank_1", folder=str(tmp_path))
    assert one["differences"] == other["differences"] == ["rank 1: build() failed: RuntimeError: out of memory"]


def test_rank_0_says_and_records_it_for_all(pair, tmp_path):
    folder, _ = pair.call("records", folder=str(tmp_path))
    kinds = open_log(folder).events().numpy()["kind"].tolist()
    assert kinds.count("round_trip") == 1
    first, other = pair.said()
    assert f"round trip of {tmp_path}" in first
    assert "round trip of" not in other


def test_other_arguments_on_another_rank_are_refused_on_both(pair, tmp_path):
    one, other = pair.call("other_arguments", folder=str(tmp_path))
    assert one == other
    assert "for step rank 1 has 1, and rank 0 0" in one


def test_a_model_whose_shards_only_its_library_can_save_is_refused(pair, tmp_path):
    for text in pair.call("old_shards", folder=str(tmp_path)):
        assert "FSDP1" in text
