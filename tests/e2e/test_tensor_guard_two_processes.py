"""`loss = guard(loss)` under DDP and FSDP2, two gloo processes: a fault of one rank is a skip of both."""

from pathlib import Path

import pytest

HOSTS = ["DDP no_sync", "DDP sync each", "FSDP2 sync last", "FSDP2 sync each"]
FAULTS = ["finite spike", "spike with inf derivative", "NaN activation", "NaN loss"]
PLACES = {"first": 1, "middle": 1, "last": 1, "all": 3}
OPTIMIZERS = ["fused AdamW", "foreach AdamW", "SGD momentum"]
QUICK = [
    ("DDP no_sync", "NaN activation", "last", "foreach AdamW"),
    ("DDP sync each", "spike with inf derivative", "first", "SGD momentum"),
    ("FSDP2 sync last", "NaN activation", "last", "fused AdamW"),
    ("FSDP2 sync last", "NaN loss", "all", "foreach AdamW"),
    ("FSDP2 sync each", "finite spike", "all", "fused AdamW"),
]
"""A sample: each host, fault, place and optimizer stands in it."""


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("tensor_guard_worker.py"))


def check(pair, host, fault, place, optimizer):
    first, second = pair.call("compare", host=host, fault=fault, place=place, optimizer=optimizer)
    assert first == second
    assert first["equal"]
    assert (first["num_judged"], first["num_skipped"]) == (12, PLACES[place])


@pytest.mark.parametrize(("host", "fault", "place", "optimizer"), QUICK)
def test_a_fault_of_one_rank_leaves_no_bit_behind_on_either(pair, host, fault, place, optimizer):
    check(pair, host, fault, place, optimizer)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("host", HOSTS)
def test_no_fault_leaves_a_bit_behind_anywhere(pair, host, fault, place, optimizer):
    check(pair, host, fault, place, optimizer)


@pytest.mark.parametrize("host", ["DDP no_sync", "FSDP2 sync last"])
@pytest.mark.parametrize("optimizer", ["fused AdamW", "SGD momentum"])
def test_a_guard_that_finds_nothing_changes_no_bit(pair, host, optimizer):
    first, second = pair.call("compare", host=host, fault=None, place="all", optimizer=optimizer)
    assert first["equal"]
    assert second["equal"]
    assert first["num_skipped"] == second["num_skipped"] == 0


# Of 1, 1, 1, 1.5 the mean is 1.125, and 2.5 is more than twice that.
LOSSES = [(1, 1), (1, 1), (1, 1), (3, 0), (4, 1), (1, "nan"), ("inf", 1), (1, 1)]
KEPT = [True, True, True, True, False, False, False, True]


def test_both_ranks_decide_by_the_mean_of_their_losses_with_one_collective_a_call_and_one_before(pair):
    assert pair.call("verdicts", losses=LOSSES) == [[KEPT, 1 + len(LOSSES)]] * 2


def test_ranks_with_different_settings_are_refused_on_both_at_the_first_call(pair):
    first, second = pair.call("unlike", multipliers=[2.0, 3.0])
    assert "rank 0 has multiplier=2.0" in first
    assert "rank 1 has multiplier=3.0" in second


def test_a_state_that_one_rank_alone_has_loaded_is_refused_on_both_at_the_first_call(pair):
    first, second = pair.call("loaded_on", ranks=[0])
    assert "rank 0 has history='3 losses" in first
    assert "rank 1 has history='0 losses" in second
    assert pair.call("loaded_on", ranks=[0, 1]) == ["not refused"] * 2


@pytest.mark.parametrize("way", ["guard(loss)", "Run"])
def test_unlike_states_that_are_loaded_in_mid_training_are_refused_on_both(pair, way):
    first, second = pair.call("loaded_late", way=way)
    assert "rank 0 has history='0 losses" in first
    assert "rank 1 has history='2 losses" in second


def test_a_guard_from_before_the_process_group_decides_with_it(pair, tmp_path):
    assert pair.call("made_early", losses=LOSSES, meeting=str(tmp_path / "meeting")) == [KEPT] * 2


def test_a_guard_decides_with_the_ranks_of_its_process_group_and_with_no_other(pair):
    # 1, 1, 1 and a loss of each rank, of which that of rank 1 is NaN: with groups of one it alone skips.
    losses = [(1, 1), (1, 1), (1, 1), (1, "nan"), (1, 1)]
    kept_by_all = [True] * 5
    # A call waits for nobody: rank 1 makes two of its own more.
    found = pair.call("groups_of_one", losses=losses, num_more=2, timeout_s=60)
    assert found == [kept_by_all, [True, True, True, False, True, True, True]]


@pytest.mark.long
def test_a_graph_that_is_compiled_as_a_whole_holds_the_collective_too(pair):
    assert pair.call("compiled_verdicts", losses=LOSSES) == [[KEPT, 1]] * 2


def test_the_rank_with_more_tokens_weighs_more_and_one_without_is_no_fault(pair):
    # Worked by hand: 1,020 of 1,000 tokens is 1.02 and kept, though rank 0 alone is at 3; NaN of no tokens is nothing.
    one = [(100, 100), (100, 100)]
    figures = [one, one, one, [(30, 10), (990, 990)], [("nan", 0), (10, 10)], [(30, 10), (10, 10)]]
    # A rank's own gradient does not count where its loss is not finite and has no tokens.
    assert pair.call("token_verdicts", figures=figures) == [
        [True, True, True, True, False, True],
        [True, True, True, True, True, True],
    ]
    figures[-1] = [(30, 10), (20, 10)]
    assert [kept[-1] for kept in pair.call("token_verdicts", figures=figures)] == [False, False]


def test_a_criterion_that_is_sharded_by_itself_is_kept_clean_without_a_word(pair):
    assert pair.call("sharded_criterion") == [[True, 1]] * 2
    assert not any("does not hold" in text for text in pair.said())


SAID = [
    "losses in a row were not finite",
    "parameters that the guard's model does not hold",
    "first parameter with such a gradient: weight",
    "had no supervised token at all",
]


def test_rank_0_alone_speaks(pair):
    assert pair.call("words") == [10, 10]
    assert pair.call("words_of_steps") == [None, None]
    first, second = pair.said()
    for text in SAID:
        assert (text in first, text in second) == (True, False), text
