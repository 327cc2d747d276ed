"""The parts of the training loop that FACTORY builds are there; that they work is for the proof to show."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import trimtab
from trimtab.proof import GUARDS, Factory, build_loop, load_factory

FACTORY = "module:factory"
ROOT = Path(__file__).resolve().parents[1]
"""The folder that FACTORY is imported from."""


@pytest.fixture(scope="module")
def build() -> Iterator[Factory]:
    """The factory, imported with ROOT as the current folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        yield load_factory(FACTORY)


@pytest.mark.parametrize("guard", GUARDS.values(), ids=[f"guard {name}" for name in GUARDS])
def test_the_factory_builds_a_loop_that_can_be_proven(build: Factory, guard: trimtab.GuardConfig | None) -> None:
    """With enough windows and micro-batches, whatever the guard; what is missing is said."""
    torch.manual_seed(0)
    build_loop(build, guard)


def test_the_optimizer_holds_every_trainable_parameter(build: Factory) -> None:
    """A parameter that nobody steps would be proven whatever the guard does."""
    torch.manual_seed(0)
    loop = build(None)
    stepped = {id(parameter) for group in loop.optimizer.param_groups for parameter in group["params"]}
    trained = {name: parameter for name, parameter in loop.model.named_parameters() if parameter.requires_grad}
    assert [name for name, parameter in trained.items() if id(parameter) not in stepped] == []
