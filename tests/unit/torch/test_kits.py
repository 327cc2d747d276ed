"""The kits in one process: what they refuse, what a skip leaves, when a step is dropped, and what they report."""

import json
import math

import pytest
import torch
from torch import nn

import trimtab
from trimtab import GuardConfig, LossKit, Run, TokenNormedLossKit, TrimtabWarning, UsageError, WindowResult

OPTIM = {"lr": 0.1, "loss_spike_skip_multiplier": 3.0, "loss_spike_skip_window_size": 8}


def made_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(torch.float64)


def batch_of(seed, *, num_tokens=5):
    source = torch.Generator().manual_seed(seed)
    return torch.rand(num_tokens, 3, generator=source, dtype=torch.float64)


def losses_of(model, batch, *, factor=1.0):
    return 1.0 + factor * model(batch).squeeze(1) ** 2


def made(kit, model, *, optimizer=None, skipped_tokens="counted", **settings):
    """A kit whose guard has seen eight losses of 1.0."""
    it = kit(model, optimizer=optimizer, **settings)
    it.build_loss_guard(GuardConfig(multiplier=10.0, skipped_tokens=skipped_tokens)).remember_kept([1.0] * 8)
    return it


def train(kit, loss):
    """One micro-batch of an engine with a `LossKit`; what was decided."""
    verdict = kit.guard_loss(loss)
    kit.accumulate(loss).backward()
    return verdict


def gradients_of(model):
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in model.parameters()]


def same(first, second):
    return all(torch.equal(*both) for both in zip(first, second, strict=True))


# What a skip leaves.

WAYS = {
    "the loss itself": lambda loss: loss,
    "a product of zero": lambda loss: 0.0 * loss,
    "zero times its value": lambda loss: 0.0 * loss.detach(),
    "a tensor of NaN": lambda loss: torch.tensor(math.nan),
    "a number": lambda loss: 0.0,
    "nothing": lambda loss: None,
    "a leaf": lambda loss: torch.zeros((), requires_grad=True),
    "one entry": lambda loss: loss.reshape(1),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("is_detached", [False, True], ids=["judged with its graph", "judged without"])
@pytest.mark.parametrize("value", ["spike", "nan", "infinite derivative"])
def test_after_a_skip_whatever_is_accumulated_leaves_the_gradients_alone(way, is_detached, value):
    # given
    model = made_model()
    kit = made(LossKit, model, accumulation=2)
    train(kit, losses_of(model, batch_of(1)).mean())
    before = gradients_of(model)
    # when
    losses = losses_of(model, batch_of(2))
    loss = {
        "spike": losses.mean() * 1e6,
        "nan": losses.mean() * torch.nan,
        "infinite derivative": losses.mean() * 1e6 + (losses - losses.detach()).abs().sqrt().sum(),
    }[value]
    assert kit.guard_loss(loss.detach() if is_detached else loss) is False
    accumulated = kit.accumulate(WAYS[way](loss))
    accumulated.backward()
    # then
    assert accumulated.item() == 0.0
    assert same(gradients_of(model), before)


def test_a_plain_number_may_be_judged():
    model = made_model()
    kit = made(LossKit, model)
    assert kit.guard_loss(1.5)
    kit.accumulate(losses_of(model, batch_of(1)).mean()).backward()
    assert not kit.guard_loss(math.inf)
    kit.accumulate(0.0).backward()
    assert kit.finish_window(model.parameters()).num_skipped_micros == 1


def test_what_is_added_to_a_skipped_loss_goes_with_it():
    model, criterion = made_model(), nn.Linear(1, 1).to(torch.float64)
    kit = made(LossKit, model, optimizer=torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1))
    loss = losses_of(model, batch_of(1)).mean() * 1e6
    assert not kit.guard_loss(loss)
    kit.accumulate(loss.detach() + criterion(torch.ones(1, dtype=torch.float64)).sum()).backward()
    assert not any(p.grad.any() for p in [*model.parameters(), *criterion.parameters()])  # zeros: backward was there


# The size of the gradients.


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize("accumulation", [None, 1, 3, 7])
def test_a_loss_kit_gives_the_gradient_of_the_mean_over_the_micro_batches_that_came(is_guarded, accumulation):
    # given
    model = made_model()
    batches = [batch_of(seed) for seed in range(3)]
    (sum(losses_of(model, batch).mean() for batch in batches) / 3).backward()
    expected = gradients_of(model)
    model.zero_grad()
    kit = made(LossKit, model, accumulation=accumulation) if is_guarded else LossKit(accumulation=accumulation)
    # when
    for batch in batches:
        assert train(kit, losses_of(model, batch).mean())
    result = kit.finish_window(model.parameters())
    # then
    for found, gradient in zip(gradients_of(model), expected, strict=True):
        torch.testing.assert_close(found, gradient, rtol=1e-12, atol=1e-12)
    assert result.reason == "stepped"
    assert result.num_tokens == 3
    assert result.loss == pytest.approx(sum(losses_of(model, batch).mean().item() for batch in batches) / 3, rel=1e-12)


@pytest.mark.parametrize(("skipped_tokens", "share"), [("counted", 0.2), ("removed", 1.0)])
def test_ten_ten_and_a_skipped_eighty_tokens(skipped_tokens, share):
    # given
    model = made_model()
    kept = [batch_of(seed, num_tokens=10) for seed in range(2)]
    torch.cat([losses_of(model, batch) for batch in kept]).mean().backward()
    expected = gradients_of(model)
    own_loss = torch.cat([losses_of(model, batch) for batch in kept]).mean().item()
    model.zero_grad()
    kit = made(TokenNormedLossKit, model, skipped_tokens=skipped_tokens)
    # when
    for batch, factor in zip([*kept, batch_of(2, num_tokens=80)], [1.0, 1.0, 1e6], strict=True):
        loss_sum = losses_of(model, batch, factor=factor).sum()
        assert kit.guard_loss(loss_sum, len(batch)) == (factor == 1.0)
        kit.accumulate_microbatch(loss_sum, len(batch)).backward()
    result = kit.finish_window(model.parameters())
    # then
    for found, gradient in zip(gradients_of(model), expected, strict=True):
        torch.testing.assert_close(found, share * gradient, rtol=1e-12, atol=1e-12)
    assert result.loss == pytest.approx(share * own_loss, rel=1e-12)
    assert (result.num_tokens, result.num_skipped_micros, result.num_skipped_tokens) == (100, 1, 80)


def test_a_parameter_that_is_named_twice_is_scaled_once():
    model = made_model()
    losses_of(model, batch_of(1)).mean().backward()
    expected = gradients_of(model)
    model.zero_grad()
    kit = LossKit(accumulation=4)
    kit.accumulate(losses_of(model, batch_of(1)).mean()).backward()
    kit.finish_window([*model.parameters(), *model.parameters()])
    assert same(gradients_of(model), expected)


def test_with_a_guard_and_no_fault_nothing_differs_from_a_kit_without():
    trained = []
    for is_guarded in (False, True):
        model = made_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        kit = TokenNormedLossKit(model, optimizer=optimizer)
        assert (kit.build_loss_guard(OPTIM if is_guarded else {"lr": 0.1}) is not None) == is_guarded
        for step in range(4):
            for micro in range(2):
                loss_sum = losses_of(model, batch_of(10 * step + micro)).sum()
                assert kit.guard_loss(loss_sum, 5)
                kit.accumulate_microbatch(loss_sum, 5).backward()
            assert kit.finish_window(model.parameters()).stepped
            optimizer.step()
            optimizer.zero_grad()
        trained.append([parameter.detach().clone() for parameter in model.parameters()])
    assert same(*trained)


# Windows that are dropped.


def trained_for_a_step(*, has_optimizer, fused):
    """A model, its optimizer with moments, and a kit."""
    model = made_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1, fused=fused)
    kit = made(LossKit, model, optimizer=optimizer if has_optimizer else None)
    train(kit, losses_of(model, batch_of(1)).mean())
    kit.finish_window(model.parameters())
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer, kit


def all_of(model, optimizer):
    states = [value for state in optimizer.state.values() for value in state.values()]
    return [tensor.detach().clone() for tensor in [*model.parameters(), *states]]


def infinite_derivative(model):
    losses = losses_of(model, batch_of(2))
    return losses.mean() + (losses - losses.detach()).abs().sqrt().sum()


FAULTS = {
    "all_skipped": lambda model: losses_of(model, batch_of(2)).mean() * 1e6,
    "nonfinite_norm": infinite_derivative,
}


@pytest.mark.parametrize("reason", FAULTS)
@pytest.mark.parametrize("has_optimizer", [False, True])
@pytest.mark.parametrize("fused", [False, True])
def test_a_dropped_window_leaves_no_gradient_and_its_step_moves_nothing(reason, has_optimizer, fused):
    # given
    model, optimizer, kit = trained_for_a_step(has_optimizer=has_optimizer, fused=fused)
    before = all_of(model, optimizer)
    # when
    train(kit, FAULTS[reason](model))
    result = kit.finish_window(model.parameters())
    # then
    assert (result.reason, result.stepped) == (reason, False)
    assert gradients_of(model) == [None] * 4
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert same(all_of(model, optimizer), before)
    optimizer.zero_grad()
    # and the next step is taken again
    train(kit, losses_of(model, batch_of(3)).mean())
    assert kit.finish_window(model.parameters()).stepped
    optimizer.step()
    assert not same(all_of(model, optimizer), before)


def test_a_window_without_a_token_is_dropped_and_its_loss_is_no_number():
    model = made_model()
    kit = made(TokenNormedLossKit, model)
    loss_sum = losses_of(model, batch_of(1)).sum() * torch.nan
    assert kit.guard_loss(loss_sum, 0)
    kit.accumulate_microbatch(loss_sum, 0).backward()
    result = kit.finish_window(model.parameters())
    assert result.reason == "no_tokens"
    assert math.isnan(result.loss)
    assert gradients_of(model) == [None] * 4


@pytest.mark.parametrize("reason", FAULTS)
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscales", ["before", "between", "not at all"])
def test_a_scaler_sees_a_dropped_window_and_its_step_moves_nothing(reason, fused, unscales):
    # given
    model, optimizer, kit = trained_for_a_step(has_optimizer=True, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1000)
    before = all_of(model, optimizer)
    # when
    loss = FAULTS[reason](model)
    kit.guard_loss(loss)
    scaler.scale(kit.accumulate(loss)).backward()
    if unscales == "before":
        scaler.unscale_(optimizer)
    result = kit.finish_window(model.parameters(), scaler=scaler)
    if unscales == "between":
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    # then
    assert same(all_of(model, optimizer), before)
    assert result.reason == ("scaler_overflow" if reason == "nonfinite_norm" else reason)
    assert scaler.get_scale() == (4.0 if reason == "nonfinite_norm" else 8.0)


def test_a_scaler_that_unscales_before_need_not_be_told_of():
    model, optimizer, kit = trained_for_a_step(has_optimizer=True, fused=False)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = all_of(model, optimizer)
    loss = FAULTS["all_skipped"](model)
    kit.guard_loss(loss)
    scaler.scale(kit.accumulate(loss)).backward()
    scaler.unscale_(optimizer)
    kit.finish_window(model.parameters())
    scaler.step(optimizer)
    scaler.update()
    assert same(all_of(model, optimizer), before)


def test_a_scaler_that_is_disabled_is_none():
    model, _, kit = trained_for_a_step(has_optimizer=True, fused=False)
    train(kit, FAULTS["all_skipped"](model))
    kit.finish_window(model.parameters(), scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert gradients_of(model) == [None] * 4


# Guards.


@pytest.mark.parametrize("optim", [OPTIM, type("Optim", (), OPTIM)(), GuardConfig(multiplier=3.0)])
def test_a_guard_is_built_of_what_an_engine_has(optim):
    guard = LossKit(made_model()).build_loss_guard(optim)
    assert guard.config.multiplier == 3.0


@pytest.mark.parametrize("optim", [{}, {"loss_spike_skip_multiplier": None}, GuardConfig()])
def test_a_guard_that_is_off_is_none_and_needs_no_model(optim):
    kit = LossKit()
    assert kit.build_loss_guard(optim) is None
    assert kit.guard_loss(torch.tensor(math.nan))


def test_a_stage_without_a_guard_ends_that_of_the_one_before():
    # given
    model = made_model()
    kit = made(LossKit, model)
    train(kit, losses_of(model, batch_of(1)).mean())
    kit.finish_window(model.parameters())
    # when
    assert kit.build_loss_guard({}) is None
    # then
    assert kit.state_dict()["step"] == 2
    model.zero_grad()
    assert train(kit, losses_of(model, batch_of(1)).mean() * 1e6)
    assert kit.finish_window(model.parameters()).stepped
    assert model[0].weight.grad.any()


def test_trimtab_off_builds_none(monkeypatch):
    monkeypatch.setenv("TRIMTAB", "off")
    assert LossKit().build_loss_guard(OPTIM) is None


def test_a_device_is_not_to_decide():
    with pytest.warns(TrimtabWarning, match="has no effect on TokenNormedLossKit"):
        TokenNormedLossKit(made_model()).build_loss_guard(GuardConfig(rule="robust", decide="device"))


@pytest.mark.parametrize("kit", [LossKit, TokenNormedLossKit])
def test_a_resumed_kit_decides_as_the_uninterrupted_one(kit):
    losses = [1.0, 2.0, 1.0, 2.0, 9.0, 2.0, 1.0, 9.0, 2.0, 9.0]

    def verdicts(it, losses):
        found = []
        for loss in losses:
            value = losses_of(it.model, batch_of(1)).mean() * loss / losses_of(it.model, batch_of(1)).mean().detach()
            counted = () if kit is LossKit else (3,)
            value = value if kit is LossKit else value * 3
            found.append(it.guard_loss(value, *counted))
            (it.accumulate if kit is LossKit else it.accumulate_microbatch)(value, *counted).backward()
            it.finish_window(it.model.parameters())
        return found

    def begun():
        model = made_model()
        it = kit(model)
        it.model = model
        it.build_loss_guard(OPTIM)
        return it

    whole, first, second = begun(), begun(), begun()
    expected = verdicts(whole, losses)
    assert expected.count(False) == 3
    found = verdicts(first, losses[:4])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert found + verdicts(second, losses[4:]) == expected
    assert second.state_dict() == whole.state_dict()


def test_the_state_of_another_guard_is_refused():
    kit = LossKit(made_model())
    kit.build_loss_guard(OPTIM)
    other = LossKit(made_model())
    other.build_loss_guard(GuardConfig(rule="robust"))
    with pytest.raises(UsageError, match="rule"):
        other.load_state_dict(kit.state_dict())


def guarded_run():
    return Run(None, record=False, model=made_model(), normalize="window", guard=GuardConfig(multiplier=10.0))


@pytest.mark.parametrize(
    "other", [lambda: made(TokenNormedLossKit, made_model()), guarded_run], ids=["TokenNormedLossKit", "Run"]
)
def test_means_of_micro_batches_and_losses_per_token_are_not_taken_for_each_other(other):
    kit, other = made(LossKit, made_model()), other()
    for first, second in ((kit, other), (other, kit)):
        before = second.state_dict()
        with pytest.raises(UsageError, match="judges losses per"):
            second.load_state_dict(first.state_dict())
        assert second.state_dict() == before


def test_a_run_and_a_token_normed_kit_judge_alike_and_take_each_others_state():
    kit, run = made(TokenNormedLossKit, made_model()), guarded_run()
    run.load_state_dict(kit.state_dict())
    assert run.state_dict()["guard"] == kit.state_dict()["guard"]
    kit.load_state_dict(run.state_dict())


@pytest.mark.parametrize("said", [True, False])
def test_a_truth_value_is_no_loss(said):
    with pytest.raises(UsageError, match="found bool"):
        made(LossKit, made_model()).guard_loss(said)
    with pytest.raises(UsageError, match="found bool"):
        made(TokenNormedLossKit, made_model()).guard_loss(said, 2)


# What is refused.


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"accumulation": 0}, "accumulation"),
        ({"optimizer": made_model()}, "optimizer must be a torch optimizer"),
        ({"model": [made_model()]}, r"model must be a torch.nn.Module"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(UsageError, match=said):
        LossKit(**settings)


def test_a_guard_that_is_on_needs_the_model():
    with pytest.raises(UsageError, match=r"pass model= \(and optimizer=\) to LossKit"):
        LossKit().build_loss_guard(OPTIM)


def test_with_a_guard_a_micro_batch_is_judged_before_it_is_accumulated():
    model = made_model()
    kit = made(LossKit, model)
    with pytest.raises(UsageError, match="ask guard_loss about each micro-batch first"):
        kit.accumulate(losses_of(model, batch_of(1)).mean())


@pytest.mark.parametrize("call", ["guard_loss", "finish_window"])
def test_a_micro_batch_that_was_judged_is_accumulated(call):
    model = made_model()
    kit = made(LossKit, model)
    kit.guard_loss(losses_of(model, batch_of(1)).mean() * 1e6)
    argument = {"guard_loss": losses_of(model, batch_of(1)).mean(), "finish_window": model.parameters()}[call]
    with pytest.raises(UsageError, match=f"{call} came while micro-batch 1 of the window of step 1 was judged and"):
        getattr(kit, call)(argument)


def test_a_window_has_a_micro_batch():
    with pytest.raises(UsageError, match="finish_window came for step 1 without any micro-batch"):
        LossKit().finish_window(made_model().parameters())


@pytest.mark.parametrize("call", ["build_loss_guard", "load_state_dict"])
def test_a_guard_is_exchanged_between_windows(call):
    kit = LossKit()
    kit.accumulate(torch.ones((), requires_grad=True))
    with pytest.raises(UsageError, match=f"{call} came after micro-batch 1 of the window of step 1"):
        getattr(kit, call)({})


def test_a_scaler_needs_the_optimizer():
    model = made_model()
    kit = LossKit()
    kit.accumulate(losses_of(model, batch_of(1)).mean()).backward()
    with pytest.raises(UsageError, match="pass optimizer= to LossKit"):
        kit.finish_window(model.parameters(), scaler=torch.amp.GradScaler("cpu"))


@pytest.mark.parametrize("is_guarded", [False, True])
@pytest.mark.parametrize(
    ("loss_sum", "num_tokens", "said"),
    [
        (torch.ones(2), 2, r"torch.float32 of shape \(2,\)"),
        (torch.ones((), dtype=torch.int64), 2, "torch.int64"),
        ("1", 2, "str"),
        (torch.ones(()), -1, "num_tokens is -1"),
        (torch.ones(()), torch.ones(()), "num_tokens is torch.float32"),
    ],
)
def test_a_loss_and_a_count_are_what_they_are_to_be(is_guarded, loss_sum, num_tokens, said):
    kit = made(TokenNormedLossKit, made_model()) if is_guarded else TokenNormedLossKit()
    ask = kit.guard_loss if is_guarded else kit.accumulate_microbatch
    with pytest.raises(UsageError, match=said):
        ask(loss_sum, num_tokens)


def test_tokens_are_those_that_the_guard_was_told_of():
    model = made_model()
    kit = made(TokenNormedLossKit, model)
    loss_sum = losses_of(model, batch_of(1)).sum()
    kit.guard_loss(loss_sum, 5)
    with pytest.raises(UsageError, match="was given num_tokens=0, and guard_loss num_tokens=5"):
        kit.accumulate_microbatch(loss_sum, 0)
    kit.accumulate_microbatch(loss_sum, 5)


# What is reported.


def test_a_result_is_a_public_value_and_shows_itself():
    model = made_model()
    kit = made(LossKit, model)
    train(kit, losses_of(model, batch_of(1)).mean())
    result = kit.finish_window(iter(model.parameters()))
    assert type(result) is WindowResult is trimtab.WindowResult
    assert repr(result) == "WindowResult(reason='stepped', num_skipped_micros=0)"
