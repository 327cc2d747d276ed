"""Tensors on their way to the host reach every field of the log as if they had been numbers.

There is no CUDA device here, so the copy of `InFlight` is made on the CPU and its event is a stand-in that counts; what
is tested is all that lies behind the copy: numpy, the writer's gathering, and the reader.
"""

import math

import numpy as np
import pytest
import torch

import trimtab
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.torch.transfer import InFlight, has_side_stream, to_host
from trimtab.values import MicroBatch, RunHeader, StepRow


class CountingEvent:
    def __init__(self):
        self.num_waits = 0

    def synchronize(self):
        self.num_waits += 1


@pytest.fixture
def in_flight():
    def make(value, dtype):
        copy = object.__new__(InFlight)
        copy._host = torch.tensor(value, dtype=dtype)
        copy._event = CountingEvent()
        copy.shape = copy._host.shape
        copy.nbytes = copy._host.nbytes
        return copy

    return make


def test_a_copy_is_waited_for_only_when_its_value_is_asked(in_flight):
    copy = in_flight(2.5, torch.float32)

    assert copy._event.num_waits == 0
    assert float(copy) == 2.5
    assert np.asarray(copy).tolist() == 2.5
    assert copy._event.num_waits == 2


def test_every_field_of_a_step_and_a_micro_batch_may_still_be_in_flight(tmp_path, in_flight):
    # given
    folder = create_run(tmp_path, RunHeader(run_id="r", backend="torch", created=1.0))
    recorder = Recorder(folder)
    # when
    recorder.put(
        MicroBatch(
            1,
            0,
            in_flight([7, 8], torch.int64),
            in_flight([1.5, math.nan], torch.float32),
            in_flight([3, 4], torch.int64),
        )
    )
    for step, clipped in ((1, True), (2, False)):
        recorder.put(
            StepRow(
                step,
                in_flight(2.5, torch.float32),
                in_flight(4.0, torch.float32),
                in_flight(0.125, torch.float64),
                clipped=in_flight(clipped, torch.bool),
                num_tokens=in_flight(7, torch.int64),
            )
        )
    recorder.close()
    # then
    log = trimtab.open_log(folder.path)
    columns = log.step_columns()
    assert columns.loss.tolist() == [2.5, 2.5]
    assert columns.grad_norm.tolist() == [4.0, 4.0]
    assert columns.lr.tolist() == [0.125, 0.125]
    assert columns.clipped.tolist() == [1, 0]
    assert columns.num_tokens.tolist() == [7, 7]
    rows = log.rows().numpy()
    assert rows["row"].tolist() == [7, 8]
    assert rows["num_tokens"].tolist() == [3, 4]
    assert math.isnan(rows["loss_sum"][1])


def test_only_what_is_on_cuda_comes_to_the_host_without_anybody_waiting():
    found = {kind: has_side_stream(torch.device(kind)) for kind in ("cuda", "cpu", "mps", "xpu", "meta")}

    assert [kind for kind, has_one in found.items() if has_one] == ["cuda"]


def test_a_tensor_on_the_cpu_is_handed_over_as_it_is():
    tensor = torch.ones(2, requires_grad=True)

    assert to_host(tensor).data_ptr() == tensor.data_ptr()
    assert not to_host(tensor).requires_grad
