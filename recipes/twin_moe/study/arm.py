"""One arm of the study: a z weight and a seed, trained in a folder of its own, so that what was interrupted goes on.

Enters: what to train, and to which step. Leaves: the arm's folder, as `recipes.twin_moe.train` leaves it. Invariant: an
arm that has reached the step is not touched; one that has not goes on from its newest checkpoint, healthy or not: a
router that dies is what is studied.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Final

import torch

import trimtab
from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import TwinConfig
from recipes.twin_moe.console import say
from recipes.twin_moe.segments import segments
from recipes.twin_moe.study.reading import weight_name
from recipes.twin_moe.train import train
from trimtab.checkpoint import Checkpointer
from trimtab.resume.names import scan

SAID_NAME: Final = "said.log"
"""In an arm's folder: what its watch said while it trained, which of several arms at once nobody could follow."""

GRACE_S: Final = 10.0
"""Seconds that an interrupted arm has to close its log, before it is ended."""

_EVALUATION: Final = "eval "
"""How a line begins that tells of an evaluation; the others, and what stands behind its loss, are too much of several
arms at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """What one training of the study is.

    Attributes:
        z_weight: Weight of the router z-loss; 0: none.
        seed: Of the weights and of the order of the rows.
        in_sweep: Whether it is of the sweep, or there only to show what the watch says.
    """

    z_weight: float
    seed: int
    in_sweep: bool = True

    @property
    def name(self) -> str:
        """Of its folder, and in front of its lines: `z_1e-4_seed_1`."""
        return f"z_{weight_name(self.z_weight)}_seed_{self.seed}"

    def folder(self, out: Path) -> Path:
        """Where it is trained, in the study's folder."""
        return out / "arms" / self.name


Work = Callable[[Arm], str | None]
"""Trains an arm; gives the error that ended it."""


def steps_done(arm: Arm, *, out: Path) -> int:
    """The step of an arm's newest checkpoint, by its name; 0 where there is none."""
    there = segments(arm.folder(out))
    found = scan(there[-1].folder).found if there else ()
    return found[0].step if found else 0


def train_arms(
    arms: Sequence[Arm],
    config: TwinConfig,
    *,
    out: Path,
    stop_at: int,
    device: str | None,
    num_processes: int,
    tell: Callable[[str], None] = say,
) -> dict[str, str]:
    """Trains each arm to a step, one after the other or in several processes.

    Args:
        arms: Which.
        config: What they have in common.
        out: The study's folder.
        stop_at: The step to which each is trained; the schedule is that of `config`.
        device: Where; None: as the trainer chooses.
        num_processes: 1: in this process. More: each in one of that many, with one thread of torch.
        tell: What to do with a line; called in this process, or in one of those.

    Returns:
        By the name of the arm the error that ended it; empty where all went through.

    Raises:
        ConfigError: The study's folder holds other trainings under these names.
        KeyboardInterrupt: Somebody interrupted it; the next call goes on.
    """
    work = partial(_train_arm, config=config, out=out, stop_at=stop_at, device=device, tell=tell)
    todo = [arm for arm in arms if steps_done(arm, out=out) < stop_at]
    if num_processes == 1 or len(todo) < 2:
        ends: Iterator[tuple[Arm, str | None]] = zip(todo, map(work, todo), strict=True)
    else:
        ends = _side_by_side(work, todo, num_processes=num_processes)
    return {arm.name: end for arm, end in ends if end is not None}


def _side_by_side(work: Work, arms: Sequence[Arm], *, num_processes: int) -> Iterator[tuple[Arm, str | None]]:
    """Does the work of each arm in a process of its own; an interruption ends all of them.

    Not a pool: one hands an arm to a process before it is its turn, and begins it after the interruption.
    """
    context = get_context("spawn")  # a fork would take over torch's threads and signal handlers half done
    waiting, running = list(reversed(arms)), dict[Connection, tuple[Arm, SpawnProcess]]()
    try:
        while waiting or running:
            while waiting and len(running) < num_processes:
                arm = waiting.pop()
                here, there = context.Pipe(duplex=False)
                process = context.Process(target=_work_there, args=(work, arm, there), daemon=True)
                process.start()
                there.close()  # its end is the process's alone, so that this one sees when that is gone
                running[here] = arm, process
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                arm, process = running.pop(connection)
                try:
                    end = connection.recv()
                except EOFError:
                    process.join()
                    end = f"its process ended with status {process.exitcode}"
                if isinstance(end, ConfigError):
                    raise end
                yield arm, end
    finally:
        for _, process in running.values():
            process.join(GRACE_S)
            process.terminate()


def _work_there(work: Work, arm: Arm, answer: Connection) -> None:
    """In a process of its own: one thread, for the other core is another arm's."""
    torch.set_num_threads(1)
    try:
        answer.send(work(arm))
    except ConfigError as error:
        answer.send(error)
    except KeyboardInterrupt:
        sys.exit(130)  # said once, by the process that waits


def _train_arm(
    arm: Arm, *, config: TwinConfig, out: Path, stop_at: int, device: str | None, tell: Callable[[str], None]
) -> str | None:
    """Trains an arm; gives the error that ended it, in one line."""
    folder = arm.folder(out)
    # Named by its path: an unhealthy one is gone on from, which a plain resume refuses.
    newest = Checkpointer(segments(folder)[-1].folder).pick().path if steps_done(arm, out=out) else None
    own = replace(config, seed=arm.seed, optim=replace(config.optim, z_weight=arm.z_weight))
    try:
        with _said_in(folder / SAID_NAME):
            trained = train(
                own,
                out=folder,
                stop_at=stop_at,
                resume_from=newest,
                device=device,
                tell=partial(_tell_evaluation, arm=arm, tell=tell),
            )
    except ConfigError:
        raise
    except trimtab.TrimtabError as error:  # a guard that gives up: of a dying arm that is what there is to see
        return " ".join(f"{error}".split())
    return None if trained.checkpoint is not None else f"its checkpoint of step {stop_at} could not be saved"


def _tell_evaluation(line: str, *, arm: Arm, tell: Callable[[str], None]) -> None:
    if line.startswith(_EVALUATION):
        loss, bracket, _ = line.removeprefix(_EVALUATION).partition(")")
        tell(f"z {weight_name(arm.z_weight)}  seed {arm.seed}  {loss}{bracket}")


@contextmanager
def _said_in(path: Path) -> Iterator[None]:
    """Writes what Trimtab says to a file in the place of standard error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    logger, handler = logging.getLogger("trimtab"), logging.FileHandler(path, encoding="utf-8", delay=True)
    propagates, logger.propagate = logger.propagate, False
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()
        logger.propagate = propagates
