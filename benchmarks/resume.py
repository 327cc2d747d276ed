"""What the checks after loading and `trimtab compare` cost on long logs: CPU seconds and peak memory.

    python benchmarks/resume.py [--rows N] [--compared-rows N] [--repeats N] [--json FILE]

`read back` is what a resumed run reads of its log before it trains: the log has `--rows` rows, 8 a step, and the
checkpoint lies in its middle; the memory is what the reading adds to that of the process. `compare` is the command on
two equal logs of `--compared-rows` rows, 50 a step; the memory is that of the whole process. Logs are written to a
temporary folder by the real recorder; each reading is a process of its own, and figures are medians of the repeats.
"""

import argparse
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

FLUSH_EVERY = 4_096
SMALL = 80
ROWS_A_STEP, COMPARED_ROWS_A_STEP = 8, 50
TRIMTAB = str(Path(sys.executable).with_name("trimtab"))


def make_log(folder: Path, num_rows: int, rows_a_step: int) -> None:
    """Four shuffled epochs; runs in a process of its own."""
    import numpy as np

    from trimtab.log.folder import create_run
    from trimtab.recorder import Recorder
    from trimtab.values import MicroBatch, RunHeader, StepRow

    rng = np.random.default_rng(0)
    order = np.concatenate([rng.permutation(max(rows_a_step, num_rows // 4)) for _ in range(4)])
    recorder = Recorder(create_run(folder, RunHeader(run_id="bench", backend="benchmark", created=1.0)))
    tokens = np.full(rows_a_step, 100)
    for step in range(1, num_rows // rows_a_step + 1):
        rows = order[(step - 1) * rows_a_step : step * rows_a_step]
        sums = (2 + rng.random(rows.size)).astype(np.float32) * 100
        recorder.put(MicroBatch(step, 0, rows, sums, tokens[: rows.size]))
        recorder.put(StepRow(step, float(sums.mean()) / 100, 1.0, 1e-4, num_tokens=100 * rows.size))
        if step % FLUSH_EVERY == 0:
            recorder.flush(60)
    recorder.close(timeout_s=600)
    assert recorder.off_reason is None
    assert recorder.num_dropped == 0


def read_back(folder: Path, num_rows: int, *, small: Path) -> dict[str, float]:
    """Reads what a run reads that goes on in the middle of the log; a small log first, for what is imported then."""
    from trimtab.first_steps.read_back import read_log
    from trimtab.resume.around import Around
    from trimtab.resume.before import Before

    read_log(small, Around(step=2, before=Before(attempt=1)), num_rows=SMALL, num_ranks=1)
    around = Around(step=num_rows // ROWS_A_STEP // 2 + 1, before=Before(attempt=1))
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, cpu = resident("VmRSS"), time.process_time()
    found = read_log(folder, around, num_rows=max(ROWS_A_STEP, num_rows // 4), num_ranks=1)
    cpu, peak = time.process_time() - cpu, resident("VmHWM") - before
    assert found.rows.before.size
    return {"cpu_s": cpu, "peak_mb": peak / 1e6, "num_rows": found.rows.before.size}


def resident(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def compare(folders: list[Path]) -> dict[str, float]:
    process = subprocess.Popen([TRIMTAB, "compare", *folders], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return {"cpu_s": used.ru_utime + used.ru_stime, "peak_mb": used.ru_maxrss * 1024 / 1e6}


def of_its_own(*task: object) -> str:
    """Does a part of this script in a process of its own; gives what that writes."""
    command = [sys.executable, __file__, "--task", *map(str, task)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_800_000)
    parser.add_argument("--compared-rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--task", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.task:
        name, folder, *numbers = args.task
        if name == "make":
            make_log(Path(folder), *map(int, numbers))
        else:
            print(json.dumps(read_back(Path(folder), int(numbers[0]), small=Path(numbers[1]))))
        return
    with tempfile.TemporaryDirectory() as temporary:
        small, long, *pair = (Path(temporary, name) for name in ("small", "long", "a", "b"))
        of_its_own("make", small, SMALL, ROWS_A_STEP)
        of_its_own("make", long, args.rows, ROWS_A_STEP)
        for folder in pair:
            of_its_own("make", folder, args.compared_rows, COMPARED_ROWS_A_STEP)
        of_read_back, of_compare = [], []
        for _ in range(args.repeats):
            runs = [folder / "trimtab" / "bench" for folder in (long, small)]
            of_read_back.append(json.loads(of_its_own("read back", runs[0], args.rows, runs[1])))
            of_compare.append(compare(pair))
    found = {"rows": args.rows, "compared_rows": args.compared_rows, "python": platform.python_version()}
    print("| what | CPU s | peak MB |\n| --- | --- | --- |")
    for name, figures in (("read back", of_read_back), ("compare", of_compare)):
        cpu, peak = (statistics.median(one[key] for one in figures) for key in ("cpu_s", "peak_mb"))
        print(f"| {name} | {cpu:.2f} | {peak:.0f} |")
        found[name] = {"cpu_s": cpu, "peak_mb": peak, "runs": figures}
    if args.json:
        args.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
