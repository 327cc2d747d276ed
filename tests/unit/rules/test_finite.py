"""The rule `finite`: size does not matter."""

import math

import pytest

from trimtab.rules.finite import FiniteRule


@pytest.mark.parametrize("loss", [0.0, -1.0, 1e38, 1e-46])
def test_every_finite_loss_is_normal(loss: float) -> None:
    rule = FiniteRule()
    rule.absorb(1.0)

    verdict = rule.judge(loss)

    assert (verdict.keep, verdict.reason) == (True, "normal")


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf, 1e39])
def test_what_float32_can_not_hold_is_not_finite(loss: float) -> None:
    verdict = FiniteRule().judge(loss)

    assert (verdict.keep, verdict.reason, verdict.baseline) == (False, "nonfinite", None)


def test_its_state_holds_nothing_but_its_name() -> None:
    rule = FiniteRule()
    rule.absorb(5.0)
    rule.reset()

    rule.load_state_dict(rule.state_dict())

    assert rule.state_dict() == {"version": 1, "rule": "finite"}
