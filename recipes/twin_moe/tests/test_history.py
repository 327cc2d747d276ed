"""The history: what is in a row, and that nothing ever takes a row away or lets one cost a save."""

import json
import math
import resource
from pathlib import Path

import pytest
import torch

import trimtab
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.history import History, newest_call
from recipes.twin_moe.rows import fetch, step_row
from recipes.twin_moe.tests.small_twin import EVAL_COLUMNS, STEP_COLUMNS, history, logs, small
from recipes.twin_moe.train import train
from trimtab.watched import EVALUATION_EVENT


def opened(path, lines=None):
    writer = History(path, tell=(lines if lines is not None else []).append)
    writer.open()
    return writer


def rows_of(path):
    return [json.loads(line, parse_constant=pytest.fail) for line in path.read_text(encoding="ascii").splitlines()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Steps 1 to 30, an interruption, 31 to 40, and 10 steps of a second segment; the folder, and the runs' logs."""
    out = tmp_path_factory.mktemp("out")
    train(small(num_steps=40), out=out, stop_at=30, tell=lambda line: None)
    train(small(num_steps=40), out=out, tell=lambda line: None)
    [first] = logs(out)
    train(small(num_steps=40), out=out, stop_at=10, fresh=True, tell=lambda line: None)
    [second] = set(logs(out)) - {first}
    return out, (first, second)


def plainly(what, figure):
    return figure()


# The file.


def test_rows_are_written_behind_what_stands_there_and_nothing_of_that_changes(tmp_path):
    # given
    path = tmp_path / "history.jsonl"
    first = opened(path)
    first.append([{"step": 1}])
    first.close()
    before = path.read_bytes()
    # when
    again = opened(path)
    again.append([{"step": 2}, {"step": 3}])
    again.close()
    # then
    assert path.read_bytes().startswith(before)
    assert rows_of(path) == [{"step": 1}, {"step": 2}, {"step": 3}]


def test_a_line_that_a_killed_writer_tore_is_closed_and_never_cut(tmp_path):
    # given
    path = tmp_path / "history.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo')
    # when
    writer = opened(path)
    writer.append([{"step": 3}])
    writer.close()
    # then
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2, "lo\n{"step": 3}\n'


def test_numbers_that_are_not_finite_are_text_and_everything_is_ascii(tmp_path):
    # given
    path = tmp_path / "history.jsonl"
    # when
    writer = opened(path)
    writer.append([{"loss": math.nan, "all": [math.inf, {"least": -math.inf}], "path": "r\u00fcns"}])
    writer.close()
    # then
    assert rows_of(path) == [{"loss": "nan", "all": ["inf", {"least": "-inf"}], "path": "r\u00fcns"}]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_said_once_and_raises_nothing(tmp_path):
    # given
    path = tmp_path / "history.jsonl"
    path.symlink_to("/dev/full")
    lines = []
    # when
    writer = opened(path, lines)
    for step in range(3):
        writer.append([{"step": step}])
    writer.close()
    # then
    [line] = lines
    assert "No space left on device" in line
    assert "saves go on" in line


def test_a_row_that_a_disk_took_in_part_is_closed_once_there_is_room_again(tmp_path):
    # given a file that may grow to 30 bytes
    path, lines = tmp_path / "history.jsonl", []
    writer = opened(path, lines)
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, most))
    # when
    try:
        writer.append([{"step": 1}, {"step": 2, "loss": 3.25}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    writer.append([{"step": 3}])
    writer.close()
    # then
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2, "loss"\n{"step": 3}\n'
    assert len(lines) == 1


def test_a_file_that_cannot_be_opened_costs_rows_and_nothing_else(tmp_path):
    # given
    (tmp_path / "file").write_text("")
    lines = []
    # when
    writer = opened(tmp_path / "file" / "history.jsonl", lines)
    writer.append([{"step": 1}])
    writer.close()
    # then
    assert len(lines) == 1


def test_a_name_that_no_file_can_have_costs_rows_and_nothing_else(tmp_path):
    lines = []
    writer = opened(tmp_path / "a\0b", lines)
    writer.append([{"step": 1}])
    writer.close()
    assert len(lines) == 1


def test_the_newest_call_of_a_segment_is_read_also_between_torn_lines(tmp_path):
    # given
    path = tmp_path / "history.jsonl"
    path.write_text(
        '{"kind": "segment", "segment": 1, "begins_at_step": 1, "resumed_from": null}\n'
        '{"kind": "step", "segment": 1, "step": 60}\n{"kind": "st\n[3]\n'
        '{"kind": "segment", "segment": 1, "begins_at_step": 21, "resumed_from": "a/step_20"}\n'
        '{"kind": "segment", "segment": 2, "begins_at_step": 1, "weights_from": "b/step_9"}\n'
        '{"kind": "step", "segment": 2, "step": 3}\n{"kind": "step", "segment": 1, "step": 21}\n'
    )
    # then
    assert newest_call(path, segment=1) == ("a/step_20", None, 21, 21)
    assert newest_call(path, segment=2) == (None, "b/step_9", 1, 3)
    assert newest_call(path, segment=3) is None


def test_what_is_no_file_has_no_newest_call(tmp_path):
    (tmp_path / "endless").symlink_to("/dev/zero")
    assert newest_call(tmp_path / "endless", segment=1) is None
    assert newest_call(tmp_path / "none", segment=1) is None


# The rows.


def test_a_call_writes_its_segment_then_steps_in_order_then_evaluations_where_they_fall(trained):
    # given
    out, (first, second) = trained
    rows = history(out)
    # then
    segments = [row for row in rows if row["kind"] == "segment"]
    assert [(row["segment"], row["begins_at_step"]) for row in segments] == [(1, 1), (1, 31), (2, 1)]
    assert [row["resumed_from"] for row in segments] == [None, str(out / "segment_1" / "step_30"), None]
    assert [row["weights_from"] for row in segments] == [None, None, None]
    assert [row["run_id"] for row in segments] == [first.name, first.name, second.name]
    assert segments[0]["settings"]["optim"]["z_weight"] == small().optim.z_weight
    assert "mean over layers" in segments[0]["scales"]["z"]
    steps = [row["step"] for row in rows if row["kind"] == "step"]
    assert steps == [*range(1, 41), *range(1, 11)]
    evals = [(row["segment"], row["step"]) for row in rows if row["kind"] == "eval"]
    assert evals == [(1, 15), (1, 30), (1, 40), (2, 10)]
    places = [row["step"] for row in rows if row["kind"] in ("step", "eval") and row["segment"] == 1]
    assert places == sorted(places)


def test_every_row_has_every_column(trained):
    for row in history(trained[0]):
        assert row["run_id"] in {log.name for log in trained[1]}
        if row["kind"] == "step":
            assert row.keys() == STEP_COLUMNS
        if row["kind"] == "eval":
            assert row.keys() == EVAL_COLUMNS


def test_a_step_row_is_the_loss_in_its_parts_with_each_weight_once(trained):
    optim = small().optim
    for row in history(trained[0], "step"):
        assert row["lbl_weighted"] == pytest.approx(optim.lbl_weight * row["lbl"])
        assert row["z_weighted"] == pytest.approx(optim.z_weight * row["z"])
        assert row["xpop_weighted"] == pytest.approx(optim.xpop_weight * row["xpop"])
        assert row["loss"] == pytest.approx(
            row["ce"] + row["lbl_weighted"] + row["z_weighted"] + row["xpop_weighted"], rel=1e-6
        )
        assert row["tokens_per_s"] > 0
        assert row["device_memory_bytes"] is None


def test_step_rows_say_what_the_log_of_the_run_says(trained):
    # given
    out, (first, _) = trained
    log = trimtab.open_log(first).steps().numpy()
    rows = {row["step"]: row for row in history(out, "step") if row["segment"] == 1}
    # then
    assert len(log["step"]) == 40
    for step, loss, grad_norm, lr in zip(log["step"], log["loss"], log["grad_norm"], log["lr"], strict=True):
        row = rows[int(step)]
        assert (row["grad_norm"], row["lr"]) == (grad_norm, lr)
        assert row["ce"] == pytest.approx(loss, rel=1e-6)  # the log's is made of its rows' sums


def test_eval_rows_hold_what_was_measured_and_the_best_up_to_then(trained):
    # given
    out, (first, _) = trained
    rows = [row for row in history(out, "eval") if row["segment"] == 1]
    events = trimtab.open_log(first).events().numpy()
    logged = [
        json.loads(facts)
        for kind, facts in zip(events["kind"], events["facts"], strict=True)
        if kind == EVALUATION_EVENT
    ]
    # then
    assert [row["eval_loss"] for row in rows] == [facts["loss"] for facts in logged]
    for number, row in enumerate(rows):
        best = min(rows[: number + 1], key=lambda one: one["eval_loss"])
        assert (row["best_eval"], row["best_eval_step"]) == (best["eval_loss"], best["step"])
        assert sum(row["population_shares"]) == pytest.approx(1.0)
        assert 0 <= row["dead_fraction"] <= 1
        assert 0 <= row["clip_fraction"] <= 1
        assert row["ce"] == row["eval_loss"]


def test_a_step_whose_every_micro_batch_was_left_out_has_no_loss_in_its_row(tmp_path):
    # given an engine whose model says nothing but NaN for one step
    config = small()
    with Engine(config, out=tmp_path) as engine:
        measured = [engine.train_step()]
        hook = engine.model.head.register_forward_hook(lambda module, inputs, logits: logits * torch.nan)
        measured.append(engine.train_step())
        hook.remove()
        measured.append(engine.train_step())
        # when
        rows = [
            step_row(engine, step, sums, segment=1, tokens_per_s=None, contained=plainly)
            for step, sums in zip(measured, fetch(measured), strict=True)
        ]
    # then
    assert [row["reason"] for row in rows] == ["stepped", "all_skipped", "stepped"]
    assert (rows[1]["loss"], rows[1]["ce"], rows[1]["grad_norm"]) == (None, None, None)
    assert rows[1]["num_skipped_micros"] == config.accumulation
    assert math.isfinite(rows[2]["loss"])


def test_where_a_micro_batch_was_left_out_the_loss_is_that_of_the_others(tmp_path):
    # given
    config = small()
    with Engine(config, out=tmp_path) as engine:
        seen = []

        def spoil(module, inputs, logits):
            seen.append(None)
            return logits * torch.nan if len(seen) == 1 else logits

        hook = engine.model.head.register_forward_hook(spoil)
        measured = engine.train_step()
        hook.remove()
        [sums] = fetch([measured])
        row = step_row(engine, measured, sums, segment=1, tokens_per_s=None, contained=plainly)
    # then
    assert row["num_skipped_micros"] == 1
    assert row["loss"] == pytest.approx(row["ce"] + 0.01 * 1.0, abs=0.02)
    assert math.log(256) - 1 < row["ce"] < math.log(256) + 1


# As a log of somebody else's.


def test_rewind_reads_the_history_as_a_log_and_says_nothing_false_of_it(trained):
    # when
    found = trimtab.rewind(trained[0] / "history.jsonl").to_dict()
    # then
    rows = history(trained[0], "step")
    assert found["num_steps"] == len(rows)
    assert any("2 runs in one file" in notice for notice in found["notices"])
    assert not any("left out" in notice and "no loss" in notice for notice in found["notices"])
    log = trimtab.open_log(trained[0] / "history.jsonl")
    assert log.steps().numpy()["loss"].tolist() == [row["loss"] for row in rows]
    events = log.events().numpy()
    assert [json.loads(facts)["loss"] for facts in events["facts"]] == [
        row["eval_loss"] for row in history(trained[0], "eval")
    ]


def test_rewind_reads_z_on_its_own_scale(trained, tmp_path):
    # given a history of one segment
    path = tmp_path / "history.jsonl"
    lines = (trained[0] / "history.jsonl").read_text(encoding="ascii").splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["segment"] == 1), encoding="ascii")
    # when
    router = trimtab.rewind(path).to_dict()["router"]
    # then
    last = history(tmp_path, "step")[-1]
    assert router["z_scale"] == "mean"
    assert router["z"] == last["z"]
