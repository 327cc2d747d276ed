"""The processes that run trials: one by itself, or two in one gloo group, which serve all trials of their number.

    this process                            rank 0, rank 1: `main`
    Workers.run(trial) -- the trial -->     run_trial(factory, trial), both at the same time
                       <-- an outcome --    or what failed

Enters: the name of a factory, trials. Leaves: the outcome of each rank, or `RanksError`. Invariant: a call ends, and
this process lives on as it was, whatever the loop does: a rank that dies, hangs, or fails where another waits for it
ends them all, and the next call starts new ones. Nothing that a loop prints reaches standard output.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from trimtab.errors import TrimtabError
from trimtab.proof.factory import last_line, load_factory, shortened
from trimtab.proof.trial import Outcome, Trial, run_trial

_PROGRAM: Final = "from trimtab.proof.workers import main; main()"
"""Not `-m`: what is sent must be of the module's classes, not of those of a second copy called `__main__`."""

_START_S: Final = 180.0
"""For the first trial: the ranks import torch and the loop's own packages, on a machine that may be busy."""

_LEAST_S: Final = 10.0
_TIMES_FIRST: Final = 3.0
_TIMES_LONGEST: Final = 10.0
"""A later trial may take as long as the first of its processes, ten times the longest so far, and 10 s: a small loop
takes less than one. The first of later processes may take three times what the first of all took."""

_GRACE_S: Final = 5.0
"""How long the other rank gets when one has failed: it may be about to say why, or wait for ever."""

_LAST_WORDS: Final = 4_000
"""Characters of what a process said, of which the last line is shown where it died."""

_ARGUMENTS: Final = ["prove-loop"]
"""What a loop finds in `sys.argv`: no argument, where it parses its own."""

_OF_A_LAUNCHER: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")

_UNLIKE_CALLS: Final = re.compile(r"op\.preamble|Mismatch between collective operation types")
"""How gloo, and torch's own check, say that two ranks met in different collectives."""


class RanksError(TrimtabError):
    """A trial did not come to its end on every rank.

    Attributes:
        hung: Whether the ranks made unlike collective calls: one still waited when the time was over and none had
            failed, or two met in calls that do not fit.
        is_over: Whether its processes are gone.
        is_unloadable: Whether the factory could not be imported; the message is then a sentence of its own.
    """

    def __init__(self, message: str, *, hung: bool = False, is_over: bool = True, is_unloadable: bool = False) -> None:
        super().__init__(message)
        self.hung = hung
        self.is_over = is_over
        self.is_unloadable = is_unloadable


@dataclass(frozen=True, slots=True)
class Failure:
    """What a rank answers in place of an outcome: the last line of its error; or what is said of it once it is gone."""

    said: str
    is_gone: bool = False
    is_unloadable: bool = False


class Workers:
    """The processes of a number of ranks, started when the first trial comes.

    Args:
        factory: `module:factory`, which each imports, with this process's import path and current folder.
        num_ranks: 1: a process in no group; 2: two in one.
        start_s: Seconds that the first trial of new processes may take.
        least_s: Seconds that each later one may take at least; more where those before it took long.
    """

    def __init__(self, factory: str, *, num_ranks: int, start_s: float = _START_S, least_s: float = _LEAST_S) -> None:
        self._factory = factory
        self._num_ranks = num_ranks
        self._start_s = start_s
        self._least_s = least_s
        self._first_s = 0.0
        self._longest_s = 0.0
        self._num_trials = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[Connection] = []

    def run(self, trial: Trial) -> list[Outcome]:
        """Runs one trial on every rank; waits for all.

        Args:
            trial: What is trained, and what is planted on which rank.

        Returns:
            What came of it on each rank.

        Raises:
            RanksError: It raised on a rank, a rank died, or one was not through in time. The processes are gone then,
                unless there is one only, and it raised.
        """
        began = time.monotonic()
        try:
            if not self._processes:
                self._start()
            with contextlib.suppress(BrokenPipeError):  # of a rank that is gone: reading from it says so
                for line in self._lines:
                    line.send(trial)
            outcomes = self._answers()
        except BaseException as error:
            if not isinstance(error, RanksError) or error.is_over:
                self._end(wait_s=0.0)
            raise
        took_s = time.monotonic() - began
        if self._num_trials:
            self._longest_s = max(self._longest_s, took_s)
        else:
            self._first_s = took_s
        self._num_trials += 1
        return outcomes

    def close(self) -> None:
        """Ends the processes; a second call does nothing."""
        self._end(wait_s=_GRACE_S)

    def __enter__(self) -> Workers:
        """Gives the workers themselves; nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the processes."""
        self.close()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trimtab-prove-")
        meeting = Path(self._folder.name) / "meeting"
        for rank in range(self._num_ranks):
            mine, theirs = Pipe()
            with self._voice(rank).open("wb") as voice:
                arguments = [self._factory, str(rank), str(self._num_ranks), str(meeting), str(theirs.fileno())]
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", _PROGRAM, *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=voice,
                        stderr=voice,
                        env=_environment(rank, num_ranks=self._num_ranks),
                        pass_fds=[theirs.fileno()],
                    )
                )
            theirs.close()  # so that the end of the process is the end of the line
            self._lines.append(mine)

    def _end(self, *, wait_s: float) -> None:
        for line in self._lines:
            line.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=wait_s)
            process.kill()  # nothing where it is gone already
            process.wait()
        if self._folder is not None:
            self._folder.cleanup()
        self._processes, self._lines, self._folder, self._num_trials = [], [], None, 0

    def _answers(self) -> list[Outcome]:
        """What every rank answers."""
        time_s = self._time_s()
        deadline = time.monotonic() + time_s
        answers: dict[int, Outcome | Failure] = {}
        while len(answers) < self._num_ranks:
            waited_for = [line for rank, line in enumerate(self._lines) if rank not in answers]
            ready = wait(waited_for, timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for line in ready:
                assert isinstance(line, Connection)
                rank = self._lines.index(line)
                answers[rank] = answer = self._answer(rank)
                if isinstance(answer, Failure):
                    deadline = min(deadline, time.monotonic() + _GRACE_S)
        outcomes = [answer for _, answer in sorted(answers.items()) if isinstance(answer, Outcome)]
        if len(outcomes) < self._num_ranks:
            raise _error(answers, num_ranks=self._num_ranks, time_s=time_s)
        return outcomes

    def _time_s(self) -> float:
        """What the next trial may take."""
        if not self._first_s:
            return self._start_s
        if not self._num_trials:  # later processes: how long a start takes here is known
            return max(self._least_s, _TIMES_FIRST * self._first_s)
        return max(self._least_s, self._first_s, _TIMES_LONGEST * self._longest_s)

    def _answer(self, rank: int) -> Outcome | Failure:
        try:
            answer = self._lines[rank].recv()
        except (EOFError, ConnectionResetError):
            code = self._processes[rank].wait()
            words = self._voice(rank).read_text(encoding="utf-8", errors="replace")[-_LAST_WORDS:].split("\n")
            last = next((line for line in reversed(words) if line.strip()), "nothing")
            said = f"the process ended with exit code {code}; the last it said: {shortened(last)}"
            return Failure(said, is_gone=True)
        assert isinstance(answer, Outcome | Failure)
        return answer

    def _voice(self, rank: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"said-{rank}"


def _error(answers: dict[int, Outcome | Failure], *, num_ranks: int, time_s: float) -> RanksError:
    failures = {rank: answer for rank, answer in answers.items() if isinstance(answer, Failure)}
    for failure in failures.values():
        if failure.is_unloadable:
            return RanksError(failure.said, is_unloadable=True)
    if failures and num_ranks == 1:
        return RanksError(failures[0].said, is_over=failures[0].is_gone)
    if failures:
        said = _in_words(failures)
        if _UNLIKE_CALLS.search(said):
            return RanksError(
                f"the ranks called different collectives: is a guard on one rank only? {said}. Make every call on "
                "every rank",
                hung=True,
            )
        waiting = [rank for rank in range(num_ranks) if rank not in answers]
        return RanksError(said + "".join(f"; rank {rank} was left waiting for it" for rank in waiting))
    if num_ranks == 1:
        return RanksError(f"after {time_s:.0f} s it was not through, and was ended")
    through = [rank for rank in range(num_ranks) if rank in answers]
    who = f"rank {through[0]} was through and rank {1 - through[0]} was not" if through else "neither rank was through"
    return RanksError(
        f"after {time_s:.0f} s {who}: the ranks do not make the same collective calls, as where one leaves out a "
        "backward or a reduction that the other makes. Call both on every rank, whatever the verdict.",
        hung=True,
    )


def _in_words(failures: dict[int, Failure]) -> str:
    """What failed on which rank; once, where it is the same on both."""
    # The rank that is gone comes first: what the other says then is that it lost it.
    ranks = sorted(failures, key=lambda rank: (not failures[rank].is_gone, rank))
    if len(ranks) > 1 and len({failures[rank].said for rank in ranks}) == 1:
        return f"every rank failed: {failures[0].said}"
    return "; ".join(f"rank {rank} failed: {failures[rank].said}" for rank in ranks)


def _environment(rank: int, *, num_ranks: int) -> dict[str, str]:
    """What torchrun would set, for hosts that look there; what this process itself got from one does not count."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_A_LAUNCHER}
    # One thread: a small loop gains nothing by more, and on a busy machine they wait for one another (measured with a
    # loop of 100 parameters on two busy cores: 4 s instead of 60 s).
    environment["OMP_NUM_THREADS"] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    if num_ranks > 1:
        # The port is read, and never listened at: the ranks meet in a file.
        values = (str(rank), str(rank), str(num_ranks), str(num_ranks), "127.0.0.1", "29500")
        environment.update(zip(_OF_A_LAUNCHER, values, strict=True))
    return environment


def main() -> None:
    """Serves one rank: trials come in and outcomes go out until the other end is closed."""
    import torch.distributed as dist

    name, rank, num_ranks, meeting = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    line = Connection(int(sys.argv[5]))
    sys.argv = list(_ARGUMENTS)
    try:
        factory = load_factory(name)
    except TrimtabError as error:
        line.send(Failure(str(error), is_unloadable=True))
        return
    if num_ranks > 1:
        # The other end has a clock of its own; this one ends a rank whose other end is gone.
        dist.init_process_group(
            "gloo", init_method=f"file://{meeting}", rank=rank, world_size=num_ranks, timeout=timedelta(seconds=600)
        )
    while True:
        try:
            trial = line.recv()
        except EOFError:
            break
        line.send(_outcome(factory, trial, num_ranks=num_ranks))
    if dist.is_initialized():
        dist.destroy_process_group()


def _outcome(factory: Any, trial: Trial, *, num_ranks: int) -> Outcome | Failure:
    try:
        outcome = run_trial(factory, trial)
        if num_ranks > 1:
            _refuse_without_group(num_ranks)
    # Whatever it was, the other end is told; an interrupt of this process is one of that, too.
    except BaseException as error:  # noqa: BLE001
        return Failure(last_line(error))
    return outcome


def _refuse_without_group(num_ranks: int) -> None:
    """Refuses a trial after which this rank is in no group: it may have trained by itself, and shows nothing of two."""
    import torch.distributed as dist

    num_found = dist.get_world_size() if dist.is_initialized() else 1
    if num_found != num_ranks:
        raise TrimtabError(
            f"the loop left the process group of its {num_ranks} ranks, found {num_found} in it: leave making and "
            "destroying the group to the program that calls the factory"
        )
