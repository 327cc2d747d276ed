"""What a round trip says of a checkpoint that is not the training, or cannot be loaded; and what it refuses."""

import logging
import math

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from trimtab import Run, UsageError, open_log
from trimtab.checkpoint import Checkpointer, round_trip
from trimtab.resume.manifest import manifest_checksum

RATE = 0.5


pytestmark = pytest.mark.usefixtures("young_heap")


class Halves(nn.Module):
    """Two layers, a buffer, and a count in its extra state."""

    def __init__(self, width=2):
        super().__init__()
        self.first = nn.Linear(2, width)
        self.head = nn.Linear(width, 1)
        self.register_buffer("num_seen", torch.zeros((), dtype=torch.int64))
        self.called = 0

    def forward(self, inputs):
        self.num_seen += len(inputs)
        self.called += 1
        return self.head(self.first(inputs))

    def get_extra_state(self):
        return {"called": self.called}

    def set_extra_state(self, state):
        self.called = state["called"]


def build(width=2, *, kind=torch.optim.SGD, scheduled=True):
    model = Halves(width)
    options = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(
        [{"params": model.first.parameters()}, {"params": model.head.parameters(), "lr": 0.25}], lr=RATE, **options
    )
    return model, optimizer, lr_scheduler.StepLR(optimizer, 10) if scheduled else None


class Training:
    def __init__(self, folder, *, make=build, num_steps=2):
        torch.manual_seed(0)
        self.model, self.optimizer, self.scheduler = make()
        self.train(num_steps)
        self.checkpoints = Checkpointer(folder, run_id="a")
        self.saved = self.checkpoints.save(num_steps, **self.parts, loss=0.75)

    @property
    def parts(self):
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def train(self, num_steps):
        for _ in range(num_steps):
            self.model(torch.ones(4, 2)).square().mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            if self.scheduler is not None:
                self.scheduler.step()

    def go_round(self, *, build=build, checkpoint=None, **more):
        return round_trip(checkpoint or self.saved, build=build, **self.parts, **more)


@pytest.fixture
def training(tmp_path):
    return Training(tmp_path)


def test_what_was_just_saved_is_the_same(training):
    assert training.go_round(loss=0.75, step=2).same


def test_a_weight_that_differs_is_named_with_where_and_by_how_much(training):
    with torch.no_grad():
        training.model.first.weight.copy_(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    training.checkpoints.save(2, **training.parts)
    with torch.no_grad():
        training.model.first.weight[0, 1] += 0.5
        training.model.first.weight[1, 0] -= 0.25
    result = training.go_round(checkpoint=training.checkpoints.folder / "step_2")
    assert result.differences == (
        "first.weight differs in 2 of 4 entries by up to 0.5: at [0, 1] it is 2.5 in the training and 2.0 as loaded",
    )
    assert (result.same, result.num_differences) == (False, 1)


CHANGES = {
    "buffer": (
        lambda training: training.model.num_seen.add_(1),
        "num_seen is 9 in the training and 8 as loaded",
    ),
    "extra state": (
        lambda training: setattr(training.model, "called", 5),
        "_extra_state[called] is 5 in the training and 2 as loaded",
    ),
    "moment": (
        lambda training: training.optimizer.state[training.model.head.bias]["momentum_buffer"].fill_(math.inf),
        "momentum_buffer of head.bias differs in 1 of 1 entries: at [0] it is inf in the training and ",
    ),
    "lr": (
        lambda training: training.optimizer.param_groups[1].update(lr=0.125),
        "lr of parameter group 1 is 0.125 in the training and 0.25 as loaded",
    ),
    "initial_lr": (
        lambda training: training.optimizer.param_groups[0].update(initial_lr=2.0),
        "initial_lr of parameter group 0 is 2.0 in the training and 0.5 as loaded",
    ),
    "base_lrs": (
        lambda training: training.scheduler.base_lrs.__setitem__(0, 1.0),
        "base_lrs of the scheduler[0] is 1.0 in the training and 0.5 as loaded",
    ),
    "_last_lr": (
        lambda training: setattr(training.scheduler, "_last_lr", [0.5, 0.5]),
        "_last_lr of the scheduler[1] is 0.5 in the training and 0.25 as loaded",
    ),
    "_step_count": (
        lambda training: setattr(training.scheduler, "_step_count", 9),
        "_step_count of the scheduler is 9 in the training and 3 as loaded",
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_whatever_differs_is_named(what, training):
    change, expected = CHANGES[what]
    with torch.no_grad():
        change(training)
    [difference] = training.go_round().differences
    assert difference.startswith(expected)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"loss": 0.75000001}, "the loss is 0.75000001 in the training and 0.75 as loaded"),
        ({"loss": math.nan}, "the loss is nan in the training and 0.75 as loaded"),
        ({"step": 3}, "the step is 3 in the training and 2 as loaded"),
    ],
    ids=["loss", "loss that is nan", "step"],
)
def test_the_loss_and_the_step_are_those_that_were_saved(given, expected, training):
    assert training.go_round(**given).differences == (expected,)


def test_a_loss_that_was_nan_is_the_same(training):
    training.checkpoints.save(2, **training.parts, loss=math.nan)
    assert training.go_round(checkpoint=training.checkpoints.folder / "step_2", loss=math.nan).same


def test_a_loss_that_was_not_saved_is_missed(training):
    training.checkpoints.save(2, **training.parts)
    result = training.go_round(checkpoint=training.checkpoints.folder / "step_2", loss=0.75)
    assert result.differences == ("the loss is 0.75 in the training and None as loaded",)


def test_of_a_training_that_has_gone_on_ten_differences_are_named_and_all_are_counted(training, caplog):
    training.train(1)
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        result = training.go_round()
    # Four weights, a buffer and a count; four moments; the scheduler's two counts.
    assert (result.same, len(result.differences), result.num_differences) == (False, 10, 12)
    [line] = [record.getMessage() for record in caplog.records]
    assert "what was loaded is not the training: num_seen is 12 in the training and 8 as loaded; " in line
    assert line.endswith("; and 9 more")


def test_state_that_a_model_makes_something_else_of_is_found(tmp_path):
    def rounding():
        model, optimizer, scheduler = build()

        def round_head(module, _):
            module.head.weight.data.round_()

        model.register_load_state_dict_post_hook(round_head)
        return model, optimizer, scheduler

    training = Training(tmp_path)
    [difference] = training.go_round(build=rounding).differences
    assert difference.startswith("head.weight differs in 2 of 2 entries")


def test_a_checkpoint_that_is_not_healthy_is_compared_all_the_same(training):
    saved = training.checkpoints.save(2, **training.parts, healthy=False)
    assert training.go_round(checkpoint=saved).same


# What cannot be loaded is a result.


def flip_a_byte(training):
    path = training.saved.path / "model.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(training):
    path = training.saved.path / "optimizer.pt"
    path.write_bytes(path.read_bytes()[:-1])


def lose_the_manifest(training):
    (training.saved.path / "trimtab_manifest.json").unlink()


def save_again(training):
    training.checkpoints.save(2, **training.parts, loss=0.75)


BROKEN = {
    "a flipped byte": (flip_a_byte, "model.pt"),
    "a file that ends too early": (cut, "optimizer.pt"),
    "no manifest": (lose_the_manifest, "step_2: "),
    "another save of the step": (save_again, "another save has taken its place since it was saved"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_checkpoint_that_was_changed_since_is_told_and_nothing_is_raised(what, training, caplog):
    change, expected = BROKEN[what]
    change(training)
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        result = training.go_round(probe_ids=torch.tensor([0]))
    assert (result.same, result.parts, result.probe, result.step) == (False, (), None, 2)
    [reason] = result.differences
    assert expected in reason
    assert f"round trip of {training.saved.path}: it could not be loaded: " in caplog.text


def test_a_save_that_takes_its_place_while_it_is_loaded_is_told(training):
    def build_and_save():
        model, optimizer, scheduler = build()
        # One as the model is loaded: what was read is the training, and what lies there now nobody has looked at.
        model.register_load_state_dict_post_hook(lambda *_: save_again(training))
        return model, optimizer, scheduler

    result = training.go_round(build=build_and_save)
    assert result.differences == ("another save has taken its place while it was loaded",)
    assert (result.same, result.num_differences) == (False, 1)
    assert result.manifest_crc32 != manifest_checksum(training.saved.path)


def test_the_log_of_the_run_holds_what_is_not_the_same_too(training, tmp_path):
    training.train(1)
    with Run(tmp_path, model=training.model, optimizer=training.optimizer) as run:
        result = training.go_round(run=run)
    [facts] = [event.facts for event, *_ in open_log(run.folder).event_stream(("round_trip",))]
    assert (facts["same"], len(facts["differences"]), facts["num_differences"]) == (False, 10, 12)
    assert facts == result.to_facts()


def test_a_checkpoint_that_is_not_there_is_told(training, tmp_path):
    result = training.go_round(checkpoint=tmp_path / "step_7")
    assert (result.same, result.step, result.manifest_crc32) == (False, None, None)
    assert str(tmp_path / "step_7") in result.differences[0]


def fails():
    raise RuntimeError("CUDA out of memory")


def with_a_hook_that_refuses():
    model, optimizer, scheduler = build()

    def refuse(*_):
        raise ValueError("not mine")

    model.register_load_state_dict_pre_hook(refuse)
    return model, optimizer, scheduler


BUILDS = {
    "fails": (fails, "build() failed: RuntimeError: CUDA out of memory"),
    "another model": (lambda: build(width=3), "it is not of this model: first.bias is of shape (2,) there and of sha"),
    "another optimizer": (lambda: build(kind=torch.optim.AdamW), "its optimizer is SGD, and AdamW is given"),
    "no scheduler": (lambda: build(scheduled=False), "The training has a scheduler, and build() makes none"),
    "a hook that refuses": (with_a_hook_that_refuses, "its state was refused: ValueError: not mine"),
}


@pytest.mark.parametrize("what", BUILDS)
def test_a_build_that_does_not_fit_is_told_and_nothing_is_raised(what, training):
    made, expected = BUILDS[what]
    result = training.go_round(build=made)
    assert (result.same, result.num_differences) == (False, 1)
    assert expected in result.differences[0]
    assert training.go_round().same


def test_a_part_that_was_not_saved_is_named(training):
    saved = training.checkpoints.save(2, model=training.model, optimizer=training.optimizer)
    [reason] = training.go_round(checkpoint=saved).differences
    assert "was saved without a scheduler" in reason


def test_a_run_whose_log_refuses_the_event_does_not_stop_training(training):
    class Refusing:
        def event(self, kind, **facts):
            raise OSError("disk full")

    assert training.go_round(run=Refusing()).same


# What makes no sense is refused.


def the_live_model(training):
    return training.model, *build()[1:]


def the_live_optimizer(training):
    model, _, scheduler = build()
    return model, training.optimizer, scheduler


def the_live_scheduler(training):
    return *build()[:2], training.scheduler


def a_scheduler_of_the_live_optimizer(training):
    return *build()[:2], lr_scheduler.StepLR(training.optimizer, 10)


def one_live_weight(training):
    model, optimizer, scheduler = build()
    model.head.weight.data = training.model.head.weight.data
    return model, optimizer, scheduler


def the_live_model_in_a_new_wrapping(training):
    return nn.DataParallel(training.model), *build()[1:]


HELD = {
    "the model": (the_live_model, "the model of the live training"),
    "the model in a new wrapping": (the_live_model_in_a_new_wrapping, "the model of the live training"),
    "the optimizer": (the_live_optimizer, "the optimizer of the live training"),
    "the scheduler": (the_live_scheduler, "the scheduler of the live training"),
    "a scheduler of the optimizer": (a_scheduler_of_the_live_optimizer, "in its scheduler, the optimizer of the live"),
    "one weight": (one_live_weight, "head.weight of the live training"),
}


@pytest.mark.parametrize("what", HELD)
def test_what_is_built_must_hold_nothing_of_the_live_training(what, training):
    make, expected = HELD[what]
    before = {name: value.tolist() for name, value in training.model.state_dict().items() if name != "_extra_state"}
    with pytest.raises(UsageError, match=expected):
        training.go_round(build=lambda: make(training))
    after = {name: value.tolist() for name, value in training.model.state_dict().items() if name != "_extra_state"}
    assert after == before


REFUSED = {
    "a step in the place of the path": ({"checkpoint": 2}, "round_trip takes what save"),
    "no function": ({"build": build()}, "build is a tuple"),
    "a model alone": (
        {"build": lambda: build()[0]},
        "build.. gives a Halves, expected a model, an optimizer and a sch",
    ),
    "something else": ({"build": lambda: (1, 2, None)}, "What build.. gives is no training: model is a int"),
    "a step that is none": ({"step": 2.0}, "step=2.0: use the number"),
    "a loss that is none": ({"loss": torch.ones(2)}, "loss is a Tensor"),
    "ids that are none": ({"probe_ids": torch.ones(2)}, "generation_probe takes token ids"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_arguments_that_make_no_sense_are_refused(what, training):
    given, expected = REFUSED[what]
    with pytest.raises(UsageError, match=expected):
        training.go_round(**given)


def test_a_save_that_failed_is_refused_as_one(training):
    with pytest.raises(UsageError, match=r"save\(\) gives None where it failed"):
        round_trip(None, build=build, **training.parts)
