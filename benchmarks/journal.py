"""What recording costs: bytes a row record, and microseconds a micro-batch on either side of the queue.

    python benchmarks/journal.py [--micros N] [--repeats N] [--json FILE]

Micro-batches of 8 rows: random row ids below a million, random float32 losses, 50 to 300 tokens. Medians of several
repeats; CPU time of the thread that does the work, and wall time beside it, because other work on the machine adds to
the latter. Aim: 8 bytes (must: 10), 1 us put (must: 5), 2 us to encode and write (must: 5).
"""

import argparse
import functools
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import trimtab
from trimtab.log.folder import create_run
from trimtab.log.frames import deflate
from trimtab.log.journal import JournalWriter
from trimtab.log.reader import open_log
from trimtab.log.records import row_blocks, step_blocks
from trimtab.recorder import Recorder
from trimtab.values import MicroBatch, RunHeader, StepRow

ROWS_PER_MICRO = 8
BLOCK = 256


def make_micros(accumulation: int, num_micros: int) -> list[MicroBatch]:
    rng = np.random.default_rng(0)
    return [
        MicroBatch(
            1 + place // accumulation,
            place % accumulation,
            rng.integers(0, 1_000_000, ROWS_PER_MICRO),
            (rng.random(ROWS_PER_MICRO) * 10 * rng.integers(50, 301, ROWS_PER_MICRO)).astype(np.float32),
            rng.integers(50, 301, ROWS_PER_MICRO),
            reason=7,
        )
        for place in range(num_micros)
    ]


def make_steps(num_steps: int) -> list[StepRow]:
    rng = np.random.default_rng(1)
    return [
        StepRow(
            step,
            np.float32(rng.random() * 5),
            np.float32(rng.random()),
            1e-4 * (1 - step / num_steps),
            clipped=bool(step % 2),
            wall_s=0.1 + rng.random() * 0.01,
            num_tokens=int(rng.integers(400, 2400)),
        )
        for step in range(1, num_steps + 1)
    ]


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """CPU seconds of this thread, and wall seconds."""
    cpu, wall = time.thread_time(), time.perf_counter()
    work()
    return time.thread_time() - cpu, time.perf_counter() - wall


def measure_write(folder: Path, micros: list[MicroBatch], steps: list[StepRow]) -> tuple[float, float, float]:
    """Bytes a row record with its step records, then CPU and wall microseconds a micro-batch, all in this thread."""
    path = folder / f"{len(list(folder.iterdir()))}.journal"
    writer = JournalWriter(path)
    per_block = len(steps) * BLOCK // len(micros)

    def work() -> None:
        for place in range(0, len(micros), BLOCK):
            first = place // BLOCK * per_block
            for block in (
                *row_blocks(micros[place : place + BLOCK])[0],
                *step_blocks(steps[first : first + per_block])[0],
            ):
                writer.append(block)

    cpu, wall = timed(work)
    writer.close()
    size = path.stat().st_size
    path.unlink()
    path.touch()
    return size / len(micros) / ROWS_PER_MICRO, cpu / len(micros) * 1e6, wall / len(micros) * 1e6


def deflate_whole(parts: Sequence[bytes]) -> bytes:
    return zlib.compress(b"".join(parts), 1, wbits=-15)


def deflate_by_plane(parts: Sequence[bytes], *, level: int) -> bytes:
    packer = zlib.compressobj(level, zlib.DEFLATED, -15)
    out = [packer.compress(part) + packer.flush(zlib.Z_BLOCK) for part in parts]
    return b"".join(out) + packer.flush()


COMPRESSIONS: dict[str, Callable[[Sequence[bytes]], bytes]] = {
    "run-length, a table a plane (ours)": deflate,
    "level 1, one stream": deflate_whole,
    "level 1, a table a plane": functools.partial(deflate_by_plane, level=1),
    "level 6, a table a plane": functools.partial(deflate_by_plane, level=6),
}


def measure_compression(micros: list[MicroBatch], pack: Callable[[Sequence[bytes]], bytes]) -> tuple[float, float]:
    """Bytes a row record, and CPU microseconds a micro-batch, of the payload alone."""
    blocks = [row_blocks(micros[place : place + BLOCK])[0][0] for place in range(0, len(micros), BLOCK)]
    sizes: list[int] = []
    cpu, _ = timed(lambda: sizes.extend(len(pack(block.parts)) for block in blocks))
    return sum(sizes) / len(micros) / ROWS_PER_MICRO, cpu / len(micros) * 1e6


def measure_put(folder: Path, micros: list[MicroBatch], *, pause_s: float) -> tuple[float, float]:
    """CPU and wall microseconds a `put`, in the putting thread, while the writer works."""
    run = create_run(folder, RunHeader(run_id=None, backend="torch", trimtab_version=trimtab.__version__))
    recorder = Recorder(run)
    cpus, walls = [], []
    for place in range(0, len(micros), 64):
        part = micros[place : place + 64]

        def work(part: list[MicroBatch] = part) -> None:
            for micro in part:
                recorder.put(micro)

        cpu, wall = timed(work)
        cpus.append(cpu / len(part) * 1e6)
        walls.append(wall / len(part) * 1e6)
        if pause_s:
            time.sleep(pause_s)
    recorder.close()
    assert recorder.off_reason is None
    assert recorder.num_dropped == 0
    return statistics.median(cpus), statistics.median(walls)


def measure_read(folder: Path) -> float:
    """Wall seconds a million row records."""
    log = open_log(folder)
    started = time.perf_counter()
    num_rows = sum(block.num_records for block in log.row_blocks())
    return (time.perf_counter() - started) / num_rows * 1e6


def spread(values: list[float]) -> dict[str, float]:
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--micros", type=int, default=20_480, help="micro-batches, a multiple of 1,024 (20480)")
    parser.add_argument("--repeats", type=int, default=9, help="repeats of each measurement (9)")
    parser.add_argument("--json", metavar="FILE", help="also write the numbers as JSON")
    arguments = parser.parse_args()
    results: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for accumulation in (4, 1):
            micros = make_micros(accumulation, arguments.micros)
            steps = make_steps(arguments.micros // accumulation)
            for name, with_steps in (("rows", []), ("rows and steps", steps)):
                found = [measure_write(Path(scratch), micros, with_steps) for _ in range(arguments.repeats)]
                title = f"{name}, accumulation {accumulation}"
                results[f"bytes a row record: {title}"] = spread([size for size, _, _ in found])
                results[f"encode and write, CPU us a micro-batch: {title}"] = spread([cpu for _, cpu, _ in found])
                results[f"encode and write, wall us a micro-batch: {title}"] = spread([wall for _, _, wall in found])
        micros = make_micros(4, arguments.micros)
        for name, pack in COMPRESSIONS.items():
            packed = [measure_compression(micros, pack) for _ in range(arguments.repeats)]
            results[f"payload bytes a row record: {name}"] = spread([size for size, _ in packed])
            results[f"payload, CPU us a micro-batch: {name}"] = spread([cpu for _, cpu in packed])
        for name, pause_s in (("without a pause", 0.0), ("1 ms pause after 64", 0.001)):
            puts = [measure_put(Path(scratch), micros, pause_s=pause_s) for _ in range(3)]
            results[f"put, CPU us: {name}"] = spread([cpu for cpu, _ in puts])
            results[f"put, wall us: {name}"] = spread([wall for _, wall in puts])
        results["read, wall s a million row records"] = spread(
            [measure_read(Path(scratch)) for _ in range(arguments.repeats)]
        )

    machine = {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
        "trimtab": trimtab.__version__,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(f"{'':70} {'median':>8} {'lowest':>8} {'highest':>8}")
    for title, numbers in results.items():
        print(f"{title:70} " + " ".join(f"{value:8.3f}" for value in numbers.values()))
    if arguments.json:
        Path(arguments.json).write_text(json.dumps({"machine": machine, "results": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
