"""`trimtab ckpt` on a run whose watch has found something: which checkpoint, and what is said of the others."""

import json
import shutil

import pytest

from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.registry import register
from trimtab.values import Event, RunHeader, StepRow

LONG = "in layer moe the load has collapsed: " + "nearly all tokens go to few experts, " * 9


@pytest.fixture
def record_evaluations(here):
    """Records a run of 170 quiet steps with evaluations at 40, 80, ...; gives its folder."""

    def make(losses, *, run_id="r", out="runs/a"):
        folder = create_run(here / out, RunHeader(run_id=run_id, backend="torch", created=1.0, out=str(here / out)))
        recorder = Recorder(folder)
        for step in range(1, 171):
            recorder.put(StepRow(step, 2.0 + 0.01 * (step % 7), 1.0, 1e-3))
            if step % 40 == 0 and step // 40 <= len(losses):
                recorder.put(Event("evaluation", step, 0.0, {"loss": losses[step // 40 - 1]}))
        recorder.close(timeout_s=30)
        register(folder.header, folder.path)
        return folder.path

    return make


def test_the_log_decides_where_no_manifest_says_anything(trimtab, checkpoint, record_evaluations):
    # given a run without a watch: every checkpoint says of itself that it is healthy
    record_evaluations([3.57, 3.94, 4.54, 4.99])
    for step in (20, 40, 80, 120, 160):
        checkpoint(step)
    # when
    result = trimtab("ckpt", "pick", "--healthy", "runs/a")
    # then
    assert result.stdout == "runs/a/step_40\n"
    said = "after step 40, the last known to be well before eval_regression, found at step 160"
    assert [line for line in result.stderr.splitlines() if line.startswith("refused")] == [
        f"refused: step_80 to step_160 (3 checkpoints): {said}"
    ]
    assert "has a finding against the checkpoints after step 40 to the end of the log" in result.stderr
    assert "shows no trouble" not in result.stderr


def test_a_run_stands_for_its_checkpoints_by_its_folder_and_by_its_id(trimtab, checkpoint, record_evaluations, here):
    # given checkpoints of two runs, in the output folder of one of them and below it
    folder = record_evaluations([3.5, 3.4], run_id="r-1")
    other = record_evaluations([3.5, 3.4], run_id="s-1", out="runs/b")
    checkpoint(100, run_id="r-1")
    checkpoint(200, run_id="another")
    checkpoint(40, run_id="s-1", out="runs/b/checkpoints")
    # then each finds its own, as `trimtab rewind` takes it
    for name in (folder, "r-1", "r-"):
        assert trimtab("ckpt", "pick", "--healthy", name).stdout == f"{here / 'runs/a/step_100'}\n"
    assert trimtab("ckpt", "pick", other).stdout == f"{here / 'runs/b/checkpoints/step_40'}\n"


def test_of_a_copy_of_a_run_only_what_lies_in_the_copy_is_picked(trimtab, checkpoint, record_evaluations, here):
    record_evaluations([3.5, 3.4], run_id="r-1")
    checkpoint(100, run_id="r-1")
    shutil.copytree(here / "runs/a", here / "runs/b")
    assert trimtab("ckpt", "pick", "runs/b/trimtab/r-1").stdout == f"{here / 'runs/b/step_100'}\n"
    # and of one without any none is
    shutil.rmtree(here / "runs/b/step_100")
    result = trimtab("ckpt", "pick", "runs/b/trimtab/r-1")
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"no checkpoint of it is in {here / 'runs/b'} or" in result.stderr


def test_a_run_without_checkpoints_says_where_they_were_looked_for(trimtab, record_evaluations, here):
    folder = record_evaluations([3.5])
    result = trimtab("ckpt", "pick", "--healthy", folder)
    assert result.exit_code == 1
    assert f"is a run, and no checkpoint of it is in {here / 'runs/a'} or in the folders in there" in result.stderr


def test_a_run_with_checkpoints_in_two_folders_asks_which(trimtab, checkpoint, record_evaluations):
    folder = record_evaluations([3.5])
    checkpoint(40, out="runs/a/one")
    checkpoint(80, out="runs/a/two")
    result = trimtab("ckpt", "pick", folder)
    assert result.exit_code == 1
    assert "are in 2 folders. Name one:" in result.stderr


def test_ls_tells_a_long_reason_once_and_shortly_at_each(trimtab, checkpoint):
    checkpoint(100)
    checkpoint(150)
    checkpoint(200, because=f"collapse in moe at step 200: {LONG} MaxVio 2.9", unhealthy_since=100)
    checkpoint(
        250, because=f"collapse in moe since step 200, last seen at step 250: {LONG} MaxVio 3", unhealthy_since=100
    )
    lines = trimtab("ckpt", "ls", "runs/a").stdout.splitlines()
    assert "    not healthy: collapse in moe since step 200, last seen at step 250" in lines
    assert "    not healthy: collapse in moe at step 200" in lines
    (doubt,) = [line for line in lines if line.startswith("    in doubt")]
    assert doubt.startswith("    in doubt: after step 100, the last known to be well before collapse in moe since step")
    (whole,) = [line for line in lines if "the load has collapsed" in line]
    assert "last seen at step 250" in whole
    # and a program has all of it
    (folder,) = json.loads(trimtab("ckpt", "ls", "--json", "-", "runs/a").stdout)["folders"]
    assert [len(entry["unhealthy_because"][0]) > 300 for entry in folder["checkpoints"][:2]] == [True, True]
    assert [entry["doubt"] is None for entry in folder["checkpoints"]] == [True, True, False, True]


def test_the_folder_of_the_runs_stands_for_the_checkpoints_beside_it(
    trimtab, checkpoint, record_evaluations, here, monkeypatch
):
    # given one run in it, whose checkpoints are a level down
    folder = record_evaluations([3.5], run_id="r-1")
    checkpoint(100, run_id="r-1", out="runs/a/checkpoints")
    assert trimtab("ckpt", "pick", "runs/a/trimtab").stdout == f"{here / 'runs/a/checkpoints/step_100'}\n"
    # and given a second one, which saved later
    record_evaluations([3.5], run_id="r-2")
    checkpoint(120, run_id="r-2", out="runs/a/checkpoints")
    expected = f"{here / 'runs/a/checkpoints/step_120'}\n"
    assert trimtab("ckpt", "pick", folder.parent).stdout == expected
    # and from inside of it
    monkeypatch.chdir(folder.parent)
    assert trimtab("ckpt", "pick", ".").stdout == expected


def test_checkpoints_in_a_folder_called_trimtab_are_those_that_are_meant(trimtab, checkpoint):
    checkpoint(100, out="runs/a/trimtab")
    assert trimtab("ckpt", "pick", "runs/a/trimtab").stdout == "runs/a/trimtab/step_100\n"


def test_the_id_of_a_run_whose_folder_was_moved_says_where_it_was(trimtab, record_evaluations, here):
    folder = record_evaluations([3.5], run_id="r-1")
    folder.rename(here / "elsewhere")
    for command in (("pick",), ("pick", "--healthy")):
        result = trimtab("ckpt", *command, "r-1")
        assert (result.exit_code, result.stdout) == (1, "")
        said = " ".join(result.stderr.split())
        assert f"r-1 is a run, and the list of runs has it at {folder}, which is not there." in said
    assert "which is not there" not in trimtab("ckpt", "pick", "nobody").stderr
