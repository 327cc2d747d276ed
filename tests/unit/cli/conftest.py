"""Logs for the command line, a current folder of their own, and the command, run in this process."""

import json
import zlib

import pytest
from click.testing import CliRunner

from trimtab.cli import main
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.registry import register
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, Manifest, dump_manifest
from trimtab.values import Event, MicroBatch, RunHeader, StepRow

HEADER = {"kind": "header", "version": 1, "backend": "torch", "dataset_fingerprint": "f" * 64, "created": 1.0}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current folder; what is written is allowed below it only."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def trimtab():
    """Runs the command line; gives exit code, standard output and standard error."""

    def run(*arguments):
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result

    return run


@pytest.fixture
def write_log(here):
    """Writes a rewind.jsonl of 60 quiet steps; `spikes` maps a step to its rows as (row, mean loss, tokens)."""

    def write(name="rewind.jsonl", *, spikes=None, num_steps=60):
        lines = [HEADER]
        for step in range(1, num_steps + 1):
            rows = (spikes or {}).get(step, [(1000 + step, 1.0, 100)])
            lines.append(
                {
                    "kind": "batch",
                    "step": step,
                    "micro": 0,
                    "rows": [row for row, _, _ in rows],
                    "row_loss": [loss for _, loss, _ in rows],
                    "row_tokens": [tokens for _, _, tokens in rows],
                }
            )
        path = here / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


@pytest.fixture
def spiky(write_log):
    """Row 13 makes step 41; row 8 of step 50 is not finite."""
    return write_log(spikes={41: [(12, 1.0, 100), (13, 8.0, 3000)], 50: [(7, 2.0, 50), (8, None, 50), (9, 4.0, 50)]})


@pytest.fixture
def record(here):
    """Records a run of 40 steps whose step 30 is made by row 17, registers it, and gives its folder.

    `left_out`: steps whose micro-batch the guard left out; `events`: what is recorded behind them; `sealed`: whether
    the journal becomes a segment.
    """

    def make(run_id, *, out="out", created=1.0, experiment=None, left_out=(), events=(), sealed=True):
        header = RunHeader(run_id=run_id, backend="torch", created=created, out=str(here / out), experiment=experiment)
        below = here / out / experiment if experiment else here / out
        folder = create_run(below, header)
        recorder = Recorder(folder) if sealed else Recorder(folder, seal_bytes=None)
        for step in range(1, 41):
            losses = [100.0, 100.0, 9_000.0 if step == 30 else 100.0]
            keep = step not in left_out
            recorder.put(MicroBatch(step, 0, [step, 100 + step, 17], losses, [50, 50, 50], keep=keep))
            recorder.put(StepRow(step, sum(losses) / 150, 1.0, 1e-3))
        for time, kind in enumerate(events):
            recorder.put(Event(kind, 40, float(time)))
        recorder.close(timeout_s=30)
        register(folder.header, folder.path)
        return folder.path

    return make


@pytest.fixture
def checkpoint(here):
    """Makes `step_<n>` as a saver leaves it, of one payload file; gives its folder."""
    serial = 0

    def make(step, *, out="runs/a", run_id="r", because=None, parts=("model", "optimizer", "step", "rng"), **more):
        nonlocal serial
        serial += 1
        folder = here / out / f"step_{step}"
        folder.mkdir(parents=True)
        payload = f"payload of {step}".encode()
        (folder / "model.pt").write_bytes(payload)
        manifest = Manifest(
            saver="trimtab",
            step=step,
            run_id=run_id,
            serial=serial,
            parts=dict.fromkeys(parts, ("model.pt",)),
            files=(FileEntry(path="model.pt", size_bytes=len(payload), crc32=zlib.crc32(payload)),),
            healthy=because is None,
            unhealthy_because=() if because is None else (because,),
            **more,
        )
        (folder / MANIFEST_NAME).write_bytes(dump_manifest(manifest))
        return folder

    return make
