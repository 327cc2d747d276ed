"""What every test may rely on: a home of its own, no network, one thread, one voice.

Set before anything heavy is imported: torch and numpy read their thread count once, and the Hugging Face libraries
their folders and their offline switch. Through `os.environ`, so that processes a test starts inherit it.
"""

import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

_scratch = tempfile.TemporaryDirectory(prefix="trimtab-tests-")

os.environ |= {
    # Two workers on two cores: a second OpenMP thread each only spins (measured: 4 x the CPU time on a busy machine).
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Anything that looks for a user's files finds an empty home, in this process and in those it starts.
    "HOME": _scratch.name,
    "XDG_DATA_HOME": f"{_scratch.name}/data",
    "XDG_CACHE_HOME": f"{_scratch.name}/cache",
    "HF_HOME": f"{_scratch.name}/huggingface",
    "TRIMTAB_HOME": f"{_scratch.name}/trimtab",
    # A test that asks the network for something fails at once instead of waiting.
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
}
# A developer's own settings must not decide a test.
for name in ("TRIMTAB", "NO_COLOR", "FORCE_COLOR", "COLUMNS"):
    os.environ.pop(name, None)

# No deadline: the time of one example says more about the machine's other work than about the code.
hypothesis.settings.register_profile(
    "quick",
    derandomize=True,
    max_examples=60,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.register_profile(
    "long",
    max_examples=600,
    deadline=None,
    print_blob=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("quick")


_NOBODY = 65534

_connect = socket.socket.connect


def _connect_on_this_machine(self: socket.socket, address: Any) -> None:
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
        raise AssertionError(f"a test asked the network: {address}")
    _connect(self, address)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket.socket, "connect", _connect_on_this_machine)


@pytest.fixture(autouse=True)
def trimtab_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry folder for this test alone; also what `TRIMTAB_HOME` says in processes it starts."""
    home = tmp_path_factory.mktemp("trimtab-home")
    monkeypatch.setenv("TRIMTAB_HOME", str(home))
    return home


@pytest.fixture
def read_only_folder() -> Iterator[Path]:
    """A folder that can be looked into and not written; a test that runs as root goes on as nobody, whom it binds."""
    folder = Path(tempfile.mkdtemp(prefix="trimtab-read-only-"))
    folder.chmod(0o555)
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(_NOBODY)
    try:
        yield folder
    finally:
        if is_root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)


@pytest.fixture(scope="module")
def rank_pair() -> Iterator[Callable[..., Any]]:
    """Starts pairs of gloo processes that serve this test file: `rank_pair(worker_file).call("function", ...)`.

    With `rank_pair(worker_file, num_ranks=4)` they are four.
    """
    spec = importlib.util.spec_from_file_location("rank_pair", Path(__file__).with_name("rank_pair.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    pairs: list[Any] = []

    def start(worker: Path, *, num_ranks: int = 2) -> Any:
        pairs.append(module.RankPair(worker, num_ranks=num_ranks))
        return pairs[-1]

    yield start
    for pair in pairs:
        pair.close()


@pytest.fixture(autouse=True)
def _a_voice_that_has_said_nothing() -> None:
    # Imported here: the tests of `import trimtab` itself must be able to run although this line would fail.
    from trimtab import notices

    notices.forget_said()


def pytest_unconfigure() -> None:
    _scratch.cleanup()
