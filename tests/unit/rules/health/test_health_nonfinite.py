"""Losses and norms that are not finite: those that were taken, those that were not, and what is only not known."""

import json
import math

import pytest

from trimtab.rules.health import HealthRules

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("loss", "norm"), [(NAN, NAN), (2.0, NAN), (2.0, INF), (NAN, None), (INF, None)],
    ids=["both", "norm_nan", "norm_inf", "loss_nan", "loss_inf"],
)  # fmt: skip
def test_a_step_that_is_taken_with_what_is_not_finite_is_critical_at_once_and_said_once(fed, loss, norm):
    # given a weight that is NaN from step 100 on, and no guard
    fed.series(
        loss=[2.0] * 100 + [loss] * 20,
        grad_norm=[None if norm is None else 1.0] * 100 + [norm] * 20,
        is_loss_known=[True] * 120,
    )

    [finding] = fed.found
    assert (finding.kind, finding.severity, finding.step) == ("nonfinite", "critical", 101)
    assert (finding.marks_unhealthy, finding.since_step) == (True, 99)
    assert "the step was taken" in finding.text
    assert len(finding.text) < 160
    assert fed.rules.unhealthy_because() != ()
    json.dumps(finding.to_dict(), allow_nan=False)


def test_no_evaluation_of_what_a_broken_step_left_is_a_best_one(fed):
    fed.series(loss=[2.0, NAN], grad_norm=[1.0, NAN], is_loss_known=[True, True]).evaluations([(2, 1.0)])

    assert fed.rules.figures()["evaluations"][""]["best"] is None


def test_a_loss_that_is_none_beside_a_finite_norm_marks_nothing(fed):
    # given a row without a label: the gradient is that of the others
    fed.series(loss=[2.0, 2.0, NAN, 2.0], grad_norm=[1.0, 1.0, 0.9, 1.0], is_loss_known=[True] * 4)

    assert fed.said == [("nonfinite", "warning", 3)]
    assert fed.rules.unhealthy_because() == ()


@pytest.mark.parametrize("loss", [NAN, 2.0], ids=["never", "now_and_then"])
def test_a_log_without_a_loss_is_no_alarm(fed, loss):
    assert fed.series(loss=[2.0, *[NAN] * 9, loss] * 5, grad_norm=[1.0] * 55).found == []


def test_a_loss_of_zero_is_told_by_its_own_kind_alone(fed):
    fed.series(loss=[2.0, 0.0, 0.0], grad_norm=[1.0, NAN, NAN])

    assert [finding.kind for finding in fed.found] == ["zero_loss"]


@pytest.mark.parametrize("reason", ["nonfinite_norm", "dropped", "scaler_overflow"])
def test_a_step_that_was_kept_from_being_taken_is_no_finding(fed, reason):
    fed.series(
        loss=[2.0, NAN, NAN, 2.0] * 10, grad_norm=[1.0, NAN, INF, 1.0] * 10, is_loss_known=[True] * 40,
        reason=["stepped", reason, reason, "stepped"] * 10,
    )  # fmt: skip

    assert fed.found == []


def test_three_in_a_row_that_were_not_taken_are_a_warning_said_once(fed):
    fed.series(loss=[2.0] * 5 + [NAN] * 9, grad_norm=[1.0] * 5 + [NAN] * 9, reason=["stepped"] * 5 + ["dropped"] * 9)

    assert fed.said == [("nonfinite", "warning", 8)]
    assert not fed.found[0].marks_unhealthy
    assert "the run stands still" in fed.found[0].text

    fed.series(first=20, loss=[2.0], grad_norm=[1.0])
    assert fed.rules.standing() == ()


def test_steps_that_a_guard_drops_for_their_size_are_no_finding(fed):
    # given spikes, of which the log holds no loss
    fed.series(
        loss=[2.0] + [NAN] * 9, grad_norm=[1.0] + [50.0 + place for place in range(9)],
        reason=["stepped"] + ["dropped"] * 9, is_loss_known=[True] * 10,
    )  # fmt: skip

    assert "nonfinite" not in {finding.kind for finding in fed.found}


def test_the_search_of_a_scaler_is_no_finding_whether_its_scale_is_known_or_not(fed):
    # given 2^32 that comes down to 2^16
    scales = [2.0**power for power in range(32, 16, -1)]
    overflows = {"loss": [2.0] * 16, "grad_norm": [INF] * 16, "reason": ["scaler_overflow"] * 16}
    fed.series(**overflows).series(first=17, loss=[2.0] * 50, grad_norm=[1.0] * 50)
    assert fed.found == []

    # and a new scaler after a resume
    fed.series(first=67, loss_scale=scales, **overflows)
    assert [finding.kind for finding in fed.found] == []


def test_it_is_over_after_five_steps_with_a_loss_and_a_norm(fed):
    fed.series(loss=[2.0] * 6, grad_norm=[NAN, 1.0, 1.0, 1.0, 1.0, 1.0])

    assert fed.found[0].severity == "critical"
    assert fed.rules.standing() == ()


def test_a_state_goes_on_as_if_nothing_had_been(fed):
    fed.series(loss=[2.0, NAN, NAN], grad_norm=[1.0, NAN, NAN], reason=["stepped", "dropped", "dropped"])
    resumed = HealthRules()
    resumed.load_state_dict(json.loads(json.dumps(fed.rules.state_dict())))

    again = type(fed)(resumed).series(first=4, loss=[NAN], grad_norm=[NAN], reason=["dropped"])

    assert again.said == [("nonfinite", "warning", 4)]
