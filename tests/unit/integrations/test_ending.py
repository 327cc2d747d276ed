"""The last line of a training among several ranks."""

import logging
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from trimtab.integrations import ending
from trimtab.integrations.ending import tell_findings
from trimtab.log.folder import RunFolder, create_run
from trimtab.recorder import Recorder
from trimtab.values import MicroBatch, RunHeader


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.INFO, logger="trimtab")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, RunHeader(run_id="r", backend="torch", created=1.7e9, world_size=2))


def recorder_of(folder: RunFolder, *, rank: int, planted: bool) -> Recorder:
    """A rank that has recorded thirty steps of one row each, one of them far out where planted."""
    recorder = Recorder(folder, rank=rank)
    for step in range(1, 31):
        loss = 90.0 if planted and step == 28 else 2.0 + step % 3 / 100
        recorder.put(MicroBatch(step, 0, np.array([2 * step + rank]), np.array([loss]), np.array([1])))
    return recorder


def test_rank_0_waits_until_the_others_have_written_what_they_hold(
    folder: RunFolder, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a rank 1 that closes while rank 0 is looking already
    recorder_of(folder, rank=0, planted=False).close()
    other = recorder_of(folder, rank=1, planted=True)
    looked = threading.Event()
    ranks_writing = ending.ranks_writing

    def looking(path: Path) -> list[int]:
        still = ranks_writing(path)
        if still:
            looked.set()
        return still

    monkeypatch.setattr(ending, "ranks_writing", looking)
    closing = threading.Thread(target=lambda: looked.wait(30) and other.close())
    closing.start()
    # when
    tell_findings(folder.path, ended_by="closed")
    closing.join()
    # then its spike is counted
    assert said() == ["1 finding: trimtab rewind r"]


def test_of_a_rank_that_writes_for_too_long_it_is_said(
    folder: RunFolder, said: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "_PATIENCE_S", 0.0)
    recorder_of(folder, rank=0, planted=True).close()
    other = recorder_of(folder, rank=1, planted=False)
    assert other.flush(30)

    tell_findings(folder.path, ended_by="closed")
    other.close()

    assert said() == ["1 finding, without the last of rank 1, still writing: trimtab rewind r"]
