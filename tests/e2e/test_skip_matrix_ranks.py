"""Two ranks come to one verdict from the figures of both, and each window moves the weights as worked out by hand."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

NAN = float("nan")
ONE_MICRO = [[[1.0, 10], [1.0, 10]]]
HISTORY = [ONE_MICRO, ONE_MICRO, ONE_MICRO]


@pytest.fixture(scope="module")
def pair(rank_pair: Callable[[Path], Any]) -> Any:
    return rank_pair(Path(__file__).with_name("skip_matrix_ranks_worker.py"))


@pytest.fixture(params=["host", "device"])
def decide(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["ddp", pytest.param("fsdp2", marks=pytest.mark.long)])
def way(request: pytest.FixtureRequest, decide: str) -> dict[str, str]:
    """Where it is trained and who decides."""
    return {"host": request.param, "decide": decide}


def trained(pair: Any, windows: list[Any], **settings: Any) -> list[Any]:
    """What became of each window, as both ranks say; the reported loss is each rank's own."""
    first, second = pair.call("train", windows=windows, **settings)
    for mine, other in zip(first, second, strict=True):
        assert {**mine, "loss": None} == {**other, "loss": None}
    return list(first)


# One verdict.


def test_a_nan_on_one_rank_alone_is_skipped_by_both_and_moves_nothing(pair: Any, way: dict[str, str]) -> None:
    # given a fault in warm-up and one after it
    spoiled = [[[2.0, 10], [NAN, 10]]]
    # when
    told = trained(pair, [spoiled, *HISTORY, spoiled, ONE_MICRO], **way)
    # then
    assert [window["reason"] for window in told] == ["all_skipped", *["stepped"] * 3, "all_skipped", "stepped"]
    assert [window["moved"] for window in told] == [0.0, 1.0, 1.0, 1.0, 0.0, 1.0]


def test_a_short_rank_is_no_spike_where_the_loss_of_all_tokens_is_ordinary(pair: Any, way: dict[str, str]) -> None:
    # given 30.0 over 10 tokens beside 990.0 over 990: 1.02 in all
    told = trained(pair, [*HISTORY, [[[3.0, 10], [1.0, 990]]], [[[3.0, 10], [3.0, 990]]]], **way)
    # then
    assert [window["reason"] for window in told[3:]] == ["stepped", "all_skipped"]
    assert told[3]["moved"] == 2.0


def test_what_was_skipped_is_in_no_baseline(pair: Any, way: dict[str, str]) -> None:
    # given losses of 2.0 and 2.05 on both ranks, so that 2.62 is the most that is kept
    losses = [2.0, 2.1, NAN, 2.0, 50.0, 4.0, 4.1]
    told = trained(pair, [[[[2.0, 10], [loss, 10]]] for loss in losses], **way, multiplier=1.3)
    # then 26.0 is skipped, and 3.0 and 3.05 after it: neither NaN nor 26.0 is in the mean
    skipped = [window["num_skipped"] for window in told]
    assert skipped == [0, 0, 1, 0, 1, 1, 1]


def test_a_level_shift_ends_on_both_ranks_at_once(pair: Any, way: dict[str, str]) -> None:
    # when
    told = trained(pair, [*HISTORY, *[[[[1.0, 10], [9.0, 10]]]] * 10], **way, multiplier=3.0)
    # then
    assert [window["num_skipped"] for window in told] == [0] * 3 + [1] * 8 + [0] * 2


def test_a_rank_without_tokens_and_a_loss_that_is_not_finite_stops_nobody(pair: Any, way: dict[str, str]) -> None:
    # when
    told = trained(pair, [*HISTORY, [[[2.0, 10], [NAN, 0]]]], **way, multiplier=3.0)
    # then the healthy rank's gradient counts, as one of two
    assert told[3]["reason"] == "stepped"
    assert told[3]["moved"] == 1.0


def test_activations_that_are_not_finite_behind_ignored_labels_stop_nobody(pair: Any, way: dict[str, str]) -> None:
    for told in pair.call("all_labels_ignored_on_rank_1", **way):
        assert told["reason"] == "stepped"
        assert told["gap"] <= 1e-12
    assert told["loss"] == 0.0  # rank 1


def test_losses_at_the_end_of_float32_are_skipped(pair: Any, way: dict[str, str]) -> None:
    # given finite losses whose sum over ranks, or over tokens, is beyond float32
    both, own = [[[3e38, 1], [3e38, 1]]], [[[3e38, 10], [1.0, 10]]]
    told = trained(pair, [*HISTORY, both, own, ONE_MICRO], **way, dtype="float32")
    # then
    assert [window["reason"] for window in told[3:]] == ["all_skipped", "all_skipped", "stepped"]


def test_the_reduction_leaves_the_loss_as_it_is(pair: Any, decide: str) -> None:
    for rank, told in enumerate(pair.call("loss_that_saves_its_output", decide=decide)):
        own = pytest.approx(3.0 * (rank + 1), rel=1e-6)
        assert told == {"losses": own, "loss": own, "gradient": own}


# The right size.


@pytest.mark.parametrize(("skipped_tokens", "share"), [("counted", 0.2), ("removed", 1.0)])
def test_skipped_tokens_stay_in_the_divisor_or_leave_it(
    pair: Any, way: dict[str, str], skipped_tokens: str, share: float
) -> None:
    # given 10, 10 and 80 tokens, of which the 80 are skipped
    def window(last: float) -> list[Any]:
        return [[[1.0, 10]] * 2, [[1.0, 10]] * 2, [[last, 80], [1.0, 80]]]

    # when
    told = trained(
        pair,
        [window(1.0), window(90.0), window(1.0)],
        **way,
        accumulation=3,
        normalize="window",
        skipped_tokens=skipped_tokens,
    )
    # then
    assert [window["moved"] for window in told] == pytest.approx([1.0, share, 1.0], rel=1e-12)
    assert [window["num_skipped"] for window in told] == [0, 1, 0]


@pytest.mark.parametrize(("skipped_tokens", "share"), [("counted", 0.25), ("removed", 1.0)])
def test_the_tokens_of_a_window_are_those_of_all_ranks(
    pair: Any, way: dict[str, str], skipped_tokens: str, share: float
) -> None:
    # given ranks with tokens of their own: 40 of 160 are kept
    spoiled = [[[1.0, 10], [1.0, 20]], [[1.0, 10], [1.0, 0]], [[NAN, 80], [1.0, 40]]]
    lost = [[[NAN, 10], [1.0, 20]]] * 3
    # when
    told = trained(
        pair, [spoiled, lost, spoiled], **way, accumulation=3, normalize="window", skipped_tokens=skipped_tokens
    )
    # then
    assert [window["reason"] for window in told] == ["stepped", "all_skipped", "stepped"]
    assert [window["moved"] for window in told] == pytest.approx([share, 0.0, share], rel=1e-12)


@pytest.mark.parametrize("guarded", [True, False])
def test_every_token_counts_alike_over_micro_batches_and_ranks(pair: Any, way: dict[str, str], guarded: bool) -> None:
    # given 4.0 over 10 tokens and 2.0 over 1,000: 2.0198
    in_turn = [[[4.0, 10], [4.0, 10]], [[2.0, 1000], [2.0, 1000]]]
    side_by_side = [[[4.0, 10], [2.0, 1000]]]
    settings = {**way, "normalize": "window", "guarded": guarded}
    # when
    told = trained(pair, [in_turn], accumulation=2, **settings) + trained(pair, [side_by_side], **settings)
    # then
    assert [window["moved"] for window in told] == pytest.approx([2040 / 1010] * 2, rel=1e-12)


@pytest.mark.parametrize(("skipped_tokens", "share"), [("counted", 0.75), ("removed", 1.0)])
def test_one_of_four_micro_batches_is_left_out_of_their_mean(
    pair: Any, way: dict[str, str], skipped_tokens: str, share: float
) -> None:
    # given
    clean = ONE_MICRO[0]
    window = [clean, [[NAN, 10], [1.0, 10]], clean, clean]
    # when
    told = trained(pair, [window, [clean] * 4], **way, accumulation=4, skipped_tokens=skipped_tokens)
    # then, and the next window is as ever
    assert [window["moved"] for window in told] == pytest.approx([share, 1.0], rel=1e-12)
    assert [window["num_skipped"] for window in told] == [1, 0]


@pytest.mark.parametrize(("skipped_tokens", "loss"), [("counted", 1.0), ("removed", 2.0)])
def test_the_reported_loss_leaves_out_what_was_skipped(
    pair: Any, way: dict[str, str], skipped_tokens: str, loss: float
) -> None:
    # given 1,000.0 over 500 tokens beside 500 that are skipped
    window = [[[NAN, 500], [NAN, 500]], [[2.0, 500], [2.0, 500]]]
    # when
    told = trained(pair, [window], **way, accumulation=2, normalize="window", skipped_tokens=skipped_tokens)
    # then
    assert told[0]["loss"] == loss
    assert told[0]["moved"] == pytest.approx(loss, rel=1e-12)


def test_a_window_cut_short_by_the_end_of_an_epoch_is_a_mean_of_what_it_holds(pair: Any, way: dict[str, str]) -> None:
    # given one micro-batch of four
    clean = ONE_MICRO[0]
    told = trained(pair, [[clean] * 4, [clean], [clean] * 4], **way, accumulation=4)
    # then
    assert [window["moved"] for window in told] == [1.0, 1.0, 1.0]


# The scaler.


def test_a_scaler_goes_on_as_ever_through_a_window_that_was_skipped(pair: Any, way: dict[str, str]) -> None:
    # when
    told = trained(pair, [*HISTORY, [[[NAN, 10], [1.0, 10]]], ONE_MICRO], **way, scaled=True, dtype="float32")
    # then
    assert [window["reason"] for window in told] == [*["stepped"] * 3, "all_skipped", "stepped"]
    assert [window["scale"] for window in told] == [1024.0] * 5
    assert [window["moved"] for window in told] == [1.0, 1.0, 1.0, 0.0, 1.0]


def test_an_overflow_of_scaled_gradients_is_the_scalers_own_on_both_ranks(pair: Any, way: dict[str, str]) -> None:
    # given a loss that is finite, and not when multiplied by 1,024
    told = trained(pair, [[[[1e37, 10], [1.0, 10]]], ONE_MICRO], **way, scaled=True, dtype="float32")
    # then
    assert [window["reason"] for window in told] == ["scaler_overflow", "stepped"]
    assert [window["scale"] for window in told] == [512.0, 512.0]
    assert [window["moved"] for window in told] == [0.0, 1.0]
    assert not any(math.isnan(window["moved"]) for window in told)
