"""Logs of a recorder, and checkpoints written as the format is described: no code that is tested writes them."""

import json
import zlib
from pathlib import Path

from trimtab.gates.checkpoint import CHECKPOINT_GATES
from trimtab.gates.evidence import read_evidence
from trimtab.gates.looked_at import look_for_checkpoint
from trimtab.log.folder import continue_run, create_run
from trimtab.log.reader import open_log
from trimtab.recorder import Recorder
from trimtab.values import Event, RunHeader, StepRow

LAST = 60
PARTS = {"model": "model.pt", "optimizer": "optimizer.pt", "step": "run.pt", "rng": "rank_0.pt"}
PROBE = {"shape": "peaked", "entropy": 3.2, "cv": 11.0, "num_nonfinite": 0, "vocabulary_size": 256}


def record(
    out,
    steps=range(1, LAST + 1),
    *,
    run_id="r-1",
    events=(),
    folder=None,
    header_out=None,
    losses=None,
    norms=None,
    evals=None,
):
    """An attempt of a run, closed in good order; gives its folder. `evals`: losses of evaluations, by step."""
    header = RunHeader(run_id=run_id, backend="torch", created=1.0, out=str(header_out or out))
    folder = create_run(out, header) if folder is None else continue_run(out, run_id, header)
    recorder = Recorder(folder, seal_bytes=None)
    for step in steps:
        recorder.put(
            StepRow(step, (losses or {}).get(step, 2.0 + 0.01 * (step % 7)), (norms or {}).get(step, 1.0), 1e-3)
        )
        if evals and step in evals:
            recorder.put(Event("evaluation", step, 1.0, {"loss": evals[step]}))
    for kind, facts in events:
        recorder.put(Event(kind, steps[-1], 2.0, facts))
    recorder.put(Event("end", steps[-1], 3.0, {"reason": "closed"}))
    recorder.close(timeout_s=30)
    return folder


def save(out, step=LAST, *, name=None, run_id="r-1", parts=PARTS, serial=None, salt=b"", **fields):
    """A checkpoint folder; gives its path and the checksum of its manifest."""
    path = Path(out) / (name or f"step_{step}")
    path.mkdir(parents=True)
    files = []
    for file in sorted({*PARTS.values(), *parts.values()}):
        content = file.encode() * 40 + salt
        (path / file).parent.mkdir(exist_ok=True)
        (path / file).write_bytes(content)
        files.append({"path": file, "size_bytes": len(content), "crc32": zlib.crc32(content)})
    manifest = {
        "version": 1,
        "saver": "trimtab",
        "step": step,
        "run_id": run_id,
        "serial": serial or step,
        "healthy": True,
        "parts": {part: [file] for part, file in parts.items()},
        "files": files,
        **fields,
    }
    spelled = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    crc32 = zlib.crc32(spelled)
    (path / "trimtab_manifest.json").write_bytes(b'{"manifest": ' + spelled + b', "crc32": %d}\n' % crc32)
    return path, crc32


def trip(crc32, **changes):
    """What `trimtab.checkpoint.round_trip` records of a checkpoint."""
    facts = {
        "step": LAST,
        "name": f"step_{LAST}",
        "manifest_crc32": crc32,
        "same": True,
        "differences": [],
        "num_differences": 0,
        "parts": ["model", "optimizer", "step"],
        "probe": PROBE,
        "probe_problem": None,
    }
    return "round_trip", {**facts, **changes}


def judge(run, folder, **more):
    """What each gate of the checkpoint says by its name, and the path of the checkpoint."""
    evidence = read_evidence(open_log(run.path))
    looked_at = look_for_checkpoint(evidence, folder, **more)
    path = None if looked_at.chosen is None else str(looked_at.chosen.info.path)
    return {name: gate(evidence, looked_at) for name, gate in CHECKPOINT_GATES.items()} | {"path": path}


def statuses(found):
    return {name: gate.status for name, gate in found.items() if name != "path"}


ALL_PASSED = dict.fromkeys(
    ("checkpoint_written", "checkpoint_whole", "checkpoint_healthy", "round_trip", "generation_probe"), "passed"
)
NOTHING_THERE = {**dict.fromkeys(ALL_PASSED, "unknown"), "checkpoint_written": "failed"}
