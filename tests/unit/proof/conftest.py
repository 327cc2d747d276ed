"""The loops of `tests/proof`, and a proof of one in this process, case by case."""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from trimtab.proof.cases import Case, cases_of
from trimtab.proof.checks import judge
from trimtab.proof.factory import load_factory
from trimtab.proof.trial import run_trial

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A factory of `tests/proof` by its name, such as "good:run_loop"."""
    monkeypatch.chdir(ROOT)
    # A loop this small is not worth a second thread, which only spins on a busy machine.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield lambda name: load_factory(f"tests.proof.{name}")
    torch.set_num_threads(threads)


def alone(factory: Any) -> Callable[[Any], Any]:
    """Runs trials of one process here, each once."""
    return functools.cache(lambda trial: (run_trial(factory, trial),))


@pytest.fixture
def proven() -> Callable[..., list[Any]]:
    """The results of all cases of one process, or of those that are asked for."""

    def prove(factory: Any, *, only: Callable[[Case], bool] = lambda case: True) -> list[Any]:
        run = alone(factory)
        return [judge(case, run) for case in cases_of(1) if only(case)]

    return prove
