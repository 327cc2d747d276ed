"""Published curves, runs recorded by the real recorder, and outcomes made up on the spot."""

import csv
from pathlib import Path

import numpy as np
import pytest

from trimtab.calibration.values import Outcome
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.values import MicroBatch, RunHeader, StepRow

CURVES = Path(__file__).parents[2] / "data" / "curves"


@pytest.fixture(scope="session")
def curves():
    """The folder of the published curves."""
    return CURVES


@pytest.fixture(scope="session")
def curve():
    """Steps and losses of one curve; entries that the log left empty are left out."""

    def read(name):
        with (CURVES / f"{name}.csv").open() as file:
            lines = [line for line in csv.DictReader(file) if line["loss"]]
        return np.array([int(line["step"]) for line in lines]), np.array([float(line["loss"]) for line in lines])

    return read


@pytest.fixture
def record(tmp_path):
    """Records micro-batches, each as (step, micro, [(row, loss, tokens), ...]) and, if left out, False; in a folder.

    `ranks` is a list of such lists, one a rank; `steps` are step records of the first, as (step, loss, tokens).
    """

    def make(ranks, *, run_id="r", steps=()):
        folder = create_run(tmp_path / "out", RunHeader(run_id=run_id, backend="torch", world_size=len(ranks)))
        for rank, micros in enumerate(ranks):
            recorder = Recorder(folder, rank=rank)
            for step, micro, rows, *kept in micros:
                numbers, losses, tokens = (list(column) for column in zip(*rows, strict=True))
                sums = [loss * count for loss, count in zip(losses, tokens, strict=True)]
                recorder.put(MicroBatch(step, micro, numbers, sums, tokens, keep=kept != [False]))
            for step, loss, num_tokens in steps if rank == 0 else ():
                recorder.put(StepRow(step, loss, None, None, num_tokens=num_tokens))
            recorder.close(timeout_s=30)
            assert recorder.num_dropped == 0
        return folder.path

    return make


@pytest.fixture
def outcome():
    """An outcome of 20,000 losses that skipped nothing; any field can be given another value."""

    def make(rule="robust", sensitivity=10.0, window_size=None, **changes):
        name, usual = {"robust": ("k", 100), "mean": ("multiplier", 8)}[rule]
        settings = {"rule": rule, name: sensitivity, "window_size": window_size or usual}
        fields = {
            "settings": settings,
            "is_default": settings == {"rule": "robust", "k": 10.0, "window_size": 100},
            "num_judged": 20_000,
            "num_spikes": 0,
            "num_nonfinite": 0,
            "num_rebaselined": 0,
            "longest_run": 0,
            "num_caught": 0,
            "num_others": 0,
            "num_steps": 0,
            "first_steps": (),
        }
        return Outcome(**{**fields, **changes})

    return make
