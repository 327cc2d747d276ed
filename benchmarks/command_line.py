"""What a person waits for: `trimtab --help`, and `trimtab rewind` on a small run, beside a bare interpreter.

    python benchmarks/command_line.py [--repeats N] [--json FILE]

The commands take turns, so that a busy moment of the machine falls on all of them; medians of wall and CPU seconds.
Must: --help within 3 x `python -c pass` + 0.06 s; rewind on 360 steps of 8 rows within 0.6 s.
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import trimtab
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.values import MicroBatch, RunHeader, StepRow

NUM_STEPS = 360
ROWS = 8
TRIMTAB = str(Path(sys.executable).with_name("trimtab"))


def record(out: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = create_run(out, RunHeader(run_id="bench", backend="benchmark", created=1.0))
    recorder = Recorder(folder)
    for step in range(1, NUM_STEPS + 1):
        loss = 10.0 if step == 300 else 2.0
        tokens = rng.integers(50, 301, ROWS)
        recorder.put(MicroBatch(step, 0, rng.integers(0, 2880, ROWS), (tokens * loss).astype(np.float32), tokens))
        recorder.put(StepRow(step, loss, 1.0, 1e-4))
    recorder.close()
    return folder.path


def measure(command: list[str]) -> tuple[float, float]:
    """Wall and CPU seconds of one process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wall = time.perf_counter() - begin
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=21, help="turns of each command (21)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TRIMTAB_HOME"] = scratch
        run = record(Path(scratch))
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "trimtab --help": [TRIMTAB, "--help"],
            "trimtab rewind": [TRIMTAB, "rewind", str(run)],
        }
        for command in commands.values():
            measure(command)
        taken = {name: [] for name in commands}
        for _ in range(arguments.repeats):
            for name, command in commands.items():
                taken[name].append(measure(command))
    figures = {
        name: dict(zip(("wall_s", "cpu_s"), map(statistics.median, zip(*times, strict=True)), strict=True))
        for name, times in taken.items()
    }
    print(f"trimtab {trimtab.__version__}, Python {platform.python_version()}, {platform.machine()}, "
          f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; medians of {arguments.repeats}")  # fmt: skip
    for name, figure in figures.items():
        print(f"{name:16} wall {figure['wall_s']:.3f} s   CPU {figure['cpu_s']:.3f} s")
    bound = 3 * figures["python -c pass"]["wall_s"] + 0.06
    print(f"--help against its bound of {bound:.3f} s: {figures['trimtab --help']['wall_s'] / bound:.2f}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
