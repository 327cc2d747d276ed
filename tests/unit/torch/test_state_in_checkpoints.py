"""What decides is in the checkpoint, whoever decides and whoever writes it: a training that was thrown away and goes on
from its files skips what the uninterrupted one skips, and ends with the same bits."""

import itertools
import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn

from trimtab import (
    GuardConfig,
    GuardLockupError,
    LossGuard,
    LossKit,
    PerTokenLossGuard,
    Run,
    TokenNormedLossKit,
    UsageError,
)

MULTIPLIER = 3.0
ACCUMULATION = 2
NUM_STEPS, SAVED_AFTER = 6, 3
SPIKES = {(SAVED_AFTER, 0), (SAVED_AFTER + 1, 1)}  # an empty window would keep both


def batch(step, micro):
    generator = torch.Generator().manual_seed(100 * step + micro)
    x = torch.randn(4, 3, generator=generator, dtype=torch.float64)
    return x, 1000.0 if (step, micro) in SPIKES else 1.0


def row_losses(model, step, micro):
    """(4,) losses of about 1, or of about a thousand."""
    x, size = batch(step, micro)
    return size * (1.0 + 0.1 * model(x).squeeze(1) ** 2)


def run_window(run, model, optimizer, step):
    for micro in range(ACCUMULATION):
        run.micro_batch(row_losses(model, step, micro), per="sample", rows=range(4)).backward()
    run.step()


def kit_window(kit, model, optimizer, step):
    for micro in range(ACCUMULATION):
        loss = row_losses(model, step, micro).mean()
        kit.guard_loss(loss)
        kit.accumulate(loss).backward()
    kit.finish_window(model.parameters())
    optimizer.step()
    optimizer.zero_grad()


def token_kit_window(kit, model, optimizer, step):
    for micro in range(ACCUMULATION):
        loss_sum = row_losses(model, step, micro).sum()
        kit.guard_loss(loss_sum, 4)
        kit.accumulate_microbatch(loss_sum, 4).backward()
    kit.finish_window(model.parameters())
    optimizer.step()
    optimizer.zero_grad()


def guard_window(guard, model, optimizer, step):
    for micro in range(ACCUMULATION):
        guard(row_losses(model, step, micro).mean()).backward()
    optimizer.step()
    optimizer.zero_grad()


def token_guard_window(guard, model, optimizer, step):
    for micro in range(ACCUMULATION):
        guard(row_losses(model, step, micro).sum(), 4).backward()
    optimizer.step()
    optimizer.zero_grad()


def check_window(guard, model, optimizer, step):
    for micro in range(ACCUMULATION):
        losses = row_losses(model, step, micro)
        if guard.check(losses.mean(), step=step).keep:
            losses.mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def make_run(model, optimizer, config, **settings):
    config = replace(config, decide=settings.pop("decide", "host"))
    settings = dict(model=model, optimizer=optimizer, accumulation=ACCUMULATION, max_grad_norm=1.0, **settings)
    return Run(None, record=False, guard=config, **settings)


def make_kit(kind):
    def make(model, optimizer, config):
        kit = kind(model, optimizer=optimizer)
        kit.build_loss_guard(config)
        return kit

    return make


HOSTS = {
    "Run": (make_run, run_window),
    "Run, the device decides": (lambda *parts: make_run(*parts, decide="device"), run_window),
    "Run, windows": (lambda *parts: make_run(*parts, normalize="window"), run_window),
    "LossKit": (make_kit(LossKit), kit_window),
    "TokenNormedLossKit": (make_kit(TokenNormedLossKit), token_kit_window),
    "guard(loss)": (lambda model, _, config: LossGuard(config, model=model), guard_window),
    "guard(loss_sum, tokens)": (lambda model, _, config: PerTokenLossGuard(config, model=model), token_guard_window),
    "check": (lambda model, _, config: LossGuard(config), check_window),
}


@pytest.fixture(autouse=True)
def _no_accelerator_is_left():
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@dataclass
class Training:
    host: str
    config: GuardConfig

    def __post_init__(self):
        torch.manual_seed(0)
        self.model = nn.Linear(3, 1, dtype=torch.float64)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.held = self.make()

    def make(self) -> Any:
        make, _ = HOSTS[self.host]
        return make(self.model, self.optimizer, self.config)

    def train(self, steps):
        _, window = HOSTS[self.host]
        for step in steps:
            window(self.held, self.model, self.optimizer, step)

    @property
    def weights(self):
        moments = [value for held in self.optimizer.state_dict()["state"].values() for value in held.values()]
        return torch.cat([value.detach().flatten() for value in (*self.model.parameters(), *moments)])

    @property
    def guard_state(self):
        state = self.held.state_dict()
        return state.get("guard", state)


def trained(host, config, steps=range(NUM_STEPS)):
    training = Training(host, config)
    training.train(steps)
    return training


def by_torch(before, after, folder):
    parts = [before.model.state_dict(), before.optimizer.state_dict(), before.held.state_dict()]
    torch.save(parts, folder / "checkpoint.pt")
    model, optimizer, held = torch.load(folder / "checkpoint.pt", weights_only=True)
    after.model.load_state_dict(model)
    after.optimizer.load_state_dict(optimizer)
    after.held.load_state_dict(held)


def by_json(before, after, folder):
    (folder / "state.json").write_text(json.dumps(before.held.state_dict(), allow_nan=False))
    after.model.load_state_dict(before.model.state_dict())
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.held.load_state_dict(json.loads((folder / "state.json").read_text()))


def by_accelerate(before, after, folder):
    for training, verb in ((before, "save_state"), (after, "load_state")):
        AcceleratorState._reset_state(reset_partial_state=True)
        accelerator = Accelerator(cpu=True)
        training.model, training.optimizer = accelerator.prepare(training.model, training.optimizer)
        if training is after:
            training.held = training.make()  # as a loop does: after prepare
        accelerator.register_for_checkpointing(training.held)
        getattr(accelerator, verb)(str(folder))
    # Nothing is in the file that a strict reader would refuse.
    saved = torch.load(folder / "custom_checkpoint_0.pkl", weights_only=True)
    assert saved == before.held.state_dict()


FILES = {"torch.save": by_torch, "json": by_json, "accelerate": by_accelerate}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize(
    "rule", [dict(multiplier=MULTIPLIER), dict(rule="robust", min_history=4)], ids=["mean", "robust"]
)
@pytest.mark.parametrize("host", HOSTS)
def test_a_training_that_goes_on_from_its_files_is_the_uninterrupted_one(host, rule, file, tmp_path):
    # given
    config = GuardConfig(**rule)
    whole = trained(host, config)
    before = trained(host, config, range(SAVED_AFTER))
    after = Training(host, config)
    # when
    FILES[file](before, after, tmp_path)
    after.train(range(SAVED_AFTER, NUM_STEPS))
    # then
    assert torch.equal(after.weights, whole.weights)
    assert after.guard_state == whole.guard_state
    assert after.guard_state["num_skipped"] == len(SPIKES)


@pytest.mark.parametrize("host", HOSTS)
def test_without_its_state_it_would_be_another(host):
    """What the test above would not notice: that the history is what makes the difference."""
    config = GuardConfig(multiplier=MULTIPLIER)
    whole, before = trained(host, config), trained(host, config, range(SAVED_AFTER))
    after = Training(host, config)
    after.model.load_state_dict(before.model.state_dict())
    after.optimizer.load_state_dict(before.optimizer.state_dict())
    after.train(range(SAVED_AFTER, NUM_STEPS))
    assert not torch.equal(after.weights, whole.weights)
    assert after.guard_state["num_skipped"] < len(SPIKES)


@pytest.mark.parametrize("host", HOSTS)
def test_a_state_holds_plain_values_only(host):
    def check(value):
        assert type(value) in (dict, list, str, int, float, bool, type(None)), value
        for part in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(part)

    check(trained(host, GuardConfig(multiplier=MULTIPLIER)).held.state_dict())


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (dict(rule="robust"), "rule 'robust'; here rule is 'mean'"),
        (dict(multiplier=MULTIPLIER + 1), "multiplier 4.0; here multiplier is 3.0"),
        (None, "version"),
    ],
    ids=["rule", "setting", "version"],
)
def test_a_state_of_another_rule_or_version_is_refused_and_nothing_changes(host, change, told):
    # given
    config = GuardConfig(multiplier=MULTIPLIER)
    training = trained(host, config, range(SAVED_AFTER))
    before = training.held.state_dict()
    state = trained(host, GuardConfig(**change) if change else config, range(1)).held.state_dict()
    if change is None:
        state["version"] = 99
    # when
    with pytest.raises(UsageError, match=told):
        training.held.load_state_dict(state)
    # then
    assert training.held.state_dict() == before
    training.train(range(SAVED_AFTER, NUM_STEPS))
    assert torch.equal(training.weights, trained(host, config).weights)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("state", [None, [], "a state", {}], ids=repr)
def test_what_is_no_state_is_refused(host, state):
    with pytest.raises(UsageError, match=r"no version|not a dict|version None"):
        Training(host, GuardConfig(multiplier=MULTIPLIER)).held.load_state_dict(state)


@pytest.mark.parametrize(("saved_by", "loaded_by"), list(itertools.permutations(["Run", "Run, the device decides"])))
def test_a_state_moves_between_a_host_and_a_device_that_decide(saved_by, loaded_by, tmp_path):
    config = GuardConfig(multiplier=MULTIPLIER)
    before, after = trained(saved_by, config, range(SAVED_AFTER)), Training(loaded_by, config)
    by_torch(before, after, tmp_path)
    after.train(range(SAVED_AFTER, NUM_STEPS))
    assert torch.equal(after.weights, trained(saved_by, config).weights)


@pytest.mark.parametrize("is_of_another", [True, False], ids=["another version", "too late"])
def test_a_state_that_is_refused_hides_no_lockup_that_nobody_heard_of(is_of_another):
    # given a device whose host has yet to hear that it locked up
    config = GuardConfig(multiplier=MULTIPLIER, max_consecutive_skips=1, on_lockup="raise")
    training = Training("Run, the device decides", config)
    state = training.held.state_dict()
    training.train(range(SAVED_AFTER - 1))
    model, run = training.model, training.held
    for _ in range(ACCUMULATION):
        run.micro_batch(1e3 * row_losses(model, 0, 0), per="sample", rows=range(4)).backward()
    # when
    with pytest.raises(UsageError):
        run.load_state_dict(state | {"version": 99} if is_of_another else state)
    # then
    with pytest.raises(GuardLockupError):
        run.close()
