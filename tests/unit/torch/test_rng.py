"""The random numbers after a restore are those that would have come; a state that does not fit changes none of them."""

import io
import random

import numpy as np
import pytest
import torch

from trimtab.errors import CheckpointError
from trimtab.torch.rng import checked_rng, kept_rng, rng_state


def next_numbers():
    """A few of each generator, Gaussians among them: both of a pair that is made at once."""
    return [
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
        torch.rand(3).tolist(),
        torch.randn(3).tolist(),
    ]


def through_a_file(state):
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


@pytest.mark.parametrize("num_drawn", [0, 1, 700])
def test_the_numbers_that_would_have_come_come(num_drawn):
    for _ in range(num_drawn):
        next_numbers()
    state = through_a_file(rng_state())
    expected = [next_numbers() for _ in range(3)]

    checked = checked_rng(state, where="here")
    checked.restore()

    assert [next_numbers() for _ in range(3)] == expected
    assert checked.remarks == ()


def test_taking_and_looking_draw_no_number():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    expected = next_numbers()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)

    checked_rng(rng_state(), where="here")

    assert next_numbers() == expected


def damaged(name, value):
    return rng_state() | {name: value}


@pytest.mark.parametrize(
    "state",
    [
        None,
        [],
        {},
        damaged("python", [3, torch.zeros(5, dtype=torch.int64), None]),
        damaged("python", [99, torch.zeros(625, dtype=torch.int64), None]),
        damaged("numpy", [torch.zeros(5, dtype=torch.int64), 0, 0, 0.0]),
        damaged("numpy", "MT19937"),
        damaged("torch", torch.zeros(10, dtype=torch.uint8)),
        damaged("torch", torch.zeros(5056, dtype=torch.float32)),
        damaged("cuda", [3]),
        damaged("cuda", 7),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_changes_nothing(state):
    before = rng_state()
    with pytest.raises(CheckpointError, match="here: the state of the random number generators"):
        checked_rng(state, where="here")
    assert str(rng_state()) == str(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what is said where no CUDA device is")
def test_states_of_devices_that_are_not_here_are_told():
    state = damaged("cuda", [torch.zeros(16, dtype=torch.uint8)] * 2)
    checked = checked_rng(state, where="here")
    checked.restore()
    assert checked.remarks == (
        "saved with 2 CUDA devices, and 0 are here: the random numbers of the others are not put back",
    )


def test_another_kind_of_numpy_generator_is_told():
    before = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.PCG64(1))
    try:
        state = through_a_file(rng_state())
    finally:
        np.random.set_bit_generator(before)
    checked = checked_rng(state, where="here")
    checked.restore()
    assert "NumPy's global generator was of another kind" in checked.remarks[0]


def test_what_is_drawn_inside_is_as_if_it_had_not_been():
    state = rng_state()

    def fails():
        with kept_rng():
            next_numbers()
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert str(rng_state()) == str(state)
