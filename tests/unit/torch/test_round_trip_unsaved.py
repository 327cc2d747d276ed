"""What a round trip says of what no state holds and later steps go by: ties, frozen weights, functions."""

import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trimtab.checkpoint import Checkpointer, round_trip
from trimtab.torch.unsaved_differences import model_differences

RATE = 0.5


pytestmark = pytest.mark.usefixtures("young_heap")


def build():
    model = nn.Sequential()
    model.add_module("first", nn.Linear(2, 2))
    model.add_module("head", nn.Linear(2, 1))
    groups = [{"params": model.first.parameters()}, {"params": model.head.parameters(), "lr": 0.25}]
    optimizer = torch.optim.SGD(groups, lr=RATE, momentum=0.9)
    return model, optimizer, lr_scheduler.StepLR(optimizer, 10)


class Training:
    def __init__(self, folder, *, make=build, num_steps=2):
        torch.manual_seed(0)
        self.model, self.optimizer, self.scheduler = make()
        for _ in range(num_steps):
            self.model(torch.ones(4, 2)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
        self.checkpoints = Checkpointer(folder, run_id="a")
        self.saved = self.checkpoints.save(num_steps, **self.parts)

    @property
    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def go_round(self, *, build, checkpoint=None):
        return round_trip(checkpoint or self.saved, build=build, **self.parts)


def tied():
    model, optimizer, _ = untied()
    model[1].weight = model[0].weight
    return model, optimizer, None


def untied():
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    return model, torch.optim.SGD([model[0].weight], lr=RATE), None


@pytest.mark.parametrize(
    ("live", "built", "said"),
    [
        (tied, untied, "0.weight and 1.weight are one weight in the training, and not in what was built"),
        (untied, tied, "0.weight and 1.weight are one weight in what was built, and not in the training"),
    ],
    ids=["in the training alone", "in what was built alone"],
)
def test_weights_that_are_tied_on_one_side_alone_are_told(tmp_path, live, built, said):
    training = Training(tmp_path, make=live, num_steps=0)
    with torch.no_grad():
        training.model[1].weight.copy_(training.model[0].weight)  # equal values, and other steps behind them
    saved = training.checkpoints.save(0, **training.parts)
    assert said in training.go_round(build=built, checkpoint=saved).differences
    assert training.go_round(build=live, checkpoint=saved).same


def test_weights_that_are_tied_are_told_once(tmp_path):
    training = Training(tmp_path, make=tied, num_steps=0)
    with torch.no_grad():
        training.model[1].weight.fill_(7.0)
    [difference] = training.go_round(build=tied).differences
    assert difference.startswith("0.weight differs in 4 of 4 entries")


def three_layers(*, tie):
    model = nn.ModuleList(nn.Linear(2, 2, bias=False) for _ in range(3))
    for layer in model[1 : 1 + tie]:
        layer.weight = model[0].weight
    return model


def test_of_three_weights_those_that_are_one_on_both_sides_are_not_told():
    found = list(model_differences(three_layers(tie=1), three_layers(tie=2)))
    assert found == ["0.weight, 1.weight and 2.weight are one weight in what was built, and not in the training"]


def frozen(*names):
    def build_frozen():
        model, optimizer, scheduler = build()
        for name in names:
            model.get_parameter(name).requires_grad_(False)
        return model, optimizer, scheduler

    return build_frozen


@pytest.mark.parametrize(
    ("live", "built", "said"),
    [
        (["head.weight"], [], "head.weight is frozen in the training, and not in what was built"),
        (
            [],
            ["head.weight", "head.bias"],
            "head.weight and head.bias are frozen in what was built, and not in the tra",
        ),
    ],
    ids=["in the training alone", "in what was built alone"],
)
def test_weights_that_are_frozen_on_one_side_alone_are_told(tmp_path, live, built, said):
    training = Training(tmp_path, make=frozen(*live))
    [difference] = training.go_round(build=frozen(*built)).differences
    assert difference.startswith(said)
    assert training.go_round(build=frozen(*live)).same


def with_unsaved_buffer(value):
    def build_with_buffer():
        model, optimizer, scheduler = build()
        model.register_buffer("scale", torch.as_tensor(value), persistent=False)
        return model, optimizer, scheduler

    return build_with_buffer


def test_a_buffer_that_is_not_saved_is_compared_where_both_models_have_it(tmp_path):
    training = Training(tmp_path, make=with_unsaved_buffer([1.0, 2.0]))
    [difference] = training.go_round(build=with_unsaved_buffer([1.0, 2.5])).differences
    assert difference.startswith(
        "scale differs in 1 of 2 entries by up to 0.5: at [1] it is 2.0 in the training and 2.5"
    )
    assert difference.endswith(" (a buffer that is not saved)")
    assert training.go_round(build=with_unsaved_buffer([1.0, 2.0])).same


@pytest.mark.parametrize("built", [build, with_unsaved_buffer([1.0])], ids=["not there", "grown as it is needed"])
def test_a_buffer_that_is_not_saved_and_that_not_both_models_have_alike_is_nothing_to_compare(tmp_path, built):
    training = Training(tmp_path, make=with_unsaved_buffer([1.0, 2.0]))
    assert training.go_round(build=built).same


def scheduled_by(*functions, kind=lr_scheduler.LambdaLR):
    def build_scheduled():
        model, optimizer, _ = build()
        return model, optimizer, kind(optimizer, list(functions) if len(functions) > 1 else functions[0])

    return build_scheduled


class Decay:
    """A state holds its attributes, and not its code. It counts its calls."""

    num_called = 0

    def __init__(self, power):
        self.power = power

    def __call__(self, step):
        self.num_called += 1
        return (1 + step) ** self.power


class OtherDecay(Decay):
    def __call__(self, step):
        return 1.0


def one_over(step):
    return 1 / (1 + step)


def cut_short(step):
    return [1.0, 0.5, 0.25, 0.125][step]


FUNCTIONS = {
    "another function": (one_over, lambda step: 77.0, "gives 0.25 after 3 steps in the training and 77.0 in what was"),
    "from far ahead on": (
        lambda step: 1.0,
        lambda step: 1.0 if step < 2_000 else 0.5,
        "gives 1.0 after 2",
    ),
    "one that ends": (
        lambda step: 0.5**step,
        cut_short,
        "gives 0.0625 after 4 steps in the training and IndexError in",
    ),
    "the code of an object": (
        Decay(-1),
        OtherDecay(-1),
        "gives 0.25 after 3 steps in the training and 1.0 in what was",
    ),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_a_scheduler_with_another_function_is_told_with_the_first_step_that_has_another_rate(tmp_path, what):
    live, built, said = FUNCTIONS[what]
    training = Training(tmp_path, make=scheduled_by(live))
    [difference] = training.go_round(build=scheduled_by(built)).differences
    assert difference.startswith(f"the function of the LambdaLR for parameter group 0 {said}")


def test_the_function_of_each_group_is_compared(tmp_path):
    training = Training(tmp_path, make=scheduled_by(one_over, one_over))
    [difference] = training.go_round(build=scheduled_by(one_over, lambda step: 1.0)).differences
    assert "for parameter group 1 gives 0.25 after 3 steps" in difference


def in_sequence(function):
    def chained(optimizer, _):
        first = lr_scheduler.LinearLR(optimizer, 0.5, total_iters=4)
        return lr_scheduler.SequentialLR(optimizer, [first, lr_scheduler.LambdaLR(optimizer, function)], [4])

    return scheduled_by(function, kind=chained)


def test_a_function_inside_a_sequence_is_compared_and_one_of_multiplicative_rates(tmp_path):
    for make in (in_sequence, lambda function: scheduled_by(function, kind=lr_scheduler.MultiplicativeLR)):
        training = Training(tmp_path, make=make(one_over))
        [difference] = training.go_round(build=make(lambda step: 0.9)).differences
        assert "for parameter group 0 gives" in difference
        assert training.go_round(build=make(one_over)).same


SAME_FUNCTIONS = {
    "one function": lambda: one_over,
    "a table that ends": lambda: cut_short,
    "an object of its own": lambda: Decay(-0.5),
    "nan after a while": lambda: lambda step: 1.0 if step < 9 else math.nan,
}


@pytest.mark.parametrize("what", SAME_FUNCTIONS)
def test_functions_that_give_the_same_are_the_same_wherever_they_come_from(tmp_path, what):
    make = SAME_FUNCTIONS[what]
    training = Training(tmp_path, make=lambda: scheduled_by(make())())
    before = vars(training.scheduler.lr_lambdas[0]).copy()
    assert training.go_round(build=lambda: scheduled_by(make())()).same
    assert vars(training.scheduler.lr_lambdas[0]) == before
