"""What is measured of a step and a machine: the ratios are right, nobody waits, and training is the same with it."""

import copy
import gc
import math
import weakref

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab import GuardConfig, Run, UsageError, memory
from trimtab.torch.update_ratio import MAX_ENTRIES, MAX_WEIGHTS, _sample
from trimtab.torch.vitals import VitalsProbe

OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "adamw, one by one": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=False),
    "adamw, foreach": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, foreach=True),
    "adamw, fused": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=True),
}


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def step_once(model, optimizer, *, seed=1):
    generator = torch.Generator().manual_seed(seed)
    optimizer.zero_grad()
    model(torch.randn(32, 8, generator=generator)).square().mean().backward()
    optimizer.step()


def ratios_of(before, after):
    """|change| / |weight| of every matrix, in plain Python."""
    found = {}
    for name, old in before.items():
        if old.dim() > 1:
            olds, news = old.double().flatten().tolist(), after[name].double().flatten().tolist()
            change = math.sqrt(sum((new - was) ** 2 for new, was in zip(news, olds, strict=True)))
            found[name] = change / math.sqrt(sum(was**2 for was in olds))
    return found


def state_of(model):
    return copy.deepcopy(dict(model.state_dict()))


@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_the_step_that_was_armed_is_measured(made):
    model = small_model()
    optimizer = made(model.parameters())
    probe = VitalsProbe(model, optimizer)
    step_once(model, optimizer)
    before = state_of(model)

    probe.arm()
    step_once(model, optimizer, seed=2)
    vitals = probe.collect(2).vitals()

    assert vitals.step == 2
    assert vitals.update_ratio == pytest.approx(ratios_of(before, model.state_dict()), rel=1e-5)
    assert set(vitals.update_ratio) == {"0.weight", "2.weight"}


def test_what_follows_the_armed_step_is_not_measured():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = VitalsProbe(model, optimizer)
    before = state_of(model)
    probe.arm()
    step_once(model, optimizer)
    after_one = state_of(model)
    step_once(model, optimizer)
    step_once(model, optimizer)

    assert probe.collect(3).vitals().update_ratio == pytest.approx(ratios_of(before, after_one), rel=1e-5)
    assert probe.collect(4).vitals().update_ratio == {}


def test_a_step_that_did_not_take_place_has_no_ratio():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = VitalsProbe(model, optimizer)

    probe.arm()
    reading = probe.collect(1)

    assert reading.is_ready()
    assert reading.vitals().update_ratio == {}
    # and it is not measured later
    step_once(model, optimizer)
    assert probe.collect(2).vitals().update_ratio == {}


@pytest.mark.parametrize("guard", [GuardConfig(rule="robust"), None], ids=["dropped", "taken"])
def test_a_step_that_is_dropped_or_spoils_the_weights_has_no_ratio(guard):
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    run = Run(None, record=False, model=model, optimizer=optimizer, guard=guard)
    probe = VitalsProbe(model, optimizer)
    before = state_of(model)
    run.micro_batch(model(torch.ones(2, 8)).square().mean(1), per="sample", rows=[0, 1]).backward()
    model[0].weight.grad.fill_(torch.nan)

    probe.arm()
    outcome = run.step()

    assert outcome.reason == ("nonfinite_norm" if guard else "stepped")
    ratios = probe.collect(1).vitals().update_ratio
    assert "0.weight" not in ratios
    if guard is not None:
        assert ratios == {}
        assert torch.equal(model[0].weight, before["0.weight"])
    run.close()


def test_a_scaler_that_skips_has_no_ratio():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    probe = VitalsProbe(model, optimizer)
    probe.arm()
    scaler.scale(model(torch.full((2, 8), torch.inf)).sum()).backward()

    scaler.step(optimizer)
    scaler.update()

    assert probe.collect(1).vitals().update_ratio == {}


def test_a_rate_of_0_has_no_ratio():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    probe = VitalsProbe(model, optimizer)
    probe.arm()
    step_once(model, optimizer)

    assert probe.collect(1).vitals().update_ratio == {}


@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_training_is_the_same_to_the_bit(made):
    def trained(*, watched):
        model = small_model()
        optimizer = made(model.parameters())
        probe = VitalsProbe(model, optimizer) if watched else None
        for step in range(6):
            if probe is not None and step % 2:
                probe.arm()
            step_once(model, optimizer, seed=step)
            if probe is not None and step % 2:
                probe.collect(step)
        return model.state_dict(), optimizer.state_dict()["state"]

    (weights, moments), (plain_weights, plain_moments) = trained(watched=True), trained(watched=False)

    for name, weight in weights.items():
        assert torch.equal(weight, plain_weights[name])
    for place, state in moments.items():
        for key, moment in state.items():
            assert torch.equal(torch.as_tensor(moment), torch.as_tensor(plain_moments[place][key]))


class HostReads(TorchDispatchMode):
    """Counts operations whose result the host must have before it can go on."""

    def __init__(self):
        super().__init__()
        self.num_reads = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        waiting = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default}
        self.num_reads += func in waiting or func is torch.ops.aten.equal.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("made", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_nothing_is_read_on_the_host(made):
    model = small_model()
    optimizer = made(model.parameters())
    probe = VitalsProbe(model, optimizer)
    step_once(model, optimizer)
    model[0].max_attention_logit = torch.tensor(12.0)
    with HostReads() as plain:
        step_once(model, optimizer)

    with HostReads() as reads:
        probe.arm()
        step_once(model, optimizer)
        reading = probe.collect(2)

    assert reads.num_reads == plain.num_reads
    assert len(reading.vitals().update_ratio) == 2


def test_a_large_model_is_looked_at_by_a_sample():
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Linear(1024, 1024, bias=False) for _ in range(3)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    probe = VitalsProbe(model, optimizer)
    before = state_of(model)
    probe.arm()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)

    largest = 0
    append = probe._ratio._compare

    def looking():
        nonlocal largest
        largest = sum(copied.numel() for copied in probe._ratio._before)
        append()

    probe._ratio._compare = looking
    optimizer.step()

    assert MAX_ENTRIES / 2 < largest <= MAX_ENTRIES
    # a million of three million entries tell the ratio to a percent
    exact = {name: float((model.state_dict()[name] - old).norm() / old.norm()) for name, old in before.items()}
    assert probe.collect(1).vitals().update_ratio == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("shape", [(64, 1024), (1000, 768), (7, 3), (1 << 12, 1 << 9)], ids=str)
def test_a_sample_is_spread_over_rows_and_columns(shape):
    weight = torch.arange(shape[0] * shape[1], dtype=torch.float64).view(shape)

    sample = _sample(weight, most=20_000).long()

    assert min(20_000, weight.numel()) / 2 <= len(sample) <= 20_000
    assert len(torch.unique(sample % shape[1])) == min(shape[1], len(sample))
    assert len(torch.unique(sample // shape[1])) > 0.9 * shape[0]


def test_weights_that_another_optimizer_steps_take_no_place_of_those_that_are_measured():
    model = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(1000)])
    own = torch.optim.SGD([layer.weight for layer in model[-10:]], lr=0.01)
    probe = VitalsProbe(model, own)
    probe.arm()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    own.step()

    assert list(probe.collect(1).vitals().update_ratio) == [f"{place}.weight" for place in range(990, 1000)]


def test_of_many_weights_some_are_chosen_evenly():
    model = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(1000)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    probe = VitalsProbe(model, optimizer)
    probe.arm()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()

    names = list(probe.collect(1).vitals().update_ratio)

    assert len(names) == MAX_WEIGHTS
    assert names[0] == "0.weight"
    assert names[-1] == "999.weight"


def test_weights_of_other_kinds_are_measured_or_left_out_and_nothing_raises():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.low = nn.Parameter(torch.ones(64, 64, dtype=torch.bfloat16))
            self.small = nn.Parameter(torch.full((64, 64), 1e-4, dtype=torch.float16))
            self.turned = nn.Parameter(torch.ones(4, 6).t())
            self.zero = nn.Parameter(torch.zeros(4, 4))
            self.frozen = nn.Parameter(torch.ones(4, 4), requires_grad=False)
            self.empty = nn.Parameter(torch.ones(0, 4))
            self.bias = nn.Parameter(torch.ones(4))

    model = Odd()
    optimizer = torch.optim.SGD([parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.25)
    probe = VitalsProbe(model, optimizer)
    probe.arm()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) * (4e-6 if parameter.dtype is torch.float16 else 1)
    optimizer.step()

    ratios = probe.collect(1).vitals().update_ratio

    assert set(ratios) == {"low", "small"}
    assert ratios["low"] == pytest.approx(0.25)
    assert ratios["small"] == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    ("offered", "expected"),
    [
        ([3.5, None], 3.5),
        ([torch.tensor(7.0), 3], 7.0),
        ([torch.tensor([7.0], dtype=torch.bfloat16), None], 7.0),
        ([torch.tensor(torch.nan), 5.0], 5.0),
        (["many", torch.ones(3)], None),
        ([True, None], None),
    ],
    ids=["a number", "a tensor", "an element", "nan", "what is none", "a truth"],
)
def test_a_model_offers_its_largest_attention_logit_by_an_attribute(offered, expected):
    model = small_model()
    for module, logit in zip((model[0], model[2]), offered, strict=True):
        module.max_attention_logit = logit
    probe = VitalsProbe(model, torch.optim.SGD(model.parameters(), lr=0.1))

    assert probe.collect(1).vitals().attention_logit == expected


def test_the_machine_is_looked_at():
    model = small_model()
    vitals = VitalsProbe(model, torch.optim.SGD(model.parameters(), lr=0.1)).collect(1).vitals()

    assert vitals.host_available_bytes is None or vitals.host_available_bytes > 0
    assert vitals.device_peak_bytes is None


def test_files_of_the_system_are_read_by_whoever_takes_the_look_and_not_by_the_step(monkeypatch):
    asked = []
    monkeypatch.setattr(memory, "available_bytes", lambda: asked.append("asked") or 5)
    model = small_model()

    reading = VitalsProbe(model, torch.optim.SGD(model.parameters(), lr=0.1)).collect(1)

    assert reading.is_ready()
    assert asked == []
    assert reading.vitals().host_available_bytes == 5


def test_a_wrapped_model_has_the_same_names():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = VitalsProbe(torch.compile(model, backend="eager"), optimizer)
    probe.arm()
    step_once(model, optimizer)

    assert set(probe.collect(1).vitals().update_ratio) == {"0.weight", "2.weight"}


def test_a_removed_probe_measures_nothing_and_a_second_removal_is_nothing():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = VitalsProbe(model, optimizer)
    probe.arm()
    probe.remove()
    probe.remove()
    step_once(model, optimizer)

    assert probe.collect(1).vitals().update_ratio == {}
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


def test_an_optimizer_keeps_neither_a_probe_nor_its_model_alive():
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = VitalsProbe(model, optimizer)
    probe.arm()
    gone, model_gone = weakref.ref(probe._ratio), weakref.ref(model)
    del probe
    gc.collect()
    assert gone() is None
    step_once(model, optimizer)

    del model
    gc.collect()
    assert model_gone() is None


def test_the_optimizer_inside_of_a_wrapper_is_measured():
    class Wrapper(torch.optim.Optimizer):
        """As accelerate's: an Optimizer that never ran its constructor."""

        def __init__(self, optimizer):
            self.optimizer = optimizer

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe = VitalsProbe(model, Wrapper(optimizer))
    probe.arm()
    step_once(model, optimizer)

    assert len(probe.collect(1).vitals().update_ratio) == 2


def test_an_optimizer_without_hooks_is_refused():
    with pytest.raises(UsageError, match="no step hooks, found object"):
        VitalsProbe(small_model(), object())
