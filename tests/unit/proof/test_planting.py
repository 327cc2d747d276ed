"""What is planted in a model's output, and what stays as it was."""

from dataclasses import dataclass
from typing import NamedTuple

import pytest
import torch

from trimtab.proof.faults import FAULTS, micros_at
from trimtab.proof.planting import mapped, spoiled


def dice():
    return torch.Generator().manual_seed(0)


def test_places_are_the_first_the_middle_the_last_two_and_all():
    assert [micros_at(place, num_micros=4) for place in ("first", "middle", "last", "two", "all")] == [
        (0,),
        (2,),
        (3,),
        (0, 3),
        (0, 1, 2, 3),
    ]


def test_a_finite_spike_is_far_above_what_was_there_and_grows_with_its_size():
    x = torch.linspace(-3.0, 3.0, 10)
    once = spoiled(x, FAULTS["finite spike"], size=1.0, dice=dice())
    tenfold = spoiled(x, FAULTS["finite spike"], size=10.0, dice=dice())
    assert once.isfinite().all()
    assert (once - x).min() >= 1500.0 - 1e-3  # half a noise of 1,000 times the largest, 3
    torch.testing.assert_close(tenfold - x, 10.0 * (once - x))


@pytest.mark.parametrize("size", [0.01, 500.0])
def test_a_scalar_loss_of_any_size_becomes_a_spike_above_ten_times_itself(size):
    loss = torch.tensor(size)
    assert spoiled(loss, FAULTS["finite spike"], size=1.0, dice=dice()) > 10.0 * max(size, 40.0)


def test_a_size_below_zero_points_the_other_way():
    x = torch.ones(3)
    assert spoiled(x, FAULTS["finite spike"], size=-1.0, dice=dice()).max() < -499.0
    assert spoiled(x, FAULTS["Inf"], size=-1.0, dice=dice()).isneginf().all()


def test_nan_and_inf_are_what_they_are_called():
    x = torch.ones(3)
    assert spoiled(x, FAULTS["NaN"], size=1.0, dice=dice()).isnan().all()
    assert spoiled(x, FAULTS["Inf"], size=1.0, dice=dice()).isposinf().all()


def test_an_inf_derivative_has_a_finite_value_and_no_finite_gradient():
    x = torch.ones(3, requires_grad=True)
    value = spoiled(x, FAULTS["inf derivative"], size=1.0, dice=dice()).sum()
    value.backward()
    assert value.isfinite()
    assert not x.grad.isfinite().any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_a_fault_keeps_the_dtype(dtype):
    for fault in FAULTS.values():
        assert spoiled(torch.zeros(2, dtype=dtype), fault, size=1.0, dice=dice()).dtype == dtype


class Pair(NamedTuple):
    a: object
    b: object


@dataclass
class Record:
    loss: object
    step: int


def test_every_tensor_of_an_output_is_found_by_its_place():
    output = {
        "loss": torch.zeros(()),
        "more": [torch.ones(1), Pair(torch.ones(2), None)],
        "record": Record(torch.ones(3), 4),
    }
    names = []

    def change(name, tensor):
        names.append(name)
        return tensor + 1

    changed = mapped(output, change)
    assert names == ["output['loss']", "output['more'][0]", "output['more'][1][0]", "output['record'].loss"]
    assert changed["loss"] == 1
    assert isinstance(changed["more"][1], Pair)
    assert changed["record"] == Record(changed["record"].loss, 4)


def test_an_output_of_transformers_stays_one():
    from transformers.modeling_outputs import CausalLMOutput

    output = mapped(CausalLMOutput(loss=torch.zeros(()), logits=torch.zeros(2)), lambda name, tensor: tensor + 1)
    assert isinstance(output, CausalLMOutput)
    assert output.loss == output["loss"] == 1
    assert output[1].tolist() == [1, 1]
