"""Two real processes in one gloo group, or as many as are asked for, that serve a whole test file: starting torch twice
for every test would cost seconds each.

The test names a worker file, and calls its functions by name; both ranks run the same call and give back JSON:

    @pytest.fixture(scope="module")
    def pair(rank_pair):
        return rank_pair(Path(__file__).with_name("worker_of_this.py"))

    def test_both_ranks_agree(pair):
        first, second = pair.call("train", steps=3)

In a worker file `torch.distributed.is_initialized()` is True when a function is called. This file is also the program
that the processes run.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path
from threading import Timer
from typing import Any

MARK = "@rank-pair@ "
"""Begins an answer; a worker may print whatever else it likes."""


class RankPair:
    """Two processes, rank 0 and rank 1, that wait for calls; or another number of them."""

    def __init__(self, worker: Path, *, num_ranks: int = 2) -> None:
        self._worker = worker
        self._folder = tempfile.TemporaryDirectory(prefix="rank-pair-")
        meeting = Path(self._folder.name) / "meeting"
        self._voices = [(Path(self._folder.name) / f"stderr-{rank}").open("w+") for rank in range(num_ranks)]
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(worker), str(rank), str(meeting), str(num_ranks)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._voices[rank],
                text=True,
            )
            for rank in range(num_ranks)
        ]

    def call(self, function: str, *, timeout_s: float = 240.0, **arguments: Any) -> list[Any]:
        """What the worker's function gives on rank 0, on rank 1, ...; arguments and results are JSON.

        Raises:
            AssertionError: It raised on a rank, or a rank died, or it took longer than `timeout_s`.
        """
        call = {"function": function, "arguments": arguments, "home": os.environ["TRIMTAB_HOME"]}
        timer = Timer(timeout_s, self._kill)
        timer.start()
        try:
            for process in self._processes:
                assert process.stdin is not None
                process.stdin.write(json.dumps(call) + "\n")
                process.stdin.flush()
            answers = [self._answer(rank) for rank in range(len(self._processes))]
        except BrokenPipeError:
            raise AssertionError(f"a rank is gone before {function}\n{self._told()}") from None
        finally:
            timer.cancel()
        failed = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        assert not failed, "\n".join([f"{function} failed", *failed, self._told()])
        return [answer["result"] for answer in answers]

    def said(self) -> list[str]:
        """Everything that each rank has written to standard error so far."""
        return [Path(voice.name).read_text() for voice in self._voices]

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        for process in self._processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        for voice in self._voices:
            voice.close()
        self._folder.cleanup()

    def _answer(self, rank: int) -> dict[str, Any]:
        stdout = self._processes[rank].stdout
        assert stdout is not None
        for line in stdout:
            if line.startswith(MARK):
                answer: dict[str, Any] = json.loads(line.removeprefix(MARK))
                if "error" in answer:  # the other rank may wait for this one for ever
                    Timer(5.0, self._kill).start()
                return answer
        return {"error": "it died, or was ended because the other rank failed or took too long"}

    def _kill(self) -> None:
        for process in self._processes:
            if process.poll() is None:
                process.kill()

    def _told(self) -> str:
        return "\n".join(f"--- rank {rank} said\n{text[-4000:]}" for rank, text in enumerate(self.said()))


def main() -> None:
    """Serves calls until standard input ends."""
    import torch.distributed as dist

    worker, rank, meeting = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=int(sys.argv[4]))
    spec = importlib.util.spec_from_file_location(worker.stem, worker)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[worker.stem] = module
    spec.loader.exec_module(module)
    for line in sys.stdin:
        call = json.loads(line)
        os.environ["TRIMTAB_HOME"] = call["home"]
        try:
            answer = {"result": getattr(module, call["function"])(**call["arguments"])}
            text = json.dumps(answer)
        except Exception:  # noqa: BLE001 - the test is told whatever it was
            text = json.dumps({"error": traceback.format_exc()})
        sys.stdout.write(f"\n{MARK}{text}\n")
        sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
