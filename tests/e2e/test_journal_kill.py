"""A writing process is killed with SIGKILL at a random moment: nothing acknowledged is lost, and no error is read."""

import os
import random
import select
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from trimtab.log.reader import open_log

# Acknowledges each write by its number, on a pipe: when the number arrives, the write had returned.
WRITE_FRAMES = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    import numpy as np
    from trimtab.log import records
    from trimtab.log.journal import JournalWriter
    from trimtab.values import MicroBatch

    writer = JournalWriter(Path(sys.argv[1]) / "rank-00000.journal", attempt=int(sys.argv[2]))
    step = 0
    while True:
        step += 1
        rows = np.arange(step * 1000, step * 1000 + step % 300)
        (block,), _ = records.row_blocks([MicroBatch(step, 0, rows, rows.astype(np.float32) / 8, rows % 97 + 1)])
        writer.append(block)
        os.write(1, step.to_bytes(8, "little"))
""")

# The same through the recorder: a flush that came back acknowledges all that was put before it.
RECORD = textwrap.dedent("""
    import os, sys
    from pathlib import Path
    import numpy as np
    from trimtab.log.folder import RunFolder
    from trimtab.recorder import Recorder
    from trimtab.values import MicroBatch, RunHeader

    folder = RunFolder(Path(sys.argv[1]), RunHeader(run_id="a", backend="torch"), int(sys.argv[2]))
    recorder = Recorder(folder, flush_interval_s=0.01)
    step = 0
    while True:
        step += 1
        rows = np.arange(step * 1000, step * 1000 + step % 300)
        recorder.put(MicroBatch(step, 0, rows, rows.astype(np.float32) / 8, rows % 97 + 1))
        if step % 20 == 0 and recorder.flush(20):
            os.write(1, step.to_bytes(8, "little"))
""")

# The same with journals that are closed and sealed several times a second.
SEAL = RECORD.replace("flush_interval_s=0.01", "flush_interval_s=0.01, seal_bytes=30_000")


def kill_while_writing(script: str, folder: Path, *, attempt: int, delay_s: float) -> int:
    """Runs the script, kills it so long after its first acknowledgement, and returns the last one's number.

    On a machine that others keep busy the delay grows with what the first one takes, so that as much is written.
    """
    began = time.monotonic()
    child = subprocess.Popen([sys.executable, "-c", script, folder, str(attempt)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    received = os.read(pipe, 8)
    deadline = time.monotonic() + delay_s * max(1.0, (time.monotonic() - began) / 0.3)
    while (left_s := deadline - time.monotonic()) > 0:
        if select.select([pipe], [], [], left_s)[0]:
            received += os.read(pipe, 1 << 16)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    while more := os.read(pipe, 1 << 16):
        received += more
    child.stdout.close()
    whole = len(received) - len(received) % 8
    return int.from_bytes(received[whole - 8 : whole], "little")


def check_killed(script: str, folder: Path, *, num_kills: int, seed: int, longest_s: float = 0.1) -> None:
    rng = random.Random(seed)
    # Every kill's successor appends to the same journal, torn tail or not.
    acknowledged = [
        kill_while_writing(script, folder, attempt=attempt, delay_s=rng.random() * longest_s)
        for attempt in range(1, num_kills + 1)
    ]

    log = open_log(folder)
    steps: dict[int, list[int]] = {attempt: [] for attempt in range(1, num_kills + 1)}
    for block in log.row_blocks():
        assert (block.row // 1000 == block.step).all()
        assert (block.loss_sum == (block.row / 8).astype("float32")).all()
        assert (block.num_tokens == block.row % 97 + 1).all()
        for attempt, step in zip(block.attempt.tolist(), block.step.tolist(), strict=True):
            steps[attempt].append(step)
    for attempt, last_acknowledged in enumerate(acknowledged, start=1):
        # Whole, in order and without a hole: step n has n % 300 rows.
        last_read = steps[attempt][-1]
        assert steps[attempt] == [step for step in range(1, last_read + 1) for _ in range(step % 300)]
        assert last_read >= last_acknowledged - (last_acknowledged % 300 == 0)
    assert all("cut off" in line for line in log.notices())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run.json").write_text('{"version": 1, "run_id": "a", "backend": "torch"}')
    return tmp_path


@pytest.mark.parametrize("script", [WRITE_FRAMES, RECORD], ids=["journal", "recorder"])
def test_a_killed_writer_loses_nothing_that_it_acknowledged(folder: Path, script: str) -> None:
    check_killed(script, folder, num_kills=3, seed=1)


@pytest.mark.long
@pytest.mark.parametrize("script", [WRITE_FRAMES, RECORD], ids=["journal", "recorder"])
def test_a_writer_killed_fifty_times_loses_nothing_that_it_acknowledged(folder: Path, script: str) -> None:
    check_killed(script, folder, num_kills=50, seed=2)


@pytest.mark.long
def test_a_writer_killed_while_it_closes_and_seals_loses_and_doubles_nothing(folder: Path) -> None:
    check_killed(SEAL, folder, num_kills=40, seed=3, longest_s=0.6)

    assert len(list((folder / "segments").glob("rank-00000.*"))) > 20


@pytest.mark.long
def test_a_run_that_closes_and_seals_is_read_at_any_moment_without_a_hole_or_a_double(folder: Path) -> None:
    # given a run that seals several times a second
    child = subprocess.Popen([sys.executable, "-c", SEAL, folder, "1"], stdout=subprocess.PIPE)
    assert child.stdout is not None
    acknowledged = int.from_bytes(os.read(child.stdout.fileno(), 8), "little")
    num_segments = set()

    # when it is read again and again
    deadline = time.monotonic() + 10
    try:
        while time.monotonic() < deadline:
            received = os.read(child.stdout.fileno(), 1 << 16)
            whole = len(received) - len(received) % 8
            acknowledged = int.from_bytes(received[whole - 8 : whole], "little")
            log = open_log(folder)
            steps = [step for block in log.row_blocks() for step in block.step.tolist()]
            num_segments.add(len(list((folder / "segments").glob("rank-00000.??????"))))

            # then each time it stands there from its start to its end, once, with all that was acknowledged
            assert steps == [step for step in range(1, steps[-1] + 1) for _ in range(step % 300)]
            assert steps[-1] >= acknowledged - (acknowledged % 300 == 0)
            assert all("cut off" in line for line in log.notices())  # the write that is going on
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    assert len(num_segments) > 5
