"""The tests of the recipe: what they need of the place where they run, and trainings that many of them look at."""

import shutil
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]

# `pytest` alone, unlike `python -m pytest`, leaves the current folder off the import path.
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a second one only spins on a model of this size
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def _own_home(tmp_path_factory):
    """A list of runs for these tests alone, also in the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRIMTAB_HOME", str(tmp_path_factory.mktemp("trimtab-home")))
        yield


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A folder with 120 steps in one go, and the lines that were told; to look at, and not to go on in."""
    return _trained(tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def _halfway(tmp_path_factory):
    return _trained(tmp_path_factory.mktemp("halfway"), stop_at=60)


@pytest.fixture
def copied(tmp_path):
    """Gives a copy of a folder, to go on in."""
    return lambda folder: Path(shutil.copytree(folder, tmp_path / "copy"))


@pytest.fixture
def halfway(_halfway, copied):
    """A folder of one's own with the first 60 of those steps, stopped in good order."""
    folder, _ = _halfway
    return copied(folder)


def _trained(out, **settings):
    from recipes.twin_moe.tests.small_twin import small
    from recipes.twin_moe.train import train

    lines = []
    train(small(), out=out, tell=lines.append, **settings)
    return out, lines
