"""Which mistake is behind a loop that raises under a guard."""

import pytest
import torch

import trimtab
from trimtab.errors import UsageError
from trimtab.proof.cases import Case
from trimtab.proof.explaining import mistake_of_error
from trimtab.proof.mistakes import Mistake

FAULTY = Case(guard="on", processes=1, fault="finite spike", place="last")


def test_a_kit_that_misses_its_accumulate_tells_of_a_backward_that_was_left_out():
    # given
    model = torch.nn.Linear(2, 1)
    kit = trimtab.LossKit(model)
    kit.build_loss_guard(trimtab.GuardConfig(multiplier=10.0, min_history=3))
    kit.guard_loss(model(torch.ones(1, 2)).sum())
    # when
    with pytest.raises(UsageError) as error:
        kit.guard_loss(model(torch.ones(1, 2)).sum())
    # then
    assert mistake_of_error(FAULTY, error.value) is Mistake.last_backward_left_out


def test_an_error_of_somebody_elses_names_no_mistake():
    assert mistake_of_error(FAULTY, ValueError("the rows are gone")) is None
