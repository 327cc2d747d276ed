"""Whether losses go on over a resume: hand-made cases, and published curves cut anywhere."""

import csv
import json
import math
import random
from pathlib import Path

import pytest

from trimtab.resume.around import Around, Seen
from trimtab.resume.before import Before
from trimtab.resume.breaks import NUM_JUDGED, NUM_REMEMBERED, SeenStep
from trimtab.resume.losses import judge, judge_losses

CURVES = Path(__file__).parents[2] / "data" / "curves"


def steps(losses, *, first=101):
    return [SeenStep(first + place, loss) for place, loss in enumerate(losses)]


def noisy(level, spread, num, seed=0):
    source = random.Random(seed)
    return [level + source.uniform(-spread, spread) for _ in range(num)]


def kinds(found):
    return [(entry.kind, entry.severity) for entry in found]


def test_a_model_that_was_not_restored_is_told_by_its_first_loss() -> None:
    found = judge_losses([*noisy(0.9, 0.05, 31), 0.9], steps([2.8, 2.6, 2.5, 2.5, 2.4, 2.3, 2.2, 2.2]))
    assert kinds(found) == [("loss_rose", "critical")]
    assert found[0].text == (
        "first resumed loss 3.1x the checkpoint's (2.8, and 0.9 before): weights probably not restored"
    )
    assert (found[0].step, found[0].found, found[0].expected) == (101, 2.8, 0.9)


@pytest.mark.parametrize("num_before", [1, 7, 8, 32])
@pytest.mark.parametrize("num_resumed", [1, 3, 8])
def test_it_is_told_by_however_few_losses(num_before: int, num_resumed: int) -> None:
    found = judge_losses([0.9] * num_before, steps([2.8] * num_resumed))
    assert kinds(found) == [("loss_rose", "critical")]


def test_a_rise_that_is_no_doubling_is_a_warning() -> None:
    found = judge_losses(noisy(2.0, 0.05, 32), steps(noisy(2.7, 0.05, 8)))
    assert kinds(found) == [("loss_rose", "warning")]


def test_one_spike_among_the_first_steps_is_no_resume_that_failed() -> None:
    assert judge_losses(noisy(0.9, 0.05, 32), steps([2.8, *noisy(0.9, 0.05, 7)])) == []
    assert judge_losses(noisy(0.9, 0.05, 32), steps([*noisy(0.9, 0.05, 7), 9.0])) == []


def test_a_model_that_was_right_at_first_was_restored_whatever_became_of_it() -> None:
    assert judge_losses(noisy(0.9, 0.05, 32), steps([0.9, *noisy(2.8, 0.05, 7)])) == []


def test_rows_that_were_seen_already_are_told_by_a_drop() -> None:
    found = judge_losses(noisy(0.20, 0.015, 32), steps(noisy(0.16, 0.015, 8)))
    assert kinds(found) == [("loss_dropped", "warning")]
    assert found[0].text.startswith("the loss dropped from 0.2")
    assert found[0].text.endswith("with the resume: rows already seen")


def test_a_loss_that_was_falling_goes_on_falling() -> None:
    falling = [4 * 0.98**step for step in range(NUM_REMEMBERED + NUM_JUDGED)]
    assert judge_losses(falling[:NUM_REMEMBERED], steps(falling[NUM_REMEMBERED:])) == []


def test_a_drop_where_an_epoch_begins_is_none() -> None:
    before, after = noisy(0.20, 0.01, 32), steps(noisy(0.15, 0.01, 8))
    assert kinds(judge_losses(before, after)) == [("loss_dropped", "warning")]
    assert judge_losses(before, after, begins_epoch=True) == []


def test_a_drop_within_the_noise_is_none() -> None:
    assert judge_losses(noisy(0.20, 0.08, 32, seed=1), steps(noisy(0.16, 0.08, 8, seed=2))) == []


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_first_loss_that_is_not_finite_is_critical(value: float) -> None:
    assert kinds(judge_losses([0.9] * 9, steps([value, 0.9]))) == [("loss_nonfinite", "critical")]
    assert judge_losses([], steps([value])) == []
    assert judge_losses([math.nan] * 9, steps([value])) == []


def test_a_guard_that_skips_everything_says_the_same() -> None:
    skipped = [SeenStep(101 + place, None, is_skipped=True) for place in range(8)]
    assert kinds(judge_losses([0.9] * 9, skipped)) == [("all_skipped", "critical")]
    assert judge_losses([0.9] * 9, skipped[:3]) == []
    assert judge_losses([0.9] * 9, [*skipped[:7], SeenStep(108, 0.9)]) == []


def test_what_an_earlier_attempt_recorded_for_the_same_rows_decides_alone() -> None:
    # given losses whose rows differ so much that nothing could be told by their level
    before = noisy(2.0, 1.5, 32)
    # then
    assert judge_losses(before, steps([0.31] * 8), recorded=0.31) == []
    assert judge_losses(before, steps([3.4] * 8), recorded=3.39) == []
    assert kinds(judge_losses(before, steps([3.0] * 8), recorded=1.0)) == [("loss_rose", "critical")]
    assert kinds(judge_losses(before, steps([1.2] * 8), recorded=1.0)) == [("loss_differs", "warning")]
    assert kinds(judge_losses(before, steps([0.8] * 8), recorded=1.0)) == [("loss_differs", "warning")]


def test_losses_of_any_sign_are_judged() -> None:
    assert judge_losses(noisy(-3.0, 0.1, 32), steps(noisy(-3.0, 0.1, 8, seed=2))) == []
    assert kinds(judge_losses(noisy(-3.0, 0.1, 32), steps(noisy(5.0, 0.1, 8)))) == [("loss_rose", "critical")]


def test_nothing_is_told_of_nothing() -> None:
    assert judge_losses([], []) == judge_losses([0.9], []) == judge_losses([], steps([1.0])) == []
    assert judge_losses([0.9] * 9, steps([None] * 8)) == []


def test_a_break_is_strict_json() -> None:
    [found] = judge_losses([0.9] * 9, steps([math.inf]))
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["found"] == "inf"


def around_of(losses, *, first=1):
    return Around(step=first + len(losses), before=Before(steps=tuple(steps(losses, first=first))))


def test_weights_that_are_gone_are_told_though_the_untrained_loss_is_among_those_before() -> None:
    # given a run that was cut in its first steps, while its loss fell
    before = [3.72, 3.69, 3.64, 3.5, 3.3, 3.1, 2.9, 2.7, 2.55, 2.4, 2.3, 2.2, 2.1, 2.0, 1.93, 1.87, 1.79, 1.72, 1.66]
    # then
    found = judge_losses(before, steps([3.72, 3.69, 3.64, 3.5, 3.3, 3.1, 2.9, 2.7]))
    assert kinds(found) == [("loss_rose", "critical")]
    assert judge_losses(before, steps([1.62, 1.7, 1.6, 1.55, 1.58, 1.5, 1.47, 1.45])) == []


def test_a_loss_that_cannot_tell_restored_weights_from_others_is_not_said_to_go_on() -> None:
    # given a run of 12 steps that has hardly begun to fall
    before = noisy(3.6, 0.1, 12)
    found = judge(around_of(before), Seen(steps=tuple(steps(noisy(3.55, 0.1, 8, seed=2)))))
    assert not found.breaks
    assert "may be that of weights that were not restored: the run's first losses were 3.6" in found.left_out
    # and one that has fallen, or is long past its first steps
    fallen = [4 * 0.9**step for step in range(12)]
    assert judge(around_of(fallen), Seen(steps=tuple(steps([1.1] * 8)))).left_out is None
    assert judge(around_of(before, first=500), Seen(steps=tuple(steps(noisy(3.55, 0.1, 8))))).left_out is None
    # and one that falls still, and has come back to where it was, by less than a rise
    falling = [11 - 0.05 * step for step in range(32)]
    told = judge(around_of(falling, first=500), Seen(steps=tuple(steps([10.8] * 8))))
    assert not told.breaks
    assert "the first of those before, which were falling, were" in told.left_out


@pytest.mark.parametrize("name", ["deepseekv3_proxy_moe", "gpt3_15b", "mixtral8x7b_a100", "nanogpt_fp4_932b"])
def test_an_untrained_model_is_never_said_to_go_on_in_the_first_steps_of_a_published_run(name: str) -> None:
    losses, told = curve(name), 0
    for cut in range(1, 64):
        known = max(0, cut - NUM_REMEMBERED)
        for num in (1, NUM_JUDGED):
            found = judge(around_of(losses[known:cut], first=known + 1), Seen(steps=tuple(steps(losses[:num]))))
            told += bool(found.breaks)
            assert found.breaks or found.left_out is not None, (cut, num)
    assert told > 70


def curve(name: str) -> list[float]:
    with (CURVES / f"{name}.csv").open() as file:
        # What is "nan" in two of them is no loss of a healthy run: those steps are left out.
        return [loss for line in csv.DictReader(file) if math.isfinite(loss := float(line["loss"]))]


CUTS = {  # cuts of each curve that are called broken, of all there are: (rises, drops)
    "qlora_guanaco": (0, 0),
    "nanogpt_valueembed_2358": (0, 0),
    "nanogpt_valueembed_d884": (0, 0),
    "alpaca_7b": (0, 18),  # around the beginnings of its second and third epoch: rows that were seen
    "mixtral8x7b_a100": (0, 0),
    "deepseekv3_proxy_moe": (0, 0),
    "gpt3_15b": (0, 0),
    "llmc_gpt2_124M": (0, 0),
    "nanogpt_fp4_932b": (0, 0),
    "nanogpt_shortcuts_70a0": (0, 0),
    "nanogpt_1B_a": (0, 0),
    "hf_sft_24k_noisy": (0, 0),
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] if place > 3 else []) for place, name in enumerate(CUTS)]
)
def test_published_runs_cut_anywhere_go_on(name: str) -> None:
    losses = curve(name)
    told = {"loss_rose": set(), "loss_dropped": set()}
    for cut in range(1, len(losses) - NUM_JUDGED + 1):
        for found in judge_losses(losses[max(0, cut - NUM_REMEMBERED) : cut], steps(losses[cut : cut + NUM_JUDGED])):
            told[found.kind].add(cut)
    assert (len(told["loss_rose"]), len(told["loss_dropped"])) == CUTS[name]
    if name == "alpaca_7b":  # 1,218 steps are three epochs of 406
        assert all(min(abs(cut - 406), abs(cut - 812)) <= NUM_JUDGED for cut in told["loss_dropped"])


@pytest.mark.parametrize("name", ["qlora_guanaco", "nanogpt_valueembed_2358"])
def test_a_published_run_that_falls_back_to_its_beginning_is_told_anywhere_after_it(name: str) -> None:
    losses = curve(name)
    for cut in range(len(losses) // 2, len(losses) - NUM_JUDGED, 13):
        found = judge_losses(losses[cut - NUM_REMEMBERED : cut], steps(losses[:NUM_JUDGED]))
        assert [entry.kind for entry in found] == ["loss_rose"], cut
