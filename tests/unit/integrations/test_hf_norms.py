"""Norms that are not finite, in a `Trainer`: under a gradient scaler, and of what its optimizer does not hold."""

import pytest
import torch
from accelerate.state import AcceleratorState
from torch import nn
from transformers import Trainer

import trimtab
from trimtab import GuardConfig
from trimtab.values import STEP_REASONS

DECIDERS = ["host", "device"]


class Steep(nn.Module):
    """Its loss is finite at every row; where a row holds token 126, so is its gradient, but not the norm of that."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(128, 16)
        self.head = nn.Linear(16, 128)

    def steep(self):
        weight = self.head.weight
        return 1e25 * (weight - weight.detach()).sum()

    def forward(self, input_ids, labels, attention_mask=None):
        logits = self.head(self.embedding(input_ids))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        if (input_ids == 126).any():
            loss = loss + self.steep()
        return {"loss": loss}


class BesideIt(Steep):
    """A parameter that no optimizer holds has a gradient of NaN there."""

    def __init__(self):
        super().__init__()
        self.beside = nn.Parameter(torch.ones(1))

    def steep(self):
        return 0.0 * torch.sqrt(self.beside - self.beside.detach()).sum()


class StepsTheHead(Trainer):
    def create_optimizer(self, *args, **kwargs):
        self.optimizer = torch.optim.AdamW(self.model.head.parameters(), lr=1e-3)
        return self.optimizer


@pytest.fixture
def one_precision_a_test():
    AcceleratorState._reset_state()
    yield
    AcceleratorState._reset_state()


def reasons(log):
    return [STEP_REASONS[code] for code in log.step_columns().reason]


@pytest.mark.usefixtures("one_precision_a_test")
@pytest.mark.parametrize("decide", DECIDERS)
@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
@pytest.mark.parametrize("optim", ["adamw_torch", "adamw_torch_fused"])
def test_under_a_scaler_finite_gradients_whose_norm_is_infinite_are_no_step(bench, said, optim, max_grad_norm, decide):
    # given a scaler as it would be on a GPU under fp16
    setting = dict(args=dict(max_grad_norm=max_grad_norm, optim=optim))
    bad = bench.train(setting, model=Steep()).probe.rows[5][0][0]
    trainer = bench.trainer(setting, model=Steep(), faults=dict(nan=[bad]))
    accelerator = trainer.accelerator
    accelerator.native_amp, accelerator.scaler = True, torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=6)
    accelerator.state._mixed_precision = "fp16"
    run = trimtab.attach(trainer, guard=GuardConfig(multiplier=3.0, decide=decide))
    # when
    trainer.train()
    # then
    log = trimtab.open_log(run.folder)
    assert reasons(log) == ["stepped"] * 4 + ["nonfinite_norm"] + ["stepped"] * 2
    assert len([line for line in said() if "gradient norm is inf" in line]) == 1
    assert len([event for event in log.event_list() if event.kind == "nonfinite_norm"]) == 1
    # and the scale grew as it would have done
    assert log.step_columns().loss_scale.tolist() == [64.0] * 6 + [128.0]


@pytest.mark.parametrize("decide", DECIDERS)
def test_a_parameter_that_the_optimizer_does_not_hold_costs_one_step_and_not_all(bench, decide):
    # given
    bad = bench.train(model=BesideIt(), cls=StepsTheHead).probe.rows[4][0][0]
    # when
    guard = GuardConfig(multiplier=3.0, decide=decide)
    trained = bench.train(model=BesideIt(), cls=StepsTheHead, attach=dict(guard=guard), faults=dict(nan=[bad]))
    # then
    assert reasons(trained.log) == ["stepped"] * 3 + ["nonfinite_norm"] + ["stepped"] * 3
    assert all(value.isfinite().all() for value in trained.weights.values())
