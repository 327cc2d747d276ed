"""Two processes in one gloo group that run trials together: one pair serves all trials of two processes.

    this process                            rank 0, rank 1: `main`
    Pair.run(trial)    -- the trial -->     run_trial(factory, trial), both at the same time
                       <-- an outcome --    or what failed

Enters: the name of a factory, trials. Leaves: the outcomes of both ranks, or `RanksError`. Invariant: a call ends,
whatever the loop does: a rank that fails, dies, or waits for the other for ever ends the pair, and the next call starts
a new one. Nothing that a loop prints reaches standard output.
"""

from __future__ import annotations

import contextlib
import os
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
from trimtab.proof.factory import last_line, load_factory
from trimtab.proof.trial import Outcome, Trial, run_trial

NUM_RANKS: Final = 2

_PROGRAM: Final = "from trimtab.proof.pair import main; main()"
"""Not `-m`: what is sent must be of the module's classes, not of those of a second copy called `__main__`."""

_START_S: Final = 180.0
"""For the first trial: both ranks import torch and the loop's own packages, on a machine that may be busy."""

_LEAST_S: Final = 10.0
_TIMES_FIRST: Final = 3.0
_TIMES_LONGEST: Final = 10.0
"""A later trial may take as long as the first of its pair, ten times the longest so far, and 10 s: a small loop takes
less than one. The first of a later pair may take three times what the first of all took."""

_GRACE_S: Final = 5.0
"""How long the other rank gets when one has failed: it may be about to say why, or wait for ever."""

_LAST_WORDS: Final = 4_000
"""Characters of what a process said, of which the last line is shown where it died."""


class RanksError(TrimtabError):
    """A trial of two ranks did not come to its end.

    Attributes:
        hung: Whether a rank still waited when the time was over, and none had failed.
    """

    def __init__(self, message: str, *, hung: bool = False) -> None:
        super().__init__(message)
        self.hung = hung


@dataclass(frozen=True, slots=True)
class Failure:
    """What a rank answers in place of an outcome: the last line of its error; or what is said of it once it is gone."""

    said: str
    is_gone: bool = False


class Pair:
    """Rank 0 and rank 1, started when the first trial comes.

    Args:
        factory: `module:factory`, which both import, with this process's current folder on the path.
        start_s: Seconds that the first trial of a new pair may take.
        least_s: Seconds that each later one may take at least; more where those before it took long.
    """

    def __init__(self, factory: str, *, start_s: float = _START_S, least_s: float = _LEAST_S) -> None:
        self._factory = factory
        self._start_s = start_s
        self._least_s = least_s
        self._first_s = 0.0
        self._longest_s = 0.0
        self._num_trials = 0
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[subprocess.Popen[bytes]] = []
        self._lines: list[Connection] = []

    def run(self, trial: Trial) -> tuple[Outcome, Outcome]:
        """Runs one trial on both ranks; waits for both.

        Args:
            trial: What is trained, and what is planted on which rank.

        Returns:
            What came of it on rank 0 and on rank 1.

        Raises:
            RanksError: It raised on a rank, a rank died, or one was not through in time. The processes are gone then.
        """
        began = time.monotonic()
        try:
            if not self._processes:
                self._start()
            with contextlib.suppress(BrokenPipeError):  # of a rank that is gone: reading from it says so
                for line in self._lines:
                    line.send(trial)
            first, second = self._answers()
        except BaseException:
            self._end(wait_s=0.0)
            raise
        took_s = time.monotonic() - began
        if self._num_trials:
            self._longest_s = max(self._longest_s, took_s)
        else:
            self._first_s = took_s
        self._num_trials += 1
        return first, second

    def close(self) -> None:
        """Ends both processes; a second call does nothing."""
        self._end(wait_s=_GRACE_S)

    def __enter__(self) -> Pair:
        """Gives the pair itself; nothing is started yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the pair."""
        self.close()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="trimtab-prove-")
        meeting = Path(self._folder.name) / "meeting"
        for rank in range(NUM_RANKS):
            mine, theirs = Pipe()
            with self._voice(rank).open("wb") as voice:
                arguments = [self._factory, str(rank), str(meeting), str(theirs.fileno())]
                self._processes.append(
                    subprocess.Popen(
                        [sys.executable, "-c", _PROGRAM, *arguments],
                        stdin=subprocess.DEVNULL,
                        stdout=voice,
                        stderr=voice,
                        env=_environment(rank),
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
        """What both ranks answer."""
        time_s = self._time_s()
        deadline = time.monotonic() + time_s
        answers: dict[int, Outcome | Failure] = {}
        while len(answers) < NUM_RANKS:
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
        if len(outcomes) < NUM_RANKS:
            raise _error(answers, time_s=time_s)
        return outcomes

    def _time_s(self) -> float:
        """What the next trial may take."""
        if not self._first_s:
            return self._start_s
        if not self._num_trials:  # a later pair: how long a start takes here is known
            return max(self._least_s, _TIMES_FIRST * self._first_s)
        return max(self._least_s, self._first_s, _TIMES_LONGEST * self._longest_s)

    def _answer(self, rank: int) -> Outcome | Failure:
        try:
            answer = self._lines[rank].recv()
        except (EOFError, ConnectionResetError):
            code = self._processes[rank].wait()
            words = self._voice(rank).read_text(encoding="utf-8", errors="replace")[-_LAST_WORDS:].split("\n")
            last = next((line for line in reversed(words) if line.strip()), "nothing")
            return Failure(f"the process ended with exit code {code}; the last it said: {last.strip()}", is_gone=True)
        assert isinstance(answer, Outcome | Failure)
        return answer

    def _voice(self, rank: int) -> Path:
        assert self._folder is not None
        return Path(self._folder.name) / f"said-{rank}"


def _error(answers: dict[int, Outcome | Failure], *, time_s: float) -> RanksError:
    failures = [
        (not answer.is_gone, rank, answer.said) for rank, answer in answers.items() if isinstance(answer, Failure)
    ]
    if failures:
        # The rank that is gone comes first: what the other says then is that it lost it.
        said = "; ".join(f"rank {rank} failed: {text}" for _, rank, text in sorted(failures))
        waiting = [rank for rank in range(NUM_RANKS) if rank not in answers]
        return RanksError(said + "".join(f"; rank {rank} was left waiting for it" for rank in waiting))
    through = [rank for rank in range(NUM_RANKS) if rank in answers]
    who = f"rank {through[0]} was through and rank {1 - through[0]} was not" if through else "neither rank was through"
    return RanksError(
        f"after {time_s:.0f} s {who}: the ranks do not make the same collective calls, as where one leaves out a "
        "backward or a reduction that the other makes. Call both on every rank, whatever the verdict.",
        hung=True,
    )


def _environment(rank: int) -> dict[str, str]:
    """What torchrun would set, for hosts that look there; what this process itself got from one does not count."""
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",  # as in trials of one process
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(NUM_RANKS),
        "LOCAL_WORLD_SIZE": str(NUM_RANKS),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29500",  # read, and never listened at: the ranks meet in a file
    }


def main() -> None:
    """Serves one rank: trials come in and outcomes go out until the other end is closed."""
    import torch.distributed as dist

    factory_name, rank, meeting, line = sys.argv[1], int(sys.argv[2]), sys.argv[3], Connection(int(sys.argv[4]))
    try:
        factory = load_factory(factory_name)
    except TrimtabError as error:
        line.send(Failure(str(error)))
        return
    # The other end has a clock of its own; this one ends a rank whose other end is gone.
    dist.init_process_group(
        "gloo", init_method=f"file://{meeting}", rank=rank, world_size=NUM_RANKS, timeout=timedelta(seconds=600)
    )
    while True:
        try:
            trial = line.recv()
        except EOFError:
            break
        line.send(_outcome(factory, trial))
    dist.destroy_process_group()


def _outcome(factory: Any, trial: Trial) -> Outcome | Failure:
    try:
        return run_trial(factory, trial)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the other end is told whatever it was
        return Failure(last_line(error))
