"""A watch on a Trainer in two real processes under DDP: figures over both ranks, one voice, nothing changed."""

from pathlib import Path

import pytest

import trimtab
from trimtab.resume.manifest import read_manifest
from trimtab.resume.select import pick

K = 2


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("router_of_a_rank.py"))


@pytest.fixture(scope="module")
def watched(pair, tmp_path_factory):
    """A training without a watch, in which each rank counts by hand, and the same with one."""
    out = tmp_path_factory.mktemp("watched")
    plain = pair.call("train", out=str(out / "plain"), name="plain", watch=False)
    return plain, pair.call("train", out=str(out / "watched"), name="watched", watch=True)


@pytest.fixture(scope="module")
def collapsed(pair, tmp_path_factory):
    """A training whose router is uniform from step 6 on, and its folder."""
    out = tmp_path_factory.mktemp("collapsed")
    return pair.call("train", out=str(out), name="collapsed", watch=True, zeroes_at=6, model="gpt_oss"), out


def events(ranks, kind):
    log = trimtab.open_log(Path(ranks[0]["folder"]))
    return [event for event in log.event_list() if event.kind == kind]


def test_weights_are_those_without_a_watch_on_both_ranks(pair, watched):
    assert pair.call("same_weights", one="watched", other="plain") == [True, True]


def test_a_report_is_of_the_tokens_of_both_ranks(watched):
    plain, ranks = watched
    reports = events(ranks, "router")
    assert [event.step for event in reports] == [2, 4, 6, 8]
    for event in reports:
        # given what each rank has counted by hand in these two steps
        steps = [str(event.step - 1), str(event.step)]
        by_hand = [rank["counts"][step] for rank in plain for step in steps]
        # then
        [counts] = event.facts["layers"]["counts"]
        assert counts == [sum(of_expert) for of_expert in zip(*by_hand, strict=True)]
        assert sum(counts) == K * event.facts["expected_tokens"]
        assert event.facts["num_ranks"] == 2


def test_an_epoch_is_all_rows_once(watched):
    _, ranks = watched
    lengths = [3 + row * 5 % 7 for row in range(32)]
    first = [event.facts["expected_tokens"] for event in events(ranks, "router")][:2]
    assert sum(first) == sum(lengths)


def test_a_finding_is_told_once_and_by_rank_0(collapsed):
    ranks, _ = collapsed
    assert ["collapse", 8] in ranks[0]["told"]
    assert ranks[1]["told"] == []
    assert [len([line for line in rank["said"] if ": collapse: " in line]) for rank in ranks] == [1, 0]
    assert [event.facts["kind"] for event in events(ranks, "finding")].count("collapse") == 1
    assert [len([line for line in rank["said"] if "watches" in line]) for rank in ranks] == [1, 0]


def test_a_checkpoint_that_both_ranks_save_then_is_not_healthy(pair, collapsed):
    # given
    _, out = collapsed
    assert read_manifest(out / "checkpoint-4").healthy
    because = read_manifest(out / "checkpoint-8").unhealthy_because
    assert because
    assert all("router" in sentence for sentence in because)
    assert pick(out, healthy=True).step == 4
    # then a plain resume is refused on both ranks
    with pytest.raises(AssertionError, match="The last healthy one is checkpoint-4"):
        pair.call("train", out=str(out), name="refused", watch=True, resume=True, model="gpt_oss")


def test_a_watch_goes_on_from_a_checkpoint_on_both_ranks(pair, collapsed, tmp_path_factory):
    ranks = pair.call(
        "train", out=str(tmp_path_factory.mktemp("again")), name="again", watch=True, zeroes_at=6, model="gpt_oss",
        resume=str(collapsed[1] / "checkpoint-4"),
    )  # fmt: skip
    assert ranks[0]["told"] == collapsed[0][0]["told"]
    assert pair.call("same_weights", one="again", other="collapsed") == [True, True]
