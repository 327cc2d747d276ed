"""Running statistics after a skip, against a model that never saw the skipped batch."""

import copy
import io
import logging
import math

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trimtab.errors import UsageError
from trimtab.torch.statistics import RunningStatistics

DECIDERS = pytest.mark.parametrize("decide", ["host", "device"])


def says(counts: bool, decide: str) -> bool | torch.Tensor:
    return counts if decide == "host" else torch.tensor(counts)


def net(*, momentum: float | None = None) -> nn.Sequential:
    """Without a momentum the average is a cumulative one, in which the count of batches weighs."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 3, 1),
        nn.BatchNorm1d(3),
        nn.BatchNorm1d(3, momentum=momentum),
        nn.InstanceNorm1d(3, track_running_stats=True),
        nn.BatchNorm1d(3, track_running_stats=False),
    )


def batch(index: int) -> torch.Tensor:
    return torch.randn(4, 2, 5, generator=torch.Generator().manual_seed(index)) + index


def buffers(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> bool:
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def after(indices: list[int]) -> dict[str, torch.Tensor]:
    """The oracle: a model of its own that is shown these batches and no others."""
    model = net()
    for index in indices:
        model(batch(index))
    return buffers(model)


@DECIDERS
@pytest.mark.parametrize("skipped", [{0}, {1}, {2}, {0, 1, 2}, set()])
@pytest.mark.parametrize("poison", [1e6, math.nan])
def test_statistics_are_those_of_a_model_that_never_saw_the_skipped_batches(decide, skipped, poison):
    # given
    model = net()
    statistics = RunningStatistics(model)
    # when
    for index in range(3):
        loss = model(batch(index) * poison if index in skipped else batch(index)).sum()
        statistics.keep_or_restore(says(index not in skipped, decide))
        loss.backward()  # must not find that anything it needs was changed
    # then
    assert same(buffers(model), after([index for index in range(3) if index not in skipped]))


@DECIDERS
def test_several_forwards_of_a_micro_batch_are_undone_together(decide):
    model = net()
    statistics = RunningStatistics(model)

    loss = model(batch(0)).sum() + model(batch(1)).sum()
    statistics.keep_or_restore(says(False, decide))
    loss.backward()

    assert same(buffers(model), after([]))


@DECIDERS
@pytest.mark.parametrize("use_reentrant", [True, False])
def test_what_checkpointing_takes_in_again_during_backward_is_undone_too(decide, use_reentrant):
    # given
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.body, x, use_reentrant=use_reentrant)

    def trained(indices: list[int], skipped: set[int]) -> Checkpointed:
        model = Checkpointed()
        statistics = RunningStatistics(model)
        for index in indices:
            loss = model(batch(index).requires_grad_()).sum()
            statistics.keep_or_restore(says(index not in skipped, decide))
            loss.backward()
        statistics.settle()
        return model

    # when, then
    for skipped in ({0}, {1}, {2}):
        found = trained([0, 1, 2], skipped)
        assert same(buffers(found), buffers(trained([index for index in range(3) if index not in skipped], set())))
    # and torch itself counts each of the two batches twice
    assert found.body[1].num_batches_tracked.item() == 4


def test_what_is_done_to_the_statistics_after_the_window_stays():
    model = net()
    statistics = RunningStatistics(model)
    model(batch(0))
    statistics.keep_or_restore(False)
    statistics.settle()

    model[1].running_mean.fill_(5.0)
    model(batch(1))
    statistics.keep_or_restore(False)

    assert model[1].running_mean.tolist() == [5.0, 5.0, 5.0]


@DECIDERS
def test_an_evaluation_between_micro_batches_changes_nothing(decide):
    model = net()
    statistics = RunningStatistics(model)
    model(batch(0))
    statistics.keep_or_restore(says(True, decide))

    model.eval()
    model(batch(7))
    model.train()
    model(batch(1))
    statistics.keep_or_restore(says(False, decide))

    assert same(buffers(model), after([0]))


def test_statistics_in_another_dtype_than_before_are_put_back():
    model = net()
    statistics = RunningStatistics(model)
    model(batch(0))
    statistics.keep_or_restore(True)

    model.double()
    expected = buffers(model)
    model(batch(1).double())
    statistics.keep_or_restore(False)

    assert same(buffers(model), expected)


def test_the_modules_are_named():
    assert RunningStatistics(net()).names == ["1", "2", "3"]


def test_a_model_without_buffers_is_not_watched():
    model = nn.Linear(2, 2)

    RunningStatistics(model)

    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_a_removed_watch_leaves_no_hook():
    model = net()

    RunningStatistics(model).remove()

    assert not model._forward_pre_hooks
    assert not model._forward_hooks


def test_a_copy_of_the_model_in_memory_or_in_a_file_is_not_watched():
    model = net()
    statistics = RunningStatistics(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)

    for twin in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        twin(batch(0))
        assert twin[1].num_batches_tracked.item() == 1
    model(batch(1))
    statistics.keep_or_restore(False)

    assert same(buffers(model), after([]))


def test_no_value_of_a_device_is_looked_at():
    """A tensor on meta has none: whatever looks raises."""
    model = net(momentum=0.1).to("meta")  # torch's cumulative average looks itself
    statistics = RunningStatistics(model)

    model(batch(0).to("meta"))
    statistics.keep_or_restore(torch.empty((), dtype=torch.bool, device="meta"))
    statistics.settle()

    assert model[1].running_mean.device.type == "meta"


# What cannot be put back is named.


class Codebook(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(2))
        self.register_buffer("fixed", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.average.mul_(0.9).add_(x.mean(0), alpha=0.1)
        return x + self.fixed


def test_other_buffers_that_the_forward_changes_are_named_once(caplog):
    model = nn.Sequential(nn.Linear(2, 2), Codebook())
    statistics = RunningStatistics(model)

    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            model(torch.ones(1, 2))
            statistics.keep_or_restore(True)

    (record,) = caplog.records
    assert "Buffers that the forward changes: 1.average." in record.getMessage()


def test_buffers_that_an_evaluation_changes_are_not_named(caplog):
    model = nn.Sequential(nn.Linear(2, 2), Codebook()).eval()
    statistics = RunningStatistics(model)

    with caplog.at_level(logging.WARNING):
        model(torch.ones(1, 2))
        statistics.keep_or_restore(True)

    assert not caplog.records


def test_a_healthy_model_is_not_spoken_of(caplog):
    model = net()
    statistics = RunningStatistics(model)

    with caplog.at_level(logging.WARNING):
        for index in range(2):
            model(batch(index))
            statistics.keep_or_restore(index == 0)

    assert not caplog.records


def test_statistics_inside_a_compiled_graph_are_named_once_and_the_graph_is_not_broken(caplog):
    torch._dynamo.reset()
    model = net(momentum=0.1)
    statistics = RunningStatistics(model)
    compiled = torch.compile(lambda x: model(x).sum(), backend="eager", fullgraph=True)

    with caplog.at_level(logging.WARNING):
        for index in range(3):
            compiled(batch(index))
            statistics.keep_or_restore(False)

    (record,) = [record for record in caplog.records if record.name == "trimtab.guard"]
    assert "Running statistics that the guard cannot put back: 1, 2, 3." in record.getMessage()


def test_statistics_in_a_step_that_is_compiled_as_a_whole_are_named_at_its_end(caplog):
    torch._dynamo.reset()
    model = net(momentum=0.1)
    statistics = RunningStatistics(model)
    compiled = torch.compile(lambda x: model(x).sum(), backend="aot_eager", fullgraph=True)

    with caplog.at_level(logging.WARNING):
        for index in range(3):
            compiled(batch(index))
            statistics.settle()

    (record,) = [record for record in caplog.records if record.name == "trimtab.guard"]
    assert "Running statistics that the guard cannot put back: 1, 2, 3." in record.getMessage()


def test_statistics_that_somebody_else_loads_between_steps_are_not_spoken_of(caplog):
    model = net()
    statistics = RunningStatistics(model)

    with caplog.at_level(logging.WARNING):
        for index in range(2):
            model.load_state_dict(net().state_dict())
            model(batch(index))
            statistics.keep_or_restore(True)
            statistics.settle()

    assert not caplog.records


@DECIDERS
def test_statistics_of_a_model_whose_parts_are_compiled_are_put_back(decide):
    torch._dynamo.reset()
    model, oracle = net(momentum=0.1), net(momentum=0.1)
    for part in (*model, *oracle):
        part.compile(backend="eager")
    statistics = RunningStatistics(model)
    for index in range(2):
        model(batch(index))
        statistics.keep_or_restore(says(index == 0, decide))
    oracle(batch(0))

    assert same(buffers(model), buffers(oracle))


# Forwards that are no micro-batch's.


@DECIDERS
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_forward_without_gradients_between_two_micro_batches_stays(decide, mode):
    model = net()
    statistics = RunningStatistics(model)
    model(batch(0))
    statistics.keep_or_restore(says(True, decide))
    statistics.settle()

    with mode():
        model(batch(1))
    model(batch(2) * math.nan)
    statistics.keep_or_restore(says(False, decide))
    statistics.settle()

    assert same(buffers(model), after([0, 1]))


@DECIDERS
def test_a_forward_before_the_end_of_a_window_is_none_of_the_next_one(decide):
    model = net()
    statistics = RunningStatistics(model)
    model(batch(0))  # of nobody, and with gradients
    statistics.settle()

    model(batch(1) * math.nan)
    statistics.keep_or_restore(says(False, decide))
    statistics.settle()

    assert same(buffers(model), after([0]))


@DECIDERS
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_model_that_is_checkpointed_as_a_whole_runs_without_gradients_and_is_put_back(decide):
    model = net()
    statistics = RunningStatistics(model)
    for index in range(2):
        x = batch(index).requires_grad_()
        checkpoint(model, x, use_reentrant=True)
        statistics.keep_or_restore(says(index == 0, decide))
    statistics.settle()

    assert same(buffers(model), after([0]))


def test_lazy_statistics_that_have_no_shape_yet_are_refused():
    with pytest.raises(UsageError, match="run one forward first"):
        RunningStatistics(nn.Sequential(nn.LazyBatchNorm1d()))
