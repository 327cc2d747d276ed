"""The tests of the recipe: what they need of the place where they run."""

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]

# `pytest` alone, unlike `python -m pytest`, leaves the current folder off the import path.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second one only spins on a model of this size
    yield
    torch.set_num_threads(threads)
