"""Two windows of the training loop that FACTORY builds run, and move the model; no more is shown here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import trimtab
from trimtab.proof import GUARDS, Factory, load_factory

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
def test_two_windows_train(build: Factory, guard: trimtab.GuardConfig | None) -> None:
    """Every parameter stays finite, and one at least has moved."""
    torch.manual_seed(0)
    loop = build(guard)
    before = [parameter.detach().clone() for parameter in loop.model.parameters()]
    loop.train(loop.windows[:2])
    after = [parameter.detach() for parameter in loop.model.parameters()]
    assert all(bool(parameter.isfinite().all()) for parameter in after)
    assert any(not torch.equal(old, new) for old, new in zip(before, after, strict=True))
