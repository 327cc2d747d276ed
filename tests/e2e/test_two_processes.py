"""Two real ranks write one log: without a collective, read as one run, and whole whatever becomes of a rank."""

import json
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import trimtab
from trimtab.cli import main

WORKER = Path(__file__).with_name("recorded_ranks.py")
NUM_ROWS_A_STEP = 2 * 2 * 3
ROW_OF_RANK_1 = 12 * 25 + 3 + 1  # second row of the first micro-batch of step 25 on rank 1


@pytest.fixture(scope="module")
def pair(rank_pair: Callable[[Path], Any]) -> Any:
    return rank_pair(WORKER)


def loss_of(row: int, planted: int | None = None) -> float:
    return 64.0 if row == planted else 2.0 + (row * 37 % 16) / 128


def step_losses(last: int, planted: int | None = None, *, ranks: tuple[int, ...] = (0, 1)) -> dict[int, float]:
    """Loss of each step, from the rows that a step and a rank are made of."""
    expected = {}
    for step in range(1, last + 1):
        of_step = range(step * NUM_ROWS_A_STEP, (step + 1) * NUM_ROWS_A_STEP)
        rows = [row for row in of_step if row // 3 % 2 in ranks]
        tokens = [16 + row % 5 for row in rows]
        weighted = [loss_of(row, planted) * num for row, num in zip(rows, tokens, strict=True)]
        expected[step] = sum(weighted) / sum(tokens)
    return expected


def recorded_losses(log: Any) -> dict[int, float]:
    steps = log.steps().numpy()
    return dict(zip(steps["step"].tolist(), steps["loss"].tolist(), strict=True))


def ranks_of_steps(log: Any) -> dict[int, set[int]]:
    ranks = defaultdict(set)
    rows = log.rows().numpy()
    for step, rank in zip(rows["step"].tolist(), rows["rank"].tolist(), strict=True):
        ranks[step].add(rank)
    return dict(ranks)


def cli(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, [str(argument) for argument in (*arguments, "--json", "-")])
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_row_of_rank_1_leads_its_step_in_the_one_log_of_both(
    pair: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given
    monkeypatch.chdir(tmp_path)
    said_before = pair.said()
    answers = pair.call("train", out=str(tmp_path / "out"), last=40, planted=ROW_OF_RANK_1)
    # then both wrote into one folder, and not by a collective
    assert answers[0] == answers[1]
    assert answers[0]["collectives"] == 0
    folder = answers[0]["folder"]
    # and the log is that of one run
    log = trimtab.open_log(folder)
    assert log.header.world_size == 2
    assert log.notices() == []
    assert ranks_of_steps(log) == {step: {0, 1} for step in range(1, 41)}
    assert recorded_losses(log) == pytest.approx(step_losses(40, ROW_OF_RANK_1), rel=1e-12)
    assert [event.kind for event in log.event_list()] == ["evaluation", "end"]
    # and the newest one without a name
    found = cli("rewind")
    assert found["source"] == folder
    assert (found["step"], found["spikes"][0]["step"]) == (25, 25)
    leads = found["rows"][0]
    assert (leads["row"], leads["rank"], leads["count"]) == (ROW_OF_RANK_1, 1, 1)
    assert found["notices"] == ["steps before 21 were judged by the median rule: fewer than 20 steps lie behind them"]
    assert len(cli("runs")["runs"]) == 1
    # and only rank 0 spoke
    first, second = (said.removeprefix(before) for said, before in zip(pair.said(), said_before, strict=True))
    assert "Trimtab records run" in first
    assert "Trimtab recorded the run up to step 40" in first
    assert "Trimtab" not in second
    # and a replay judges what a guard of both ranks would have: two losses a step
    replayed = cli("calibrate", folder)
    assert (replayed["unit"], replayed["num_losses"], replayed["num_findings"]) == ("micro", 80, 1)
    assert replayed["outcomes"][0]["num_judged"] == 80
    # and a rewind.jsonl holds the rows of both in one line a micro-batch
    cli("convert", folder, tmp_path / "both.jsonl")
    converted = trimtab.open_log(tmp_path / "both.jsonl")
    assert recorded_losses(converted) == pytest.approx(step_losses(40, ROW_OF_RANK_1), rel=1e-12)


def test_what_the_guard_of_both_left_out_stands_on_both_in_the_log(pair: Any, tmp_path: Path) -> None:
    first, second = pair.call("train", out=str(tmp_path), last=40, planted=ROW_OF_RANK_1, guarded=True)
    # then the guard summed once a micro-batch, and once its settings; the recorder never
    assert (first["collectives"], second["collectives"]) == (81, 81)
    rows = trimtab.open_log(first["folder"]).rows().numpy()
    skipped = rows["verdict"] == "spike"
    places = zip(rows["step"][skipped], rows["micro"][skipped], rows["rank"][skipped], strict=True)
    assert [tuple(map(int, place)) for place in places] == [(25, 0, rank) for rank in (0, 1) for _ in range(3)]
    # and a replay of the log under the same rule skips the same
    replayed = cli("calibrate", first["folder"])
    (outcome,) = [each for each in replayed["outcomes"] if each["code"] == replayed["code"]]
    assert (outcome["num_spikes"], outcome["first_steps"]) == (1, [25])


def test_runs_one_after_the_other_and_attempts_of_one_are_told_apart(pair: Any, tmp_path: Path) -> None:
    # given two runs under one folder, and the first of them continued
    first, other = pair.call("train", out=str(tmp_path), last=3)
    assert first["run_id"] == other["run_id"]
    second, other = pair.call("train", out=str(tmp_path), last=4)
    assert second["run_id"] == other["run_id"] != first["run_id"]
    pair.call("train", out=str(tmp_path), last=6, first=3, run_id=first["run_id"])
    # then
    log = trimtab.open_log(first["folder"])
    rows = log.rows().numpy()
    assert {*zip(rows["attempt"].tolist(), rows["rank"].tolist(), rows["step"].tolist(), strict=True)} == {
        (attempt, rank, step)
        for attempt, steps in ((1, range(1, 4)), (2, range(3, 7)))
        for rank in (0, 1)
        for step in steps
    }
    assert [event.kind for event in log.event_list()] == ["evaluation", "end", "resume", "evaluation", "end"]
    assert ranks_of_steps(trimtab.open_log(second["folder"])) == {step: {0, 1} for step in range(1, 5)}
    assert trimtab.rewind(first["folder"]).num_steps == 6


@pytest.mark.parametrize("begins_first", [0, 1])
def test_a_rank_may_be_steps_ahead_of_the_other(pair: Any, tmp_path: Path, begins_first: int) -> None:
    first, second = pair.call("train", out=str(tmp_path), last=6, begins_first=begins_first)

    assert first["folder"] == second["folder"]
    assert ranks_of_steps(trimtab.open_log(first["folder"])) == {step: {0, 1} for step in range(1, 7)}
    assert [answer["collectives"] for answer in (first, second)] == [0, 0]


@pytest.mark.parametrize("trains", [False, True])
def test_rows_of_rank_1_are_never_in_a_run_that_rank_0_had_alone_before(
    pair: Any, tmp_path: Path, *, trains: bool
) -> None:
    first, second = pair.call("train_behind_a_run_of_rank_0_alone", out=str(tmp_path), trains=trains)

    assert first["folder"] == second["folder"]
    assert ranks_of_steps(trimtab.open_log(first["folder"])) == {step: {0, 1} for step in range(1, 6)}
    (alone,) = [path for path in (tmp_path / "trimtab").iterdir() if str(path) != first["folder"]]
    assert ranks_of_steps(trimtab.open_log(alone)) == ({1: {0}} if trains else {})


def test_a_guard_refuses_uneven_inputs_at_the_first_micro_batch_on_every_rank(pair: Any, tmp_path: Path) -> None:
    for said in pair.call("train_with_uneven_inputs", out=str(tmp_path)):
        assert "torch.distributed.algorithms.Join" in said
        assert "guard=None" in said


def test_either_rank_may_leave_its_part_out_and_it_is_said(pair: Any, tmp_path: Path) -> None:
    # given that rank 1 does not record: the log says that it is not there
    first, second = pair.call("train", out=str(tmp_path / "a"), last=30, recorded=[0])
    assert second["folder"] is None
    log = trimtab.open_log(first["folder"])
    assert recorded_losses(log) == pytest.approx(step_losses(30, ranks=(0,)), rel=1e-12)
    assert any("1 of 2 ranks have no journal" in notice for notice in trimtab.rewind(log.path).notices)
    # given that rank 0 does not: there is no log
    first, second = pair.call("train", out=str(tmp_path / "b"), last=3, recorded=[1])
    assert first["folder"] is None
    assert second["folder"] is None
    assert "Trimtab recorder off on rank 1: rank 0 does not record this run." in pair.said()[1]
    assert not (tmp_path / "b").exists()


def test_a_rank_that_raises_ends_its_part_and_its_missing_steps_are_said(pair: Any, tmp_path: Path) -> None:
    first, second = pair.call("train", out=str(tmp_path), last=30, fails_at=28)

    assert first["folder"] == second["folder"]
    log = trimtab.open_log(first["folder"])
    ends = [(event.facts["reason"], event.ranks) for event in log.event_list() if event.kind == "end"]
    assert sorted(ends) == [("ArithmeticError", (1,)), ("closed", (0,))]
    expected = step_losses(27) | {step: step_losses(30, ranks=(0,))[step] for step in (28, 29, 30)}
    assert recorded_losses(log) == pytest.approx(expected, rel=1e-12)
    assert (
        "of rank 1 nothing is recorded after step 27: steps 28 to 30 are judged by the rows of the other ranks"
        in trimtab.rewind(log.path).notices
    )


@pytest.mark.long
def test_after_kill_9_of_a_rank_the_log_of_both_is_read_and_the_run_is_continued(tmp_path: Path) -> None:
    # given a run under DDP whose rank 1 is killed after step 25
    assert launch(tmp_path, die_after=25, last=40, first=1) == (1, -9)
    # then
    (folder,) = (tmp_path / "trimtab").iterdir()
    log = trimtab.open_log(folder)
    assert {step: ranks for step, ranks in ranks_of_steps(log).items() if step <= 25} == {
        step: {0, 1} for step in range(1, 26)
    }
    notices = trimtab.rewind(folder).notices
    assert "rank 1 has not ended: it is still going on, or was killed after step 25" in notices
    # and when it is started again from a checkpoint
    assert launch(tmp_path, die_after=0, last=40, first=21) == (0, 0)
    found = trimtab.rewind(folder)
    assert found.num_steps == 40
    assert not any("ended" in notice or "nothing is recorded" in notice for notice in found.notices)
    assert recorded_losses_of_newest(folder) == pytest.approx(
        {step: loss for step, loss in step_losses(40).items() if step > 20}, rel=1e-12
    )


def recorded_losses_of_newest(folder: Path) -> dict[int, float]:
    steps = trimtab.open_log(folder).steps().numpy()
    newest = steps["attempt"] == 2
    return dict(zip(steps["step"][newest].tolist(), steps["loss"][newest].tolist(), strict=True))


def launch(out: Path, **settings: int) -> tuple[int, ...]:
    """Runs both ranks through a TCP store, as torchrun does; gives how they ended."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    given = [str(port), str(out), "r", *(str(settings[name]) for name in ("die_after", "last", "first"))]
    processes = [
        subprocess.Popen([sys.executable, str(WORKER), str(rank), *given], stderr=subprocess.DEVNULL)
        for rank in range(2)
    ]
    return tuple(process.wait(timeout=120) for process in processes)
