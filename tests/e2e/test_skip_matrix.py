"""A skip is exact everywhere: {host} x {fault} x {place in the window} x {ranks} x {optimizer} x {who decides}.

Two gloo processes serve this file. Each call trains one host with one optimizer through every case, beside two oracles
that never saw a faulty loss (`skip_matrix_oracle.py`): a twin, to the last bit, and an update by hand, to 1e-12.
"""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HOSTS = [
    "plain",
    "DDP no_sync",
    "DDP sync each",
    "DDP find_unused",
    "DDP bucket view",
    "FSDP2 sync last",
    "FSDP2 sync each",
    "FSDP2 checkpointing",
    "FSDP2 bf16",
]
OPTIMIZERS = ["fused AdamW", "foreach AdamW", "SGD momentum"]
FAULTS = [
    "finite spike",
    "spike with inf derivative",
    "NaN activation",
    "NaN loss",
    "no tokens",
    "inf derivative",
]
PLACES = ["first", "middle", "last", "all"]
DECIDERS = ["host", "device"]


WORKER = Path(__file__).with_name("skip_matrix_worker.py")


@pytest.fixture(scope="module")
def pair(rank_pair: Callable[[Path], Any]) -> Any:
    return rank_pair(WORKER)


def num_cases(host: str, *, places: int = len(PLACES)) -> int:
    return len(FAULTS) * places * (1 if host == "plain" else 2) * len(DECIDERS)


@pytest.mark.long
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("host", HOSTS)
def test_what_was_skipped_or_dropped_leaves_no_trace(pair: Any, host: str, optimizer: str) -> None:
    # when
    first, second = pair.call("matrix", host=host, optimizer=optimizer)
    # then
    assert first["failures"] + second["failures"] == []
    assert first["num_cases"] == second["num_cases"] == num_cases(host)
    if host.startswith("DDP"):
        assert first["digests"] == second["digests"]
        assert len(set(first["digests"])) > len(first["digests"]) / 2  # they move


@pytest.mark.long
def test_it_holds_in_one_process_that_knows_of_no_other() -> None:
    # when
    done = subprocess.run([sys.executable, WORKER, *OPTIMIZERS], capture_output=True, text=True)
    # then
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert [failure for answer in answers for failure in answer["failures"]] == []
    assert [answer["num_cases"] for answer in answers] == [num_cases("plain")] * 3


@pytest.mark.parametrize(
    ("host", "optimizer", "place"),
    [
        ("plain", "foreach AdamW", "all"),
        ("DDP no_sync", "SGD momentum", "last"),
        ("FSDP2 sync last", "fused AdamW", "all"),
    ],
)
def test_a_sample_of_the_matrix_leaves_no_trace(pair: Any, host: str, optimizer: str, place: str) -> None:
    # when
    first, second = pair.call("matrix", host=host, optimizer=optimizer, places=[place])
    # then
    assert first["failures"] + second["failures"] == []
    assert first["num_cases"] == second["num_cases"] == num_cases(host, places=1)


@pytest.mark.long
@pytest.mark.parametrize("host", ["plain", "DDP no_sync", "FSDP2 sync last"])
def test_it_holds_in_float32_too(pair: Any, host: str) -> None:
    # when
    first, second = pair.call("matrix", host=host, optimizer="fused AdamW", dtype="float32", places=["middle", "all"])
    # then
    assert first["failures"] + second["failures"] == []
    assert first["num_cases"] == second["num_cases"] == num_cases(host, places=2)


@pytest.mark.long
@pytest.mark.parametrize("host", HOSTS)
def test_a_guard_that_finds_nothing_changes_nothing(pair: Any, host: str) -> None:
    for optimizer in OPTIMIZERS:
        assert pair.call("without_a_fault", host=host, optimizer=optimizer, dtype="float32") == [[], []]
