"""Two real ranks whose routers are watched together: one set of figures, one finding, the same weights."""

from pathlib import Path

import pytest

import trimtab

NUM_STEPS, COLLAPSE_AT, REPORT_EVERY = 30, 11, 10
NUM_TOKENS = 64


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("router_run_of_a_rank.py"))


def test_figures_are_sums_over_ranks_and_a_finding_is_said_once(pair, tmp_path):
    # when
    first, second = pair.call("train", out=str(tmp_path), num_steps=NUM_STEPS, collapse_at=COLLAPSE_AT, watch=True)
    # then rank 0 tells what was found
    assert ["collapse", 20] in first["found"]
    assert second["found"] == []
    assert len([line for line in first["said"] if line.startswith("Trimtab, step 20: critical: collapse: ")]) == 1
    assert not [line for line in second["said"] if line.startswith("Trimtab, step")]
    assert first["because"]
    assert second["because"] == []
    # and the log holds one report a step, of both ranks' tokens
    events = trimtab.open_log(first["folder"]).event_list()
    reports = [event for event in events if event.kind == "router"]
    assert [event.step for event in reports] == [10, 20, 30]
    for event in reports:
        [counts] = event.facts["layers"]["counts"]
        assert event.facts["num_ranks"] == 2
        assert sum(counts) == event.facts["expected_tokens"] == 2 * REPORT_EVERY * NUM_TOKENS
    assert reports[-1].facts["layers"]["counts"] == [[2 * REPORT_EVERY * NUM_TOKENS, 0, 0, 0]]
    assert [event.step for event in events if event.kind == "watch"] == [1]
    # and training is what it is without a watch
    for with_watch, without in zip(
        (first, second),
        pair.call("train", out=None, num_steps=NUM_STEPS, collapse_at=COLLAPSE_AT, watch=False),
        strict=True,
    ):
        assert with_watch["weights"] == without["weights"]


def test_without_a_log_rank_0_alone_finds_and_tells(pair):
    first, second = pair.call("train", out=None, num_steps=NUM_STEPS, collapse_at=COLLAPSE_AT, watch=True)

    assert ["collapse", 20] in first["found"]
    assert second["found"] == []


def test_watches_that_report_at_different_steps_are_refused_on_every_rank(pair):
    first, second = pair.call("refusal_of_unlike_settings")

    assert first.startswith("The ranks have watches with different settings; rank 0 has report_every=10. Pass the same")
    assert second.startswith(
        "The ranks have watches with different settings; rank 1 has report_every=11. Pass the same"
    )


def test_a_run_that_one_rank_has_left_open_is_not_taken_for_the_next_one(pair, tmp_path):
    first, second = pair.call("train_after_a_run_that_was_left_open", out=str(tmp_path), timeout_s=60.0)

    assert not [said for answer in (first, second) for said in answer["said"] if "does not watch" in said]
    reports = [event for event in trimtab.open_log(first["folder"]).event_list() if event.kind == "router"]
    assert [(event.step, event.facts["num_ranks"]) for event in reports] == [(10, 2)]


def test_where_the_ranks_cannot_ask_each_other_routers_are_left_out_on_all(pair):
    answers = pair.call("train_where_the_store_is_gone", timeout_s=60.0)

    for rank, answer in enumerate(answers):
        assert [said for said in answer["said"] if "does not watch" in said] == [
            f"Trimtab does not watch the routers of this run: rank {rank} has a watch, and the ranks could not ask "
            "each other. Pass the same watch= on every rank: their figures are summed over all."
        ]
    assert answers[0]["weights"] == answers[1]["weights"]


@pytest.mark.parametrize("with_watch", [0, 1], ids=["rank 0 has one", "rank 1 has one"])
def test_a_watch_that_not_all_ranks_have_leaves_out_the_routers_and_training_goes_on(pair, tmp_path, with_watch):
    # when one rank alone would sum the figures of its routers
    out = str(tmp_path)
    answers = pair.call("train_where_some_have_no_watch", ranks_with_watch=[with_watch], out=out, makes_run=True)
    # then it says once that it does not, and the other has nothing to say
    without = 1 - with_watch
    line = (
        f"Trimtab does not watch the routers of this run: rank {with_watch} has a watch, and rank {without} has not, "
        "or came late to its first report. Pass the same watch= on every rank: their figures are summed over all."
    )
    assert [said for said in answers[with_watch]["said"] if "does not watch" in said] == [line]
    assert not [said for said in answers[without]["said"] if "does not watch" in said]
    assert not [event for event in trimtab.open_log(answers[0]["folder"]).event_list() if event.kind == "router"]
    # and both have trained on
    trained = pair.call("train", out=None, num_steps=20, collapse_at=0, watch=False)
    assert [answer["weights"] for answer in answers] == [answer["weights"] for answer in trained]


def test_a_rank_without_any_run_is_not_waited_for_longer_than_its_gradients_can(pair):
    first, second = pair.call("train_without_a_run_on_rank_1")

    assert [said for said in first["said"] if "does not watch" in said] == [
        "Trimtab does not watch the routers of this run: rank 0 has a watch, and rank 1 has not, or came late to "
        "its first report. Pass the same watch= on every rank: their figures are summed over all."
    ]
    assert first["weights"] == second["weights"]


def test_what_rank_0_has_trained_alone_before_is_not_the_run_that_is_compared(pair, tmp_path):
    first, _ = pair.call("train_alone_before", out=str(tmp_path))

    reports = [event for event in trimtab.open_log(first["folder"]).event_list() if event.kind == "router"]
    assert [(event.step, event.facts["num_ranks"]) for event in reports] == [(10, 2)]
    assert not [said for said in first["said"] if "does not watch" in said]


def test_a_run_of_some_of_the_ranks_sums_the_figures_of_these_alone(pair, tmp_path):
    first, second = pair.call("train_in_a_group_of_its_own", out=str(tmp_path))

    assert second == []
    assert [facts["step"] for facts in first] == [10, 20]
    for facts in first:
        [counts] = facts["layers"]["counts"]
        assert facts["num_ranks"] == 1
        assert sum(counts) == facts["expected_tokens"] == REPORT_EVERY * NUM_TOKENS
