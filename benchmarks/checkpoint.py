"""What a checkpoint costs: the CPU of its checksums, the memory of a save, and the search among a thousand of them.

    python benchmarks/checkpoint.py [--megabytes N] [--folders N] [--repeats N] [--json FILE]

Every figure is of a process of its own; those that are compared take turns. Weights and AdamW moments make up the
megabytes. `checksums` is the same save with and without `zlib.crc32`; memory is VmHWM, the peak that the kernel saw.
Must: 0.4 s of CPU a GB; a peak within 64 MB of torch.save's; 0.3 s beyond verifying the one that is picked.
"""

import argparse
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

GB = 1e9
SAVES = ("torch.save", "without checksums", "with checksums", "in a thread", "with a rotation")
TRIMTAB = Path(sys.executable).with_name("trimtab")


def training(megabytes: int) -> dict[str, Any]:
    """A model and an optimizer that has stepped: three values of four bytes a parameter."""
    import torch
    from torch import nn

    width = 1024
    num_layers = max(1, megabytes * 10**6 // (3 * 4 * width * width))
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(num_layers)))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": model, "optimizer": optimizer}


def save(how: str, megabytes: int, folder: Path) -> dict[str, float]:
    """CPU and wall seconds of one save, the bytes that it wrote, and what it added to the memory at its peak."""
    import torch

    from trimtab.checkpoint import Checkpointer
    from trimtab.resume import stream

    objects = training(megabytes)
    checkpoints = Checkpointer(folder, keep=1 if how == "with a rotation" else 0, run_id="bench")
    if how == "with a rotation":
        checkpoints.save(1, **objects)
    if how == "without checksums":
        stream.zlib = SimpleNamespace(crc32=lambda *_: 0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before, cpu, wall = resident("VmRSS"), time.process_time(), time.perf_counter()
    if how == "torch.save":
        path = folder / "model.pt"
        folder.mkdir(exist_ok=True)
        torch.save({name: value.state_dict() for name, value in objects.items()}, path)
        with path.open("rb") as file:
            os.fsync(file.fileno())
    else:
        checkpoints.save(2, **objects, wait=how != "in a thread")
        checkpoints.wait()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return {"cpu_s": cpu, "wall_s": wall, "size_bytes": size_bytes, "peak_bytes": resident("VmHWM") - before}


def resident(which: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{which}:"))


def find(how: str, folder: Path) -> dict[str, float]:
    """CPU and wall seconds of `pick`, or of verifying what it picks."""
    from trimtab.resume.select import pick
    from trimtab.resume.verify import verify

    newest = max(folder.iterdir(), key=lambda path: int(path.name.removeprefix("step_")))
    cpu, wall = time.process_time(), time.perf_counter()
    if how == "pick":
        assert pick(folder).path == newest
    else:
        assert verify(newest).ok
    return {"cpu_s": time.process_time() - cpu, "wall_s": time.perf_counter() - wall}


def ask(folder: Path) -> dict[str, float]:
    """CPU and wall seconds of the command."""
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([TRIMTAB, "ckpt", "pick", folder], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after, wall = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - begin
    return {"cpu_s": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, "wall_s": wall}


def many(folder: Path, num_folders: int) -> None:
    """So many checkpoints as a run of some weeks leaves; their payload is small."""
    import torch

    from trimtab.checkpoint import Checkpointer
    from trimtab.resume.manifest import MANIFEST_NAME, dump_manifest, read_manifest

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())
    saved = Checkpointer(folder, keep=0, run_id="bench").save(0, model=model, optimizer=optimizer, loss=1.0)
    manifest = read_manifest(saved.path)
    for number in range(1, num_folders):
        # A save syncs each file, which is not what is measured here.
        path = Path(shutil.copytree(saved.path, folder / f"step_{number * 100}"))
        changed = replace(manifest, step=number * 100, serial=manifest.serial + number)
        (path / MANIFEST_NAME).write_bytes(dump_manifest(changed))


def in_a_process(*arguments: object) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(run.stdout)
    return figures


def in_turns(repeats: int, measures: dict[str, Any]) -> dict[str, list[dict[str, float]]]:
    """What each measured, turn by turn."""
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            taken[name].append(measure())
    return taken


def median(turns: list[dict[str, float]], key: str) -> float:
    return statistics.median(turn[key] for turn in turns)


def beyond(more: list[dict[str, float]], less: list[dict[str, float]], key: str) -> float:
    """The median of the differences, each within one turn."""
    return statistics.median(one[key] - other[key] for one, other in zip(more, less, strict=True))


def spread(turns: list[dict[str, float]]) -> str:
    return f"{min(turn['cpu_s'] for turn in turns):.3f} to {max(turn['cpu_s'] for turn in turns):.3f}"


def measure_saves(scratch: Path, *, megabytes: int, repeats: int) -> dict[str, list[dict[str, float]]]:
    def measure(how: str) -> dict[str, float]:
        folder = scratch / "saves"
        try:
            return in_a_process("save", how, megabytes, folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    return in_turns(repeats, {how: (lambda how=how: measure(how)) for how in SAVES})


def measure_search(scratch: Path, *, num_folders: int, repeats: int) -> dict[str, list[dict[str, float]]]:
    folder, alone = scratch / "many", scratch / "alone"
    many(folder, num_folders)
    newest = f"step_{(num_folders - 1) * 100}"
    shutil.copytree(folder / newest, alone / newest)
    return in_turns(
        repeats,
        {
            "verify": lambda: in_a_process("find", "verify", folder),
            "pick": lambda: in_a_process("find", "pick", folder),
            "trimtab ckpt pick, one": lambda: ask(alone),
            "trimtab ckpt pick": lambda: ask(folder),
        },
    )


def report(saves: dict[str, Any], search: dict[str, Any], num_folders: int) -> dict[str, Any]:
    gigabytes = median(saves["with checksums"], "size_bytes") / GB
    for how, turns in saves.items():
        cpu_s = median(turns, "cpu_s")
        print(f"save, {how:18} CPU {cpu_s:6.2f} s ({spread(turns)}), {cpu_s / gigabytes:.2f} s a GB   "
              f"wall {median(turns, 'wall_s'):6.2f} s   peak {median(turns, 'peak_bytes') / 1e6:8.1f} MB")  # fmt: skip
    for how, turns in search.items():
        print(f"{how:24} CPU {median(turns, 'cpu_s'):.4f} s ({spread(turns)})   wall {median(turns, 'wall_s'):.4f} s")
    bare, full = saves["without checksums"], saves["with checksums"]
    against = {
        "checksums_s_a_gb": beyond(full, bare, "cpu_s") / gigabytes,
        "checksums_ratio": median(full, "cpu_s") / median(bare, "cpu_s"),
        "rotation_s_a_gb": beyond(saves["with a rotation"], full, "cpu_s") / gigabytes,
        "peak_beyond_torch_mb": beyond(full, saves["torch.save"], "peak_bytes") / 1e6,
        "pick_beyond_verify_s": beyond(search["pick"], search["verify"], "wall_s"),
        "command_beyond_one_s": beyond(search["trimtab ckpt pick"], search["trimtab ckpt pick, one"], "wall_s"),
    }
    print(f"checksums: {against['checksums_s_a_gb']:.2f} s of CPU a GB (must: 0.4), {against['checksums_ratio']:.2f} x "
          f"the save without; a rotation (reads back, deletes): {against['rotation_s_a_gb']:.2f} s a GB")  # fmt: skip
    print(f"peak beyond torch.save's: {against['peak_beyond_torch_mb']:.1f} MB (must: 64)")
    print(f"pick among {num_folders}: {against['pick_beyond_verify_s']:.3f} s beyond verifying the one; the command: "
          f"{against['command_beyond_one_s']:.3f} s beyond a folder with that one alone (must: 0.3)")  # fmt: skip
    return {"saves": saves, "search": search, "against": against, "gigabytes": gigabytes}


def one(verb: str, *arguments: str) -> dict[str, float]:
    if verb == "save":
        return save(arguments[0], int(arguments[1]), Path(arguments[2]))
    return find(arguments[0], Path(arguments[1]))


def main() -> None:
    if sys.argv[1:2] == ["--one"]:
        print(json.dumps(one(*sys.argv[2:])))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000, help="weights and moments (1000)")
    parser.add_argument("--folders", type=int, default=1000, help="checkpoints to search among (1000)")
    parser.add_argument("--repeats", type=int, default=9, help="turns (9)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures as JSON")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        saves = measure_saves(Path(scratch), megabytes=arguments.megabytes, repeats=arguments.repeats)
        search = measure_search(Path(scratch), num_folders=arguments.folders, repeats=arguments.repeats)
    print(f"Python {platform.python_version()}, {platform.machine()}, {os.cpu_count()} cores, load "
          f"{os.getloadavg()[0]:.1f}; medians of {arguments.repeats}, of differences within a turn")  # fmt: skip
    figures = report(saves, search, arguments.folders)
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
