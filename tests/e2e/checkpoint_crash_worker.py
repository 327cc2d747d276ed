"""Saves that are killed or fail, in children of one process that has loaded torch once.

    python checkpoint_crash_worker.py each FOLDER SCENE WHAT EVERY    at every change of the disk
    python checkpoint_crash_worker.py loop FOLDER NUM SEED            at random moments of a loop that saves

Prints one JSON document: for each kill or failure what was found afterwards.
"""

import json
import logging
import os
import random
import runpy
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from small_training import Training

from trimtab.checkpoint import Checkpointer
from trimtab.errors import CheckpointError
from trimtab.resume.listing import list_checkpoints

_faulty = runpy.run_path(str(Path(__file__).parents[1] / "faulty_disk.py"))
Faulty, KILL, KILL_AFTER, SHORT = (_faulty[name] for name in ("Faulty", "KILL", "KILL_AFTER", "SHORT"))

KEEP = 2
LAST_STEP = 8
NUM_AFTER = 2
"""Steps that a resumed training goes on for, so that what was restored wrongly shows."""


class Known:
    """The uninterrupted training: its fingerprint at each step, made when it is asked for."""

    def __init__(self) -> None:
        self._fingerprints: list[str] = []

    def at(self, step: int) -> str:
        """Its fingerprint after so many steps; draws this process's random numbers anew."""
        if step >= len(self._fingerprints):
            training = Training()
            self._fingerprints = [training.fingerprint()]
            self._fingerprints += (training.advance().fingerprint() for _ in range(2 * step + LAST_STEP))
        return self._fingerprints[step]


def found_in(folder: Path, known: Known) -> dict[str, Any]:
    """What `pick` finds there, whether it loads bit-exact, and whether training goes on from it as it would have."""
    try:
        info = Checkpointer(folder).pick()
    except CheckpointError as error:
        return {"step": None, "why": str(error)}
    there, later = known.at(info.step), known.at(info.step + NUM_AFTER)
    training = Training.resume(Checkpointer(folder), info)
    exact = training.step == info.step and training.fingerprint() == there
    training.advance(NUM_AFTER)
    return {"step": info.step, "exact": exact, "goes_on": training.fingerprint() == later}


def left_over(folder: Path) -> list[str]:
    """Names in the folder that are no checkpoint's."""
    return sorted(path.name for path in folder.iterdir() if not path.name.removeprefix("step_").isdecimal())


def in_a_child(work: Callable[[], Any]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# Each scene: the steps that are there, the one whose save is disturbed, and how it came to it.
SCENES = {
    "first": ([], 1),
    "next": ([1], 2),
    "rotating": ([1, 2, 3], 4),
    "again": ([1, 2], 2),
}


def each(folder: Path, scene: str, what: str, every: int) -> dict[str, Any]:
    saved, step = SCENES[scene]
    known = Known()
    kind = int(what) if what.isdecimal() else what
    (folder / "made").mkdir(parents=True)
    training = Training()
    for there in saved:
        training.advance(there - training.step).save(Checkpointer(folder / "made", keep=0, run_id="a"))

    def save(place: Path, disk: Any) -> Any:
        training = Training().advance(step)
        return training.save(Checkpointer(place, keep=KEEP, run_id="a", disk=disk))

    counting = Faulty()
    save(Path(shutil.copytree(folder / "made", folder / "counted")), counting)
    # A small save is some hundred writes: each of the others, and some of those.
    places = [at for at, kind_of in enumerate(counting.kinds) if kind_of != "write" or at % every == 0]
    rounds = []
    for at in places:
        place = Path(shutil.copytree(folder / "made", folder / "place"))
        told: dict[str, Any] = {"at": at, "kind": counting.kinds[at]}
        if isinstance(kind, str) and kind != SHORT:
            told["status"] = in_a_child(lambda: save(place, Faulty(at, kind)))  # noqa: B023 - ended in this round
        else:
            told["saved"] = save(place, Faulty(at, kind)) is not None
        told["left"] = left_over(place)
        told["found"] = found_in(place, known)
        # And the run goes on.
        going_on = Training.resume(Checkpointer(place)) if told["found"]["step"] else Training()
        going_on.advance(LAST_STEP - going_on.step)
        told["saved_next"] = going_on.save(Checkpointer(place, keep=KEEP, run_id="a")) is not None
        told["found_next"] = found_in(place, known)
        told["left_next"] = left_over(place)
        told["steps_next"] = sorted(int(path.name.removeprefix("step_")) for path in place.iterdir())
        rounds.append(told)
        shutil.rmtree(place)
    return {"num": counting.num, "rounds": rounds}


def loop(folder: Path, num: int, seed: int) -> dict[str, Any]:
    """A run that saves after every step, is sent back a step now and then, and is killed again and again."""
    chance = random.Random(seed)
    known = Known()
    took_s = try_once(folder.with_name("tried"))
    rounds = []
    for _ in range(num):
        reading, writing = os.pipe()
        go_back = chance.random() < 0.5
        child = os.fork()
        if child == 0:
            os.close(reading)
            save_for_ever(folder, writing, go_back=go_back)
        os.close(writing)
        acknowledged = kill(child, reading, after=chance.randrange(4), and_s=chance.random() * took_s)
        rounds.append({"acknowledged": acknowledged, "found": found_in(folder, known)})
    Training.resume(Checkpointer(folder)).advance().save(Checkpointer(folder, keep=KEEP, run_id="a"))
    return {"rounds": rounds, "left": left_over(folder), "num_left": len(list(folder.iterdir()))}


def try_once(folder: Path) -> float:
    """What loading and saving take here, in seconds; and whatever is imported for them is, before the first child."""
    Training().advance().save(Checkpointer(folder, run_id="a"))
    begin = time.monotonic()
    Training.resume(Checkpointer(folder)).advance().save(Checkpointer(folder, run_id="a"))
    return time.monotonic() - begin


def save_for_ever(folder: Path, writing: int, *, go_back: bool) -> None:
    try:
        checkpoints = Checkpointer(folder, keep=KEEP, run_id="a")
        training = Training()
        if checkpoints.has_checkpoints():
            newest = checkpoints.pick()
            older = [info.path for info in list_checkpoints(folder) if info.step < newest.step]
            training = Training.resume(checkpoints, older[0] if go_back and older else newest)
        while True:
            if training.advance().save(checkpoints) is not None:
                os.write(writing, training.step.to_bytes(8, "little"))
    finally:
        os._exit(1)


def kill(child: int, reading: int, *, after: int, and_s: float) -> list[int]:
    """Kills it so many saves and seconds after its start; the steps that it had saved by then, in order."""
    received = b""
    while len(received) < 8 * after and (more := os.read(reading, 8)):
        received += more
    time.sleep(and_s)
    os.kill(child, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    while more := os.read(reading, 1 << 16):
        received += more
    os.close(reading)
    return [int.from_bytes(received[at : at + 8], "little") for at in range(0, len(received) - 7, 8)]


if __name__ == "__main__":
    logging.getLogger("trimtab").addHandler(logging.NullHandler())
    verb, path, *arguments = sys.argv[1:]
    if verb == "each":
        result = each(Path(path), arguments[0], arguments[1], int(arguments[2]))
    else:
        result = loop(Path(path), *map(int, arguments))
    print(json.dumps(result))  # noqa: T201 - this is its answer
