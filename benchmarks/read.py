"""What `trimtab rewind` costs on long runs: CPU seconds and peak memory, on our own log and on a rewind.jsonl.

    python benchmarks/read.py [--sizes N N ...] [--repeats N] [--other-python PATH] [--json FILE]

Logs of 10 thousand, 100 thousand and a million micro-batches of 8 rows, one a step, one row of one of them bad, are
written to a temporary folder (0.5 GB), ours by the real recorder. Each reading is a process of its own; medians of the
repeats, which take turns. Beside it: a bare loop of `json.loads` over the same rewind.jsonl, and where an environment
is given that holds it, the `rewind` of soup-cli (made with: python -m venv DIR; DIR/bin/pip install soup-cli==0.77.0)
on the same file.

Must, at a million: our own log 2 s of CPU and 320 MB; rewind.jsonl 5 s and 400 MB.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# This process imports nothing heavy: what it holds when it starts another counts as that one's memory.

ROWS = 8
BATCH = 4_096
BAD_ROW = 3
MUST = {"own log": "2 s, 320 MB", "rewind.jsonl": "5 s, 400 MB"}
TRIMTAB = str(Path(sys.executable).with_name("trimtab"))
JSON_LOOP = "import json, sys\nfor line in open(sys.argv[1]): json.loads(line)"
REGISTER_OTHER = """
import sys
from soup_cli.experiment.tracker import ExperimentTracker
ExperimentTracker().start_run({"output": sys.argv[1]}, "cpu", "cpu", {}, run_id="bench")
"""


def make_logs(folder: Path, num_micros: int) -> None:
    """Writes the same records twice; runs in a process of its own."""
    import numpy as np

    from trimtab.log.folder import create_run
    from trimtab.recorder import Recorder
    from trimtab.values import MicroBatch, RunHeader, StepRow

    rng = np.random.default_rng(0)
    recorder = Recorder(create_run(folder / "own", RunHeader(run_id="bench", backend="benchmark", created=1.0)))
    (folder / "lines").mkdir()
    with (folder / "lines" / "rewind.jsonl").open("w") as file:
        header = {"kind": "header", "version": 1, "backend": "torch", "task": "sft", "n_rows": 1_000_000}
        header |= {"batch_size": ROWS, "grad_accum": 1, "dataset_fingerprint": "f" * 64, "created": 1.0}
        file.write(json.dumps(header) + "\n")
        for start in range(0, num_micros, BATCH):
            shape = (min(BATCH, num_micros - start), ROWS)
            rows, tokens = rng.integers(0, 1_000_000, shape), rng.integers(50, 301, shape)
            sums = ((2 + 0.3 * rng.standard_normal(shape)) * tokens).astype(np.float32)
            bad = num_micros * 3 // 4 - start
            if 0 <= bad < shape[0]:
                sums[bad, BAD_ROW] = 60 * tokens[bad, BAD_ROW]
            means = sums.astype(np.float64) / tokens
            for place in range(shape[0]):
                step = start + place + 1
                recorder.put(MicroBatch(step, 0, rows[place], sums[place], tokens[place]))
                recorder.put(
                    StepRow(
                        step,
                        float(sums[place].sum() / tokens[place].sum()),
                        1.0,
                        1e-4,
                        num_tokens=int(tokens[place].sum()),
                    )
                )
                line = {"kind": "batch", "step": step, "micro": 0, "rows": rows[place].tolist()}
                line |= {"row_loss": means[place].tolist(), "row_tokens": tokens[place].tolist()}
                file.write(json.dumps(line) + "\n")
            recorder.flush(60)
    recorder.close(timeout_s=600)
    assert recorder.off_reason is None
    assert recorder.num_dropped == 0


def size_of(place: Path) -> int:
    return (
        sum(path.stat().st_size for path in place.rglob("*") if path.is_file())
        if place.is_dir()
        else place.stat().st_size
    )


def measure(command: list[str], environ: dict[str, str]) -> dict[str, float]:
    """CPU and wall seconds and peak megabytes of one process; its standard output must not be empty."""
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, used = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:3])} failed: {process.stderr.read().decode()[-2000:]}")
    process.stderr.close()
    return {"cpu_s": used.ru_utime + used.ru_stime, "wall_s": wall, "peak_mb": used.ru_maxrss * 1024 / 1e6}


def commands_for(
    folder: Path, *, other_python: str | None, environ: dict[str, str]
) -> dict[str, tuple[Path, list[str]]]:
    """What to measure: a name, the log it reads, the command."""
    own, lines = folder / "own", folder / "lines" / "rewind.jsonl"
    commands = {
        "own log": (own, [TRIMTAB, "rewind", str(own), "--json", "-"]),
        "rewind.jsonl": (lines, [TRIMTAB, "rewind", str(lines), "--json", "-"]),
        "json.loads loop": (lines, [sys.executable, "-S", "-c", JSON_LOOP, str(lines)]),
    }
    if other_python:
        subprocess.run([other_python, "-c", REGISTER_OTHER, str(lines.parent)], check=True, env=environ)
        soup = str(Path(other_python).with_name("soup"))
        commands["soup-cli"] = (lines, [soup, "rewind", "bench", "--no-preview"])
    return commands


def measure_size(num_micros: int, *, repeats: int, other_python: str | None) -> list[dict[str, object]]:
    """One line a command, of logs of one size."""
    with tempfile.TemporaryDirectory(prefix="trimtab-read-") as scratch:
        environ = {
            **os.environ,
            "HOME": scratch,
            "TRIMTAB_HOME": scratch,
            "SOUP_DB_PATH": f"{scratch}/soup.db",
            "OMP_NUM_THREADS": "1",
        }
        folder = Path(scratch)
        subprocess.run(
            [sys.executable, __file__, "--make", scratch, "--sizes", str(num_micros)], check=True, env=environ
        )
        commands = commands_for(folder, other_python=other_python, environ=environ)
        taken = {name: [] for name in commands}
        for repeat in range(repeats):
            for name, (_, command) in commands.items():
                # What is only a yardstick is measured once: it takes most of the time.
                if repeat == 0 or name in MUST:
                    taken[name].append(measure(command, environ))
        return [
            {
                "num_micros": num_micros,
                "read": name,
                "log_mb": size_of(commands[name][0]) / 1e6,
                **{figure: statistics.median(run[figure] for run in runs) for figure in runs[0]},
                "cpu_s_highest": max(run["cpu_s"] for run in runs),
            }
            for name, runs in taken.items()
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 1_000_000], metavar="N")
    parser.add_argument("--repeats", type=int, default=3, help="readings of ours a log (3)")
    parser.add_argument("--other-python", metavar="PATH", help="an interpreter that has soup-cli")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    parser.add_argument("--make", metavar="FOLDER", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.make:
        make_logs(Path(arguments.make), arguments.sizes[0])
        return

    version = importlib.metadata.version
    machine = (
        f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}; Python "
        f"{platform.python_version()}, trimtab {version('trimtab')}, duckdb {version('duckdb')}, numpy "
        f"{version('numpy')}; {time.strftime('%Y-%m-%d', time.gmtime())}, load {os.getloadavg()[0]:.1f}"
    )
    print(f"{machine}; medians of {arguments.repeats}\n")
    print("| micro-batches x 8 rows | read | log MB | CPU s (highest) | wall s | peak MB | must reach |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    figures = []
    for num_micros in arguments.sizes:
        for line in measure_size(num_micros, repeats=arguments.repeats, other_python=arguments.other_python):
            figures.append(line)
            must = MUST.get(line["read"], "-") if num_micros == 1_000_000 else "-"
            print(
                f"| {num_micros:,} | {line['read']} | {line['log_mb']:.1f} | {line['cpu_s']:.2f} "
                f"({line['cpu_s_highest']:.2f}) | {line['wall_s']:.2f} | {line['peak_mb']:.0f} | {must} |",
                flush=True,
            )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n")


if __name__ == "__main__":
    main()
