"""What an outcome says of the facts of a step."""

import pytest
import torch

from trimtab.torch.outcome import StepOutcome
from trimtab.torch.transfer import to_host_together
from trimtab.values import STEP_REASONS

FACTS = dict(loss=2.5, num_tokens=40, grad_norm=0.5, lr=0.1, num_skipped_micros=1, num_skipped_tokens=8)


@pytest.mark.parametrize("kind", [int, torch.tensor], ids=["host", "device"])
def test_the_fields_are_the_facts_and_are_numbers(kind):
    facts = {"reason": kind(0), **{name: torch.tensor(value) for name, value in FACTS.items()}}
    outcome = StepOutcome(to_host_together(facts))
    assert (outcome.reason, outcome.stepped) == ("stepped", True)
    for name, value in FACTS.items():
        found = getattr(outcome, name)
        assert type(found) is type(value), name
        assert found == pytest.approx(value), name


@pytest.mark.parametrize("reason", STEP_REASONS)
def test_a_norm_is_told_but_of_a_step_without_gradients(reason):
    outcome = StepOutcome({**FACTS, "reason": STEP_REASONS.index(reason)})
    assert outcome.stepped == (reason == "stepped")
    assert outcome.grad_norm == (None if reason in ("all_skipped", "no_tokens") else 0.5)


def test_a_norm_that_nobody_measured_is_none():
    assert StepOutcome({**FACTS, "reason": 0, "grad_norm": None}).grad_norm is None
