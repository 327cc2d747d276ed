"""What a device has decided is heard of in order, when it has arrived, and waited for only where that is asked for."""

import numpy as np
import pytest
import torch

from trimtab.torch.late import LateFigures
from trimtab.torch.transfer import HostNumber, InFlight, to_host_together


class Arrival:
    """Stands in for the event of a copy: there is no device here that could be late."""

    def __init__(self):
        self.has_come = False
        self.num_waits = 0

    def query(self):
        return self.has_come

    def synchronize(self):
        self.num_waits += not self.has_come
        self.has_come = True


@pytest.fixture
def on_its_way():
    def make(*values):
        copy = object.__new__(InFlight)
        copy._host = torch.tensor(values, dtype=torch.float64)
        copy._event = Arrival()
        copy.shape, copy.nbytes = copy._host.shape, copy._host.nbytes
        return copy, copy._event

    return make


def test_figures_are_heard_in_order_and_only_when_they_have_arrived(on_its_way):
    # given three copies, of which the second has come
    late, heard = LateFigures(), []
    arrivals = []
    for value in (1.0, 2.0, 3.0):
        copy, arrival = on_its_way(value, value * 10)
        late.add(copy, heard.append)
        arrivals.append(arrival)
    arrivals[1].has_come = True

    # when / then: it does not overtake the first
    late.poll()
    assert heard == []
    arrivals[0].has_come = True
    late.poll()
    assert heard == [[1.0, 10.0], [2.0, 20.0]]
    assert [arrival.num_waits for arrival in arrivals] == [0, 0, 0]


def test_draining_waits_for_what_is_still_on_its_way(on_its_way):
    late, heard = LateFigures(), []
    copy, arrival = on_its_way(4.0)
    late.add(copy, heard.append)

    late.drain()

    assert heard == [[4.0]]
    assert arrival.num_waits == 1
    late.drain()
    assert heard == [[4.0]], "what was heard is not heard again"


def test_what_is_on_the_host_already_is_heard_at_the_next_poll_and_not_before():
    late, heard = LateFigures(), []
    late.add(torch.tensor([5.0, 6.0]), heard.append)
    assert heard == []

    late.poll()

    assert heard == [[5.0, 6.0]]


def test_an_error_about_one_copy_comes_out_and_the_next_call_goes_on_behind_it():
    late, heard = LateFigures(), []

    def refuse(figures):
        raise ValueError(figures)

    late.add(torch.tensor([1.0]), refuse)
    late.add(torch.tensor([2.0]), heard.append)

    with pytest.raises(ValueError, match=r"1\.0"):
        late.poll()
    assert heard == []
    late.poll()
    assert heard == [[2.0]]


def test_a_number_of_a_copy_is_what_the_log_writes_and_waits_when_it_is_asked(on_its_way):
    copy, arrival = on_its_way(3.0, 0.0)
    number, zero = HostNumber(copy, 0), HostNumber(copy, 1)

    assert not number.is_ready()
    assert arrival.num_waits == 0
    assert (float(number), int(number), bool(number), bool(zero)) == (3.0, 3, True, False)
    assert np.array([number], np.float64).tolist() == [3.0]
    assert list(range(4))[number] == 3
    assert number.is_ready()


def test_of_tensors_numbers_are_brought_in_any_dtype_and_what_is_none_stays_as_it_is():
    loss = torch.ones((), requires_grad=True) * 2.0
    norm = torch.full((), 0.5, dtype=torch.bfloat16)

    brought = to_host_together({"loss": loss, "lr": 0.1, "norm": norm, "code": torch.tensor(3), "scale": None})

    assert (brought["lr"], brought["scale"]) == (0.1, None)
    assert (float(brought["loss"]), float(brought["norm"]), int(brought["code"])) == (2.0, 0.5, 3)
