"""What `watch=True` asks about: routers of one's own, and no gate of a dense model."""

import logging

import pytest
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from trimtab import Run
from trimtab.torch.router.supposed import supposed_routers


def of_class(name, base=nn.Module, **children):
    """A module of a class of this name, with these in it."""
    module = type(name, (base,), {"__module__": "own_model"})()
    for place, child in children.items():
        module.add_module(place, child)
    return module


def block(gate, name="FeedForward"):
    return of_class(name, gate=gate, experts=nn.ModuleList([nn.Linear(8, 8)]))


@pytest.mark.parametrize(
    "kind",
    ["Router", "NoisyRouter", "TopKGate", "TopkGating", "Top2Gate", "MoEGate", "SwitchGate", "Gate", "NaiveGate"],
)
def test_a_router_of_ones_own_is_asked_about(kind):
    model = nn.Sequential(block(of_class(kind)), block(of_class(kind)))
    assert supposed_routers(model) == f"{kind} (0.gate and 1.gate)"


@pytest.mark.parametrize("kind", ["MoE", "MoELayer", "SparseMoeBlock", "MixtureOfExpertsFFN"])
def test_where_none_is_called_one_the_innermost_block_is(kind):
    model = of_class("OwnMoEModel", layers=nn.Sequential(block(nn.Linear(8, 4), kind)))
    assert supposed_routers(model) == f"{kind} (layers.0)"
    assert supposed_routers(of_class("OwnMoEModel", up=nn.Linear(8, 4))) == "OwnMoEModel (the model itself)"


@pytest.mark.parametrize(
    "kind", ["GatedMLP", "GatedRMSNorm", "ForgetGate", "OutputGate", "Gate", "TopKPooling", "Demoer", "MoEmbedding"]
)
def test_what_gates_without_experts_is_not(kind):
    assert supposed_routers(nn.Sequential(of_class("Block", gate=of_class(kind), up=nn.Linear(8, 8)))) == ""


@pytest.mark.parametrize("kind", ["llama", "gemma", "gemma2", "mamba", "qwen3", "lstm"])
def test_no_dense_model_of_a_library_has_any(kind):
    if kind == "lstm":
        assert supposed_routers(nn.LSTM(8, 8)) == ""
        return
    config = AutoConfig.for_model(
        kind, vocab_size=32, hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8,
    )  # fmt: skip
    with torch.device("meta"):
        assert supposed_routers(AutoModelForCausalLM.from_config(config)) == ""


@pytest.mark.parametrize("kind", ["GraniteDoclingDensityRouter", "VitPoseNaiveMoe"])
def test_a_class_of_transformers_is_not_guessed_at(kind):
    module = type(kind, (nn.Module,), {"__module__": "transformers.models.some.modeling_some"})()
    assert supposed_routers(nn.Sequential(module)) == ""
    # and code that comes with a checkpoint is the user's
    module = type(kind, (nn.Module,), {"__module__": "transformers_modules.some.modeling_some"})()
    assert supposed_routers(nn.Sequential(module)) == f"{kind} (0)"


def test_a_parametrized_router_is_known_by_its_own_class():
    gate = of_class("OwnRouter", base=_Linear)
    nn.utils.parametrizations.weight_norm(gate)
    assert supposed_routers(block(gate)) == "OwnRouter (gate)"


class _Linear(nn.Linear):
    def __init__(self):
        super().__init__(8, 4)


def test_watch_true_says_which_class_and_what_to_pass(caplog):
    caplog.set_level(logging.INFO, logger="trimtab")
    model = block(of_class("OwnRouter", base=_Linear))
    with Run(None, record=False, model=model, optimizer=torch.optim.SGD(model.parameters()), watch=True) as run:
        for _ in range(2):
            run.micro_batch(model.gate(torch.ones(3, 8)).sum(-1), per="sample", rows=range(3)).backward()
            run.step()
    [line] = [line for line in caplog.messages if "no router" in line]
    assert line == (
        "Trimtab watches no router of this model, and does not know these: OwnRouter (gate). If they route tokens to "
        "experts, pass watch=trimtab.moe.RouterWatch(model, routers=..., top_k=...), with the modules that give logits."
    )
