"""The mask under DDP and FSDP2, two real processes: every gradient against the window that never saw the fault."""

from pathlib import Path

import pytest

FAULTS = ["finite spike", "infinite derivative", "nan activation"]

LAYOUTS = {
    "ddp, no_sync": ("ddp", {}, False),
    "ddp, sync each": ("ddp", {}, True),
    "ddp, find_unused_parameters": ("ddp", {"find_unused_parameters": True}, False),
    "ddp, gradient_as_bucket_view": ("ddp", {"gradient_as_bucket_view": True}, False),
    "ddp, tiny buckets": ("ddp", {"bucket_cap_mb": 1e-5}, True),
    "ddp, checkpointed": ("ddp", {"checkpointed": True}, False),
    "fsdp2, sync last": ("fsdp2", {}, False),
    "fsdp2, sync each": ("fsdp2", {}, True),
    "fsdp2, no reshard after forward": ("fsdp2", {"reshard_after_forward": False}, False),
    "fsdp2, checkpointed": ("fsdp2", {"checkpointed": True}, False),
    "fsdp2, bf16": ("fsdp2", {"precision": ["bfloat16", "bfloat16"]}, False),
    "fsdp2, bf16 reduced in float32": ("fsdp2", {"precision": ["bfloat16", "float32"]}, False),
    "fsdp2, bf16, checkpointed, sync each": (
        "fsdp2",
        {"precision": ["bfloat16", "float32"], "checkpointed": True},
        True,
    ),
}


@pytest.fixture(scope="module")
def pair(rank_pair):
    return rank_pair(Path(__file__).with_name("mask_of_a_rank.py"))


@pytest.mark.parametrize(("how", "options", "each"), LAYOUTS.values(), ids=LAYOUTS)
def test_the_gradients_are_to_the_bit_those_of_a_window_without_the_fault(pair, how, options, each):
    differing = pair.call("compared", how=how, options=options, each=each, faults=FAULTS)

    assert differing == [[], []]


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_a_verdict_of_the_host_is_as_exact(pair, how):
    differing = pair.call("compared", how=how, options={}, each=False, faults=FAULTS, decide="host")

    assert differing == [[], []]


@pytest.mark.parametrize("how", ["ddp", "fsdp2"])
def test_a_window_without_a_fault_has_the_bits_that_it_has_without_a_mask(pair, how):
    assert pair.call("kept_is_untouched", how=how, options={}) == [True, True]


@pytest.mark.parametrize("what", ["sharded", "unfrozen", "loaded", "assigned"])
def test_a_mask_stays_exact_whatever_is_done_to_a_sharded_model_later(pair, what):
    assert pair.call("late", what=what) == [True, True]


def test_a_model_that_was_evaluated_first_is_hooked(pair):
    assert pair.call("after_an_evaluation") == [True, True]


def test_sharded_modules_are_gathered_once_for_their_hooks_and_never_again(pair):
    assert pair.call("num_gathers_of_two_windows") == [[3, 0], [3, 0]]


@pytest.mark.parametrize("skipped", [[0], [1], [0, 1]], ids=str)
def test_running_statistics_under_ddp_are_those_without_the_skipped_micro_batches(pair, skipped):
    """The last one is kept: before it DDP gives rank 1 the statistics of rank 0, on either side alike."""
    found = pair.call("running_statistics", skipped=skipped)

    assert [rank["buffers"] for rank in found] == pair.call("running_statistics_without", left_out=skipped)
    assert [rank["said"] for rank in found] == [[], []]


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("meta", "still on the meta device"),
        ("fsdp1", "FullyShardedDataParallel (FSDP1)"),
        ("fsdp1 around", "FullyShardedDataParallel (FSDP1)"),
        ("tensor parallel", "a DTensor of no fully_shard module"),
    ],
)
def test_a_model_on_which_no_hook_is_known_to_fire_is_refused(pair, how, says):
    for message in pair.call("refused", how=how):
        assert says in message
