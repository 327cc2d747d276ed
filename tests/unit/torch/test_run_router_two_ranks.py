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
    assert len([line for line in first["said"] if line.startswith("Trimtab, step 20: collapse: ")]) == 1
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
