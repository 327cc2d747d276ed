"""Savers that meet: two processes in one folder; and a disk that really is full.

    python checkpoint_savers_worker.py race FOLDER RUN_ID RUN_ID KEEP     two runs, or one twice, at the same time
    python checkpoint_savers_worker.py full FOLDER                        a file system of 200 KB, mounted there
    python checkpoint_savers_worker.py limit FOLDER                       files that may not be longer than 2,000 bytes

Prints one JSON document.
"""

import json
import logging
import os
import resource
import sys
import traceback
from pathlib import Path
from typing import Any

from checkpoint_crash_worker import Known, found_in, left_over
from small_training import Training

from trimtab.checkpoint import Checkpointer
from trimtab.errors import TrimtabError
from trimtab.resume.listing import list_checkpoints

NUM_STEPS = 6


class Heard(logging.Handler):
    """What was said at the level of an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []
        logging.getLogger("trimtab").addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def race(folder: Path, run_ids: list[str], keep: int) -> dict[str, Any]:
    """Both processes save steps 1 to 6, three times over."""
    known = Known()
    known.at(NUM_STEPS)
    pipes = [os.pipe() for _ in run_ids]
    children = []
    for run_id, (reading, writing) in zip(run_ids, pipes, strict=True):
        child = os.fork()
        if child == 0:
            told = json.dumps(save_over_and_over(folder, run_id, keep)).encode()
            os.close(reading)
            os.write(writing, told)
            os._exit(0)
        os.close(writing)
        children.append(child)
    told = []
    for child, (reading, _) in zip(children, pipes, strict=True):
        with os.fdopen(reading, "rb") as pipe:
            told.append(json.loads(pipe.read()))
        os.waitpid(child, 0)
    found = {run_id: found_of_run(folder, run_id, known) for run_id in set(run_ids)}
    Training().advance(NUM_STEPS + 1).save(Checkpointer(folder, keep=0, run_id=run_ids[0]))
    steps = sorted(info.step for info in list_checkpoints(folder))
    return {"savers": told, "found": found, "left": left_over(folder), "steps": steps}


def save_over_and_over(folder: Path, run_id: str, keep: int) -> dict[str, Any]:
    heard = Heard()
    saved = []
    try:
        for _ in range(3):
            training = Training()
            checkpoints = Checkpointer(folder, keep=keep, run_id=run_id)
            for _ in range(NUM_STEPS):
                training.advance()
                if training.save(checkpoints) is not None:
                    saved.append(training.step)
    except TrimtabError as error:
        return {"saved": saved, "error": f"{type(error).__name__}: {error}", "heard": heard.lines}
    except BaseException:  # noqa: BLE001 - the test is told whatever it was
        return {"saved": saved, "error": traceback.format_exc(), "heard": heard.lines}
    return {"saved": saved, "error": None, "heard": heard.lines}


def found_of_run(folder: Path, run_id: str, known: Known) -> dict[str, Any]:
    """Each of the run's checkpoints, and whether it loads bit-exact."""
    exact = {}
    for info in list_checkpoints(folder):
        if info.run_id == run_id:
            expected = known.at(info.step)
            exact[info.step] = Training.resume(Checkpointer(folder), info.path).fingerprint() == expected
    return exact


def fill(folder: Path) -> dict[str, Any]:
    """Saves until nothing more fits, trains on, makes room and saves again."""
    heard = Heard()
    known = Known()
    known.at(100)
    training = Training()
    saved = []
    while training.step < 20:
        saved.append(training.advance().save(Checkpointer(folder, keep=0, run_id="a")) is not None)
    told = {"saved": saved, "found": found_in(folder, known), "left": left_over(folder), "heard": heard.lines[:2]}
    oldest = list_checkpoints(folder)[-1].path
    for path in oldest.iterdir():
        path.unlink()
    oldest.rmdir()
    resumed = Training.resume(Checkpointer(folder)).advance(30)
    return told | {"saved_then": resumed.save(Checkpointer(folder, keep=0, run_id="a")) is not None}


def limit(folder: Path) -> dict[str, Any]:
    known = Known()
    known.at(10)
    training = Training().advance()
    training.save(Checkpointer(folder, run_id="a"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
    heard = Heard()
    saved = training.advance().save(Checkpointer(folder, run_id="a")) is not None
    told = {"saved": saved, "found": found_in(folder, known), "left": left_over(folder), "heard": heard.lines}
    training = Training.resume(Checkpointer(folder)).advance()
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    return told | {"saved_then": training.save(Checkpointer(folder, run_id="a")) is not None}


if __name__ == "__main__":
    logging.getLogger("trimtab").addHandler(logging.NullHandler())
    verb, place, *arguments = sys.argv[1:]
    if verb == "race":
        result = race(Path(place), arguments[:2], int(arguments[2]))
    else:
        result = {"full": fill, "limit": limit}[verb](Path(place))
    print(json.dumps(result))  # noqa: T201 - this is its answer
