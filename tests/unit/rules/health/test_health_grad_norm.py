"""Gradient norms: which jump is a warning, which norms are none, and how often clipping acts."""

import math

import pytest

from trimtab.rules.health import ObservedStep


def test_the_104b_run_is_warned_of_one_step_before_its_loss_jumps(fed, curve_steps):
    # given the norms 12,952 and 262,623 at a loss of 3.11, and the loss 7.71 one step later
    steps = list(curve_steps("tr8_104B_spike_11448"))

    fed.steps(steps[:2])

    assert fed.said == [("grad_norm_jump", "warning", 11447)]
    (finding,) = fed.found
    assert "262,6" in finding.text.replace("2.626e+05", "262,6")
    assert finding.figures["ratio"] == pytest.approx(262623.331 / 12952.562)
    assert finding.figures["loss"] == pytest.approx(3.114286)
    # and once only
    assert fed.steps(steps[2:]).said == [("grad_norm_jump", "warning", 11447)]


def test_the_176b_run_is_warned_of_two_steps_before_its_loss_jumps(fed, curve_steps):
    assert fed.steps(curve_steps("bloom176b_spike_31219")).said == [("grad_norm_jump", "warning", 31217)]


def test_a_healthy_run_of_19560_steps_has_four_notices_and_no_warning(fed, curve_steps):
    fed.steps(curve_steps("llmc_gpt2_124M"))

    assert fed.said == [("grad_norm_jump", "notice", step) for step in (4233, 7435, 9025, 9954)]
    assert max(finding.figures["ratio"] for finding in fed.found) < 7.5
    assert fed.rules.standing() == ()


def test_a_notice_that_becomes_a_warning_is_said_again(fed):
    fed.series(grad_norm=[1.0] * 30 + [4.0, 5.0, 11.0, 12.0])

    assert [said[1:] for said in fed.said] == [("notice", 31), ("warning", 33)]
    assert [finding.step for finding in fed.rules.standing()] == [34], "as it was seen last"


def test_a_jump_is_over_after_twenty_quiet_norms(fed):
    fed.series(grad_norm=[1.0] * 30 + [20.0] + [1.0] * 19)
    assert fed.rules.standing() != ()

    fed.series(first=51, grad_norm=[1.0, 20.0])

    assert [said[2] for said in fed.said] == [31, 52]


def test_a_new_level_becomes_the_usual_one(fed):
    fed.series(grad_norm=[1.0] * 100 + [20.0] * 100)

    assert [said[2] for said in fed.said] == [101]
    assert fed.rules.standing() == ()


@pytest.mark.parametrize("norm", [math.nan, math.inf], ids=["nan", "inf"])
def test_a_norm_that_is_not_finite_is_counted_apart_and_enters_nothing(fed, norm):
    fed.series(grad_norm=[1.0] * 30 + [norm] * 5 + [1.0] * 5, clipped=[False] * 40)

    assert {finding.kind for finding in fed.found} == {"nonfinite"}
    assert fed.rules.figures()["num_nonfinite_norms"] == 5
    assert fed.rules.figures()["clip_fraction"] == 0.0


def test_a_norm_that_repeats_over_skipped_steps_is_missing_and_said_once(fed):
    # given a host that shows the norm of the step before while its scaler skips
    fed.series(
        grad_norm=[1.0 + step / 1000 for step in range(30)] + [1.029] * 3 + [1.5, 1.5],
        reason=["stepped"] * 30 + ["scaler_overflow"] * 3 + ["stepped", "scaler_overflow"],
    )

    assert fed.said == [("grad_norm_stale", "notice", 31)]
    assert fed.rules.figures()["num_stale_norms"] == 4


def test_stale_norms_enter_no_baseline(fed):
    # given three norms near 1, then a high one that is shown over many skipped steps
    fed.series(
        grad_norm=[1.0, 1.1, 0.9, 1.9] + [1.9] * 50 + [12.0],
        reason=["stepped"] * 4 + ["scaler_overflow"] * 50 + ["stepped"],
    )

    # then the next one is compared with the four: 12.0 is 11.4 times their median of 1.05, and 6.3 times 1.9
    assert ("grad_norm_jump", "warning", 55) in fed.said


def test_norms_of_a_young_run_that_double_are_no_news(fed):
    # given a run whose norms have not found their size, and twice theirs after four and after six
    fed.series(grad_norm=[1.0, 1.4, 0.8, 1.2, 3.0, 1.1, 4.0, *[1.0] * 12, 5.0])
    assert fed.found == []

    # when twenty lie behind, or one is ten times its usual
    fed.series(first=21, grad_norm=[6.0])
    assert fed.said == [("grad_norm_jump", "notice", 21)]


@pytest.mark.parametrize("reason", ["all_skipped", "no_tokens"])
def test_a_step_without_a_gradient_has_no_norm(fed, reason):
    fed.series(grad_norm=[1.0] * 30 + [0.0, 0.0, 500.0, math.nan], reason=["stepped"] * 30 + [reason] * 4)

    assert fed.found == []
    assert fed.rules.figures()["num_nonfinite_norms"] == 0


def test_the_norm_of_a_dropped_step_is_judged_and_stays_out_of_the_baseline(fed):
    fed.series(
        grad_norm=[1.0] * 30 + [50.0 + step / 100 for step in range(150)],
        reason=["stepped"] * 30 + ["dropped"] * 150,
    )

    # however many there are, they are far from the usual 1.0
    assert fed.said == [("grad_norm_jump", "warning", 31)]
    assert [finding.kind for finding in fed.rules.standing()] == ["grad_norm_jump"]


def test_the_clip_fraction_is_a_share_of_the_steps_that_were_taken(fed):
    fed.series(
        grad_norm=[0.5, 2.0, 2.5, math.nan, 3.0, None, math.inf],
        clipped=[False, True, True, True, True, True, True],
        reason=["stepped", "stepped", "stepped", "nonfinite_norm", "dropped", "stepped", "stepped"],
    )

    assert fed.rules.figures()["clip_fraction"] == 3 / 4


def test_a_run_that_clips_every_step_from_the_start_is_not_warned_of(fed):
    assert fed.series(clipped=[True] * 3000).found == []
    assert fed.rules.figures()["clip_fraction"] == 1.0


def test_a_share_that_falls_is_not_warned_of(fed):
    assert fed.series(clipped=[True] * 1500 + [False] * 1500).found == []


def test_a_share_that_clearly_rises_is_warned_of_once_and_is_over_when_it_is_usual(fed):
    fed.series(clipped=[False] * 2000 + [True] * 1500)

    # 100 of 200 are half
    assert fed.said == [("clip_fraction", "warning", 2100)]
    assert fed.found[0].figures["recent"] == 0.5
    assert fed.rules.standing() == ()
    assert "50%" in fed.found[0].text


def test_a_share_that_moves_between_a_third_and_a_half_is_not_warned_of(fed):
    fed.series(clipped=[step % 3 == 0 for step in range(1500)] + [step % 2 == 0 for step in range(1500)])

    assert fed.found == []


def test_no_text_advises_a_larger_clip(fed):
    fed.series(clipped=[False] * 2000 + [True] * 300, grad_norm=[1.0] * 2000 + [50.0] * 300)

    texts = " ".join(finding.text for finding in fed.found)
    assert texts
    assert not any(word in texts for word in ("raise", "larger", "increase"))


def test_steps_may_be_as_bare_as_a_log_has_them(fed):
    assert fed.steps(ObservedStep(step=step) for step in range(1, 50)).found == []
