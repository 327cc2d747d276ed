"""Which loss of NaN is one that the run had, and which stands for none."""

import math

import pytest
import torch

from trimtab.rules.health import HealthRules
from trimtab.values import StepRow
from trimtab.watching.as_observed import observed_step


@pytest.mark.parametrize(
    ("loss", "kinds"),
    [(torch.tensor(math.nan), ["nonfinite"]), (math.nan, []), (None, []), (math.inf, ["nonfinite"])],
    ids=["measured", "told_as_none", "none", "infinite"],
)
def test_a_loss_of_nan_that_was_measured_is_found_without_a_norm(loss: object, kinds: list[str]) -> None:
    observed = observed_step(StepRow(1, loss, None, 1e-3))

    assert observed is not None
    assert [finding.kind for finding in HealthRules().step(observed)] == kinds
