"""What surrounds a kit: parameters that are none, windows that are thrown away, steps not taken, odd numbers."""

import fractions
import json
import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

from trimtab import GuardConfig, LossKit, Run, TokenNormedLossKit, UsageError


def made_model(dtype=torch.float64):
    torch.manual_seed(0)
    return nn.Linear(3, 1).to(dtype)


def loss_of(model, seed, *, factor=1.0):
    source = torch.Generator().manual_seed(seed)
    x = torch.rand(4, 3, generator=source, dtype=torch.float64).to(model.weight.dtype) + 0.5
    return 1.0 + factor * model(x).square().mean()


def made(kit=LossKit, *, is_guarded=True, dtype=torch.float64, has_optimizer=True, **settings):
    """A model, its optimizer and a kit whose guard has seen eight losses of 1.0."""
    model = made_model(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    it = kit(model, optimizer=optimizer if has_optimizer else None, **settings)
    if is_guarded:
        it.build_loss_guard(GuardConfig(multiplier=10.0)).remember_kept([1.0] * 8)
    return model, optimizer, it


def train(kit, loss, *, num_tokens=4):
    """One micro-batch, by whichever kit."""
    if isinstance(kit, LossKit):
        kit.guard_loss(loss)
        kit.accumulate(loss).backward()
    else:
        kit.guard_loss(loss * num_tokens, num_tokens)
        kit.accumulate_microbatch(loss * num_tokens, num_tokens).backward()


def weights_of(model):
    return [parameter.detach().clone() for parameter in model.parameters()]


def same(first, second):
    return all(torch.equal(*both) for both in zip(first, second, strict=True))


NO_STEPS = {"before": None}
"""Leaves out what a state tells of the steps before: an optimizer has a rate, and a kit without one has none."""

KITS = pytest.mark.parametrize("kind", [LossKit, TokenNormedLossKit])
GUARDED = pytest.mark.parametrize("is_guarded", [False, True])


# Parameters.

HANDED = {
    "nothing": (lambda model, _: [], "given 0 parameters, as of an iterator that was used before, 0 of them with"),
    "others": (lambda model, _: made_model().parameters(), "given 2 parameters, 0 of them with a gradient"),
    "a tensor": (lambda model, _: model.weight, "given a Parameter for parameters"),
    "the model": (lambda model, _: model, "given a Linear for parameters"),
    "None": (lambda model, _: None, "given a NoneType for parameters"),
    "a mapping": (lambda model, _: model.state_dict(), "given a OrderedDict for parameters"),
    "named": (lambda model, _: model.named_parameters(), "an iterable of tuple, as named_parameters"),
    "groups": (lambda _, optimizer: optimizer.param_groups, "an iterable of dict, as"),
}


@KITS
@GUARDED
@pytest.mark.parametrize("handed", HANDED)
def test_what_holds_no_gradient_of_the_window_is_refused_and_the_window_stays_open(kind, is_guarded, handed):
    model, optimizer, kit = made(kind, is_guarded=is_guarded)
    make, said = HANDED[handed]
    train(kit, loss_of(model, 1))
    with pytest.raises(UsageError, match=f"{said}.*finish_window\\(model.parameters\\(\\)\\)"):
        kit.finish_window(make(model, optimizer))
    assert kit.finish_window(model.parameters()).stepped


def test_an_iterator_that_is_used_up_is_refused_in_the_second_window():
    model, optimizer, kit = made(TokenNormedLossKit)
    parameters = model.parameters()
    train(kit, loss_of(model, 1))
    kit.finish_window(parameters)
    optimizer.zero_grad()
    train(kit, loss_of(model, 2))
    with pytest.raises(UsageError, match="given 0 parameters"):
        kit.finish_window(parameters)


@pytest.mark.parametrize("num_tokens", [0, torch.tensor(0)])
@GUARDED
def test_where_nothing_counts_there_need_be_no_gradient(is_guarded, num_tokens):
    model, _, kit = made(TokenNormedLossKit, is_guarded=is_guarded)
    loss = loss_of(model, 1)
    kit.guard_loss(loss, num_tokens)
    kit.accumulate_microbatch(loss, num_tokens)
    assert kit.finish_window(model.parameters()).reason == ("no_tokens" if is_guarded else "stepped")


def test_where_all_is_skipped_there_need_be_no_gradient():
    model, _, kit = made()
    assert not kit.guard_loss(math.nan)
    kit.accumulate(None)
    result = kit.finish_window(model.parameters())
    assert result.reason == "all_skipped"
    assert math.isnan(result.loss)


# Windows that are thrown away.


@KITS
@GUARDED
@pytest.mark.parametrize("is_judged_only", [False, True])
def test_a_window_that_is_given_up_leaves_nothing_in_the_next(kind, is_guarded, is_judged_only):
    # given
    outcomes = []
    for gives_up in (False, True):
        model, _, kit = made(kind, is_guarded=is_guarded)
        if gives_up:
            train(kit, loss_of(model, 5))
            train(kit, loss_of(model, 6, factor=1e6) if is_guarded else loss_of(model, 6))
            if is_judged_only and is_guarded:
                loss = loss_of(model, 7)
                kit.guard_loss(*((loss,) if kind is LossKit else (loss * 4, 4)))
            # when
            kit.discard_window()
            model.zero_grad()
        train(kit, loss_of(model, 1))
        train(kit, loss_of(model, 2))
        result = kit.finish_window(model.parameters())
        outcomes.append((result.loss, result.num_tokens, result.num_skipped_micros, result.reason))
        outcomes.append([parameter.grad for parameter in model.parameters()])
        assert kit.state_dict()["step"] == 2
    # then
    assert outcomes[0] == outcomes[2]
    assert same(outcomes[1], outcomes[3])


def test_what_was_judged_of_a_window_that_is_given_up_stays_in_the_history():
    model, _, kit = made()
    train(kit, loss_of(model, 1, factor=1e6))
    kit.discard_window()
    guard = kit.state_dict()["guard"]
    assert (guard["num_judged"], guard["num_skipped"]) == (9, 1)


def test_there_need_be_no_window_to_give_up():
    model, _, kit = made()
    before = kit.state_dict()
    kit.discard_window()
    assert kit.state_dict() == before
    train(kit, loss_of(model, 1))
    assert kit.finish_window(model.parameters()).stepped


@pytest.mark.parametrize("call", ["guard_loss", "finish_window", "build_loss_guard", "load_state_dict", "state_dict"])
def test_what_is_refused_in_an_open_window_names_the_way_out(call):
    model, _, kit = made()
    state = kit.state_dict()
    kit.guard_loss(loss_of(model, 1))
    arguments = {
        "guard_loss": [loss_of(model, 2)],
        "finish_window": [model.parameters()],
        "build_loss_guard": [{}],
        "load_state_dict": [state],
        "state_dict": [],
    }[call]
    with pytest.raises(UsageError, match="discard_window"):
        getattr(kit, call)(*arguments)
    kit.discard_window()
    if call != "finish_window":
        getattr(kit, call)(*arguments)


# Steps that are not taken.

FAULTS = {
    "all_skipped": lambda model: loss_of(model, 2, factor=1e9),
    "nonfinite_norm": lambda model: 1.0 + (model.weight - model.weight.detach()).abs().sqrt().sum(),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("next_is", ["a window of the kit", "of another kit", "a step of its own"])
def test_an_engine_that_obeys_stepped_loses_no_other_step(fault, next_is):
    # given
    model, optimizer, kit = made()
    other = LossKit(model, optimizer=optimizer)
    train(kit, FAULTS[fault](model))
    result = kit.finish_window(model.parameters())
    assert (result.reason, result.stepped) == (fault, False)  # so no step
    before = weights_of(model)
    # when
    if next_is == "a step of its own":
        loss_of(model, 3).backward()
    else:
        taken = kit if next_is == "a window of the kit" else other
        train(taken, loss_of(model, 3))
        assert taken.finish_window(model.parameters()).stepped
    optimizer.step()
    # then
    assert not same(weights_of(model), before)


def test_parameters_that_only_the_optimizer_knows_are_dropped_with_the_window():
    model, criterion = made_model(), nn.Linear(1, 1).to(torch.float64)
    optimizer = torch.optim.AdamW([*model.parameters(), *criterion.parameters()], lr=0.1, weight_decay=0.1)
    kit = LossKit(model, optimizer=optimizer)
    kit.build_loss_guard(GuardConfig(multiplier=10.0))
    train(kit, FAULTS["nonfinite_norm"](model) + criterion(torch.ones(1, dtype=torch.float64)).sum())
    before = weights_of(criterion)
    assert not kit.finish_window(model.parameters()).stepped
    optimizer.step()
    assert same(weights_of(criterion), before)


def scaled_window(kit, optimizer, scaler, model, loss, *, gradient=None, unscales=False, obeys=False):
    kit.guard_loss(loss)
    scaler.scale(kit.accumulate(loss)).backward()
    if gradient is not None:
        model.weight.grad.fill_(gradient)
    if unscales:
        scaler.unscale_(optimizer)
    result = kit.finish_window(model.parameters(), scaler=scaler)
    if result.stepped or not obeys:
        scaler.step(optimizer)
        scaler.update()
    optimizer.zero_grad()
    return result


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize(
    ("gradient", "reason", "scale"),
    [(1e25, "nonfinite_norm", 8.0), (math.inf, "scaler_overflow", 4.0), (math.nan, "scaler_overflow", 4.0)],
)
def test_only_a_gradient_that_is_not_finite_is_the_scalers_own(caplog, gradient, reason, scale, unscales):
    # given
    model, optimizer, kit = made(dtype=torch.float32)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    before = weights_of(model)
    # when
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        loss = loss_of(model, 1)
        result = scaled_window(kit, optimizer, scaler, model, loss, gradient=gradient, unscales=unscales)
    # then
    assert (result.reason, scaler.get_scale()) == (reason, scale)
    assert same(weights_of(model), before)
    assert ("weight" in caplog.text) == (reason == "nonfinite_norm")


def test_a_step_that_was_dropped_under_a_scaler_and_never_taken_drops_no_later_one():
    model, optimizer, kit = made()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    assert not scaled_window(kit, optimizer, scaler, model, FAULTS["all_skipped"](model), obeys=True).stepped
    before = weights_of(model)
    train(kit, loss_of(model, 3))
    optimizer.step()  # one that steps in the middle of a window: nothing of the one before holds any more
    assert not same(weights_of(model), before)


# State.


@pytest.mark.parametrize("made_other", [lambda: made(is_guarded=False)[2], lambda: LossKit()], ids=["model", "bare"])
def test_a_state_without_a_history_empties_that_of_the_guard(caplog, made_other):
    model, _, kit = made()
    train(kit, loss_of(model, 1))
    kit.finish_window(model.parameters())
    with caplog.at_level(logging.WARNING, logger="trimtab"):
        kit.load_state_dict(made_other().state_dict())
    assert "the guard starts with an empty window" in caplog.text
    fresh = LossKit(made_model())
    fresh.build_loss_guard(GuardConfig(multiplier=10.0))
    assert kit.state_dict() | NO_STEPS == fresh.state_dict() | NO_STEPS


@pytest.mark.parametrize("decide", ["host", "device"])
def test_so_it_does_in_a_run_wherever_that_decides(decide):
    def begun():
        model = made_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        guard = GuardConfig(multiplier=10.0, min_history=1, decide=decide)
        return model, Run(None, record=False, model=model, optimizer=optimizer, guard=guard)

    def window(model, run, *, factor):
        run.micro_batch(loss_of(model, 1, factor=factor).reshape(1), rows=[0], per="sample").backward()
        return run.step().reason

    model, run = begun()
    without = Run(None, record=False, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.01))
    assert [window(model, run, factor=factor) for factor in (1.0, 1e6)] == ["stepped", "all_skipped"]
    run.load_state_dict(without.state_dict())
    assert run.state_dict()["guard"] == begun()[1].state_dict()["guard"]
    assert window(model, run, factor=1e6) == "stepped"  # warm-up again


@KITS
def test_a_history_is_not_loaded_before_its_guard_is_built(kind):
    _, _, kit = made(kind)
    state = json.loads(json.dumps(kit.state_dict()))
    other = kind(made_model())
    with pytest.raises(UsageError, match="build_loss_guard was not called: call it first"):
        other.load_state_dict(state)
    other.build_loss_guard(GuardConfig(multiplier=10.0))
    other.load_state_dict(state)
    assert other.state_dict() | NO_STEPS == state | NO_STEPS
    # and a stage whose guard is off leaves it aside, and says so
    other = kind(made_model())
    other.build_loss_guard({})
    other.load_state_dict(state)
    assert other.state_dict()["guard"] is None


# Numbers.


@pytest.mark.parametrize(
    ("loss", "keeps"),
    [
        (1, True),
        (1.5, True),
        (np.float32(1.5), True),
        (np.array(1.5), True),
        (np.array([1.5]), True),
        (np.int64(2), True),
        (fractions.Fraction(3, 2), True),
        (np.float32("nan"), False),
        (10**400, False),
        (-(10**400), False),
    ],
)
@KITS
def test_any_number_may_be_judged(kind, loss, keeps):
    _, _, kit = made(kind)
    assert kit.guard_loss(*((loss,) if kind is LossKit else (loss, 1))) is keeps


@pytest.mark.parametrize("loss", [torch.ones((), device="meta"), torch.ones((), dtype=torch.complex64), 1j, "1", None])
@KITS
def test_what_is_no_real_number_is_not_judged(kind, loss):
    _, _, kit = made(kind)
    with pytest.raises(UsageError, match="guard_loss"):
        kit.guard_loss(*((loss,) if kind is LossKit else (loss, 1)))
    assert kit.state_dict()["guard"]["num_judged"] == 8


@GUARDED
@pytest.mark.parametrize(
    "num_tokens", [3, np.int64(3), np.array(3), torch.tensor(3), torch.tensor(3, dtype=torch.uint8)]
)
def test_any_whole_number_may_be_a_count(is_guarded, num_tokens):
    model, _, kit = made(TokenNormedLossKit, is_guarded=is_guarded)
    loss_sum = 3 * loss_of(model, 1)
    assert kit.guard_loss(loss_sum, num_tokens)
    kit.accumulate_microbatch(loss_sum, num_tokens).backward()
    assert kit.finish_window(model.parameters()).num_tokens == 3


@GUARDED
@pytest.mark.parametrize(
    "num_tokens", [-1, 2**63, np.int64(-1), True, 1.0, None, torch.tensor(-5), torch.tensor(1, device="meta")]
)
def test_what_is_no_count_is_refused(is_guarded, num_tokens):
    model, _, kit = made(TokenNormedLossKit, is_guarded=is_guarded)
    with pytest.raises(UsageError, match="num_tokens is"):
        (kit.guard_loss if is_guarded else kit.accumulate_microbatch)(loss_of(model, 1), num_tokens)
    assert kit._gate.core.window.num_micros == 0


@pytest.mark.parametrize(("judged", "accumulated"), [(1, 4), (4, 5), (4, 0)])
@pytest.mark.parametrize("first", [int, torch.tensor, np.int64])
@pytest.mark.parametrize("second", [int, torch.tensor, np.int64])
def test_counts_that_differ_are_refused_wherever_the_host_has_both(judged, accumulated, first, second):
    model, _, kit = made(TokenNormedLossKit)
    loss = loss_of(model, 1)
    assert kit.guard_loss(loss * judged, first(judged))
    with pytest.raises(UsageError, match=f"num_tokens={accumulated}, and guard_loss num_tokens={judged} of the same"):
        kit.accumulate_microbatch(loss * 4, second(accumulated))
    kit.accumulate_microbatch(loss * judged, second(judged)).backward()
    assert kit.finish_window(model.parameters()).num_tokens == judged
