"""`trimtab gate` as a command: which run, which checkpoints, its table, its JSON and its exit codes."""

import json
import shutil

import pytest

from trimtab.gates.values import GATE_NAMES
from trimtab.log.folder import continue_run, create_run
from trimtab.recorder import Recorder
from trimtab.registry import register
from trimtab.values import Event, RunHeader, StepRow

ALL_PARTS = ("model", "optimizer", "step", "rng", "scheduler")


@pytest.fixture
def chunk(here):
    """Records an attempt of a run, 40 steps as a rule, at the rates that it states; gives its folder."""

    def make(
        run_id="r-1", *, out="runs/a", steps=range(1, 41), closes=True, stated=1e-3, goes_on=False, named_out=None
    ):
        header = RunHeader(run_id=run_id, backend="torch", created=1.0, out=named_out or str(here / out))
        folder = continue_run(here / out, run_id, header) if goes_on else create_run(here / out, header)
        recorder = Recorder(folder)
        recorder.put(Event("schedule", steps[0], 0.0, {"form": "constant", "lr": stated}))
        for step in steps:
            recorder.put(StepRow(step, 2.0 + 0.01 * (step % 7), 1.0, 1e-3))
        recorder.put(Event("evaluation", steps[-1], 1.0, {"loss": 2.0}))
        if closes:
            recorder.put(Event("end", steps[-1], 2.0, {"reason": "closed"}))
        recorder.close(timeout_s=30)
        register(folder.header, folder.path)
        return folder.path

    return make


def gates(result):
    return {gate["name"]: gate["status"] for gate in json.loads(result.stdout)["gates"]}


def test_the_newest_run_is_judged_with_the_checkpoint_that_it_saved(trimtab, chunk, checkpoint, here):
    chunk("r-0", out="runs/b")
    folder = chunk()
    checkpoint(40, run_id="r-1", parts=ALL_PARTS)
    result = trimtab("gate")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[:3] == [
        "Chunk of run r-1: steps 1 to 40, 40 steps recorded in 1 attempt",
        f"log         {folder}",
        f"checkpoint  {here / 'runs/a/step_40'}",
    ]
    assert lines[-1].endswith("The next chunk may start; with --strict what is unknown holds it back.")
    assert result.stdout.isascii()
    # and by whatever name rewind takes
    for name in ("r-1", "runs/a", "runs/a/trimtab", folder):
        assert trimtab("gate", name).stdout.splitlines() == lines


def test_a_failed_gate_is_3_and_an_unknown_one_is_3_with_strict_alone(trimtab, chunk, checkpoint):
    chunk()
    checkpoint(40, run_id="r-1", parts=ALL_PARTS)
    assert trimtab("gate").exit_code == 0
    assert trimtab("gate", "--strict").exit_code == 3
    assert trimtab("gate", "--strict").stdout.endswith("Do not start the next chunk.\n")
    chunk("r-2", out="runs/b", stated=2e-3)
    checkpoint(40, run_id="r-2", out="runs/b", parts=ALL_PARTS)
    result = trimtab("gate")
    assert result.exit_code == 3
    assert "1 failed: learning_rate" in result.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nosuch",), 1, "neither a path nor the beginning of a registered run's id"),
        (("runs/a", "--since", "400"), 1, "400"),
        (("runs/a", "--since", "-1"), 2, "-1"),
        (("runs/a", "--since", "x"), 2, "x"),
        (("runs/a", "--checkpoints", "nosuch"), 1, "no folder that can be listed"),
        (("runs/a", "--json", "../out.json"), 2, "outside the current folder"),
        (("runs/a", "--json", "runs/a/trimtab/r-1/out.json"), 2, "run folder"),
        (("runs/a", "runs/a"), 2, "unexpected extra argument"),
    ],
)
def test_what_cannot_be_judged_is_an_error_of_one_line(trimtab, chunk, arguments, code, said):
    chunk()
    result = trimtab("gate", *arguments)
    assert result.exit_code == code
    assert said in result.stderr
    assert result.stdout == ""
    assert result.stderr.splitlines()[-1].startswith("Error: ")


def test_a_machine_without_a_run_says_what_to_do(trimtab):
    result = trimtab("gate")
    assert result.exit_code == 1
    assert "No run is registered on this machine" in result.stderr


def test_the_json_has_every_gate_with_its_figures(trimtab, chunk, checkpoint, here):
    folder = chunk()
    checkpoint(40, run_id="r-1", parts=ALL_PARTS)
    result = trimtab("gate", "--json", "-")
    document = json.loads(result.stdout)
    assert document | {"gates": []} == {
        "version": 1,
        "run_id": "r-1",
        "source": str(folder),
        "passed": True,
        "strict": False,
        "chunk": {"first_step": 1, "last_step": 40, "num_steps": 40, "attempts": [1]},
        "checkpoint": str(here / "runs/a/step_40"),
        "gates": [],
        "notices": [],
    }
    assert [gate["name"] for gate in document["gates"]] == list(GATE_NAMES)
    assert all(set(gate) == {"name", "status", "text", "figures"} for gate in document["gates"])
    # and a file, whose verdict knows of --strict
    assert trimtab("gate", "--strict", "--json", "gates.json").stdout.splitlines()[-1] == "Wrote gates.json"
    written = json.loads((here / "gates.json").read_text())
    assert (written["passed"], written["strict"]) == (False, True)


def test_a_chunk_can_be_told_where_to_begin(trimtab, chunk):
    chunk()
    chunk(steps=range(41, 61), goes_on=True)
    found = [json.loads(trimtab("gate", *asked, "--json", "-").stdout)["chunk"] for asked in ((), ("--since", "10"))]
    assert [(one["first_step"], one["last_step"]) for one in found] == [(41, 60), (11, 60)]


# Where the checkpoints are.


def test_a_run_without_any_checkpoint_fails_and_says_where_they_were_looked_for(trimtab, chunk, here):
    chunk()
    result = trimtab("gate", "--json", "-")
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["checkpoint"] is None
    (written,) = [gate for gate in found["gates"] if gate["name"] == "checkpoint_written"]
    assert written["status"] == "failed"
    assert f"no checkpoint of this run is in {here / 'runs/a'}, or in the folders in there" in written["text"]
    # and what cannot be known for want of it is told once
    lines = trimtab("gate").stdout.splitlines()
    assert sum("there is no checkpoint to look at" in line for line in lines) == 1


def test_checkpoints_that_lie_elsewhere_can_be_named(trimtab, chunk, checkpoint, here):
    chunk()
    checkpoint(40, run_id="r-1", out="elsewhere/deep", parts=ALL_PARTS)
    assert gates(trimtab("gate", "--json", "-"))["checkpoint_written"] == "failed"
    for named in ("elsewhere/deep", "elsewhere"):
        result = trimtab("gate", "--checkpoints", named, "--json", "-")
        assert gates(result)["checkpoint_written"] == "passed"
        assert json.loads(result.stdout)["checkpoint"].endswith("elsewhere/deep/step_40")


def test_of_two_segments_that_of_the_run_is_looked_at(trimtab, chunk, checkpoint, here):
    # given the checkpoints of two runs, each in a folder of its own in one output folder
    chunk("r-1")
    chunk("r-2")
    checkpoint(40, run_id="r-1", out="runs/a/segment_1", parts=ALL_PARTS)
    checkpoint(40, run_id="r-2", out="runs/a/segment_2", parts=ALL_PARTS)
    for run_id, place in (("r-1", "segment_1"), ("r-2", "segment_2")):
        for named in ((), ("--checkpoints", "runs/a")):
            result = trimtab("gate", run_id, *named, "--json", "-")
            assert json.loads(result.stdout)["checkpoint"].endswith(f"{place}/step_40")
    # and of one run in both, which is asked for
    checkpoint(20, run_id="r-2", out="runs/a/segment_3", parts=ALL_PARTS)
    result = trimtab("gate", "r-2")
    assert result.exit_code == 1
    assert "are in 2 folders. Name one with --checkpoints" in result.stderr


def test_a_run_folder_that_was_copied_alone_is_unknown_where_its_checkpoints_are_not(trimtab, chunk, checkpoint, here):
    folder = chunk()
    checkpoint(40, run_id="r-1")
    shutil.copytree(folder, here / "copy/trimtab/r-1")
    shutil.rmtree(here / "runs")
    result = trimtab("gate", "copy", "--json", "-")
    assert gates(result)["checkpoint_written"] == "unknown"
    assert result.exit_code == 0


def test_of_a_copy_beside_its_original_only_what_lies_in_the_copy_counts(trimtab, chunk, checkpoint, here):
    chunk(out="runs/a")
    checkpoint(40, run_id="r-1", out="runs/a/segment_1", parts=ALL_PARTS)
    shutil.copytree(here / "runs/a", here / "runs/b")
    for named in ("runs/a", "runs/b"):
        result = trimtab("gate", named, "--json", "-")
        assert json.loads(result.stdout)["checkpoint"] == str(here / named / "segment_1/step_40")
    # and where it has none, that of the original is not taken for its own
    shutil.rmtree(here / "runs/b/segment_1")
    result = trimtab("gate", "runs/b", "--json", "-")
    document = json.loads(result.stdout)
    assert (document["checkpoint"], gates(result)["checkpoint_written"]) == (None, "unknown")
    (text,) = [gate["text"] for gate in document["gates"] if gate["name"] == "checkpoint_written"]
    assert f"no checkpoint of this run is in {here / 'runs/b'}" in text
    assert f"{here / 'runs/a'}, where they may still be" in text
    assert "--checkpoints DIR" in text


def test_a_checkpoint_that_is_named_as_the_folder_of_them_says_what_is_meant(trimtab, chunk, checkpoint, here):
    chunk()
    checkpoint(40, run_id="r-1", parts=ALL_PARTS)
    result = trimtab("gate", "--checkpoints", "runs/a/step_40")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "runs/a/step_40 is a checkpoint itself" in result.stderr
    assert result.stderr.endswith(f"Name the folder that holds it: --checkpoints {here / 'runs/a'}\n")


def test_an_output_folder_behind_a_link_is_not_two_folders(trimtab, chunk, checkpoint, here):
    (here / "link").symlink_to(here / "runs")
    chunk(named_out=str(here / "link/a"))
    checkpoint(40, run_id="r-1", parts=ALL_PARTS)
    assert gates(trimtab("gate", "--json", "-"))["checkpoint_written"] == "passed"


@pytest.mark.parametrize("named", ["x" * 5000, "\x1b[2J", "/proc/self/root"], ids=["long", "escape", "proc"])
def test_a_header_that_names_nonsense_costs_the_checkpoint_alone(trimtab, chunk, named):
    chunk(named_out=named)
    result = trimtab("gate")
    assert result.exit_code in (0, 3)
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout


def test_a_log_of_another_tool_is_judged_as_far_as_it_goes(trimtab, write_log):
    result = trimtab("gate", write_log(), "--json", "-")
    found = gates(result)
    assert found["checkpoint_written"] == found["round_trip"] == "unknown"
    assert "failed" not in found.values()
    assert result.exit_code == 0


def test_a_log_without_a_run_has_no_checkpoint_that_is_known_to_be_its_own(trimtab, write_log, checkpoint):
    checkpoint(60, parts=ALL_PARTS)
    result = trimtab("gate", write_log(), "--checkpoints", "runs/a", "--json", "-")
    found = gates(result)
    assert (found["checkpoint_written"], found["checkpoint_whole"]) == ("unknown", "passed")
    assert json.loads(result.stdout)["checkpoint"].endswith("step_60")


def test_a_log_that_cannot_be_read_is_1(trimtab, here):
    (here / "rewind.jsonl").write_bytes(b"\x00\x01\x02")
    result = trimtab("gate", "rewind.jsonl")
    assert (result.exit_code, result.stdout) == (1, "")


def test_nothing_is_written_where_it_looks(trimtab, chunk, checkpoint, here):
    chunk()
    checkpoint(40, run_id="r-1")
    before = {place: place.stat().st_mtime_ns for place in here.rglob("*")}
    trimtab("gate")
    assert {place: place.stat().st_mtime_ns for place in here.rglob("*")} == before
