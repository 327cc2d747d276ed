"""Among two real processes this version records one of them, and refuses a guard on both."""

import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import json, sys
import torch, torch.distributed as dist
import trimtab
from trimtab import GuardConfig, Run, UsageError

rank, meeting, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
model = torch.nn.Linear(2, 1)
try:
    Run(out, model=model, guard=GuardConfig(rule="robust"))
    refused = None
except UsageError as error:
    refused = str(error)
with Run(out, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) as run:
    losses = model(torch.ones(2, 2)).squeeze(1) ** 2
    run.micro_batch(losses, per="sample", rows=[10 * rank, 10 * rank + 1]).backward()
    run.step()
print(json.dumps({"refused": refused, "folder": str(run.folder) if run.folder else None}))
dist.destroy_process_group()
"""


def test_rank_0_is_recorded_the_other_says_that_it_is_not_and_a_guard_is_refused(tmp_path: Path) -> None:
    # given
    arguments = [str(tmp_path / "meeting"), str(tmp_path / "out")]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(rank), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    # when
    ended = [process.communicate(timeout=120) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    said = [json.loads(out) for out, _ in ended]
    # then
    for answer in said:
        assert "2 are running" in answer["refused"]
        assert "Pass guard=None" in answer["refused"]
    assert said[0]["folder"] is not None
    assert said[1]["folder"] is None
    assert "rank 0 of 2; shares are over its rows only" in ended[0][1]
    assert "rank 1 is not recorded" in ended[1][1]
    # and the log holds rank 0's rows
    program = "import sys, trimtab; print(trimtab.open_log(sys.argv[1]).rows().numpy()['row'].tolist())"
    read = subprocess.run(
        [sys.executable, "-c", program, said[0]["folder"]], capture_output=True, text=True, check=True
    )
    assert read.stdout == "[0, 1]\n"
