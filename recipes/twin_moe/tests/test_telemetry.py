"""Telemetry that fails is said once, a column of it is null, and it costs neither a step nor a save nor a good end."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

import trimtab
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.tests.small_twin import WALL_CLOCK, history, logs, small
from recipes.twin_moe.train import train
from trimtab.checkpoint import Checkpointer

WATCHED = ("clip_fraction", "regress_streak", "best_eval", "best_eval_step")


def failed(lines):
    return [line.partition(" failed at ")[0] for line in lines if " failed at " in line]


def fails(*arguments, **settings):
    raise RuntimeError("gone")


def test_an_evaluation_that_raises_is_said_once_and_costs_neither_a_step_nor_a_save(tmp_path):
    # given
    lines = []

    class Blind(Engine):
        def evaluate(self):
            return 1 / 0

    # when
    result = train(small(num_steps=40), out=tmp_path, tell=lines.append, make_engine=Blind)
    # then
    assert result.checkpoint.path.name == "step_40"
    assert [row["step"] for row in history(tmp_path, "step")] == list(range(1, 41))
    assert history(tmp_path, "eval") == []
    assert [line for line in lines if "ZeroDivisionError" in line] == [
        "evaluation failed at step 15: ZeroDivisionError: division by zero. Training and saves go on; this is not said "
        "again"
    ]


def test_a_best_evaluation_that_cannot_be_told_costs_no_save_and_no_evaluation(tmp_path):
    # given
    lines = []

    class Forgetful(Engine):
        def best_eval(self):
            raise RuntimeError("the watch has lost it")

    # when
    result = train(small(), out=tmp_path, stop_at=31, tell=lines.append, make_engine=Forgetful)
    # then
    assert result.checkpoint.path.name == "step_31"
    assert result.round_trip.same
    assert Checkpointer(tmp_path / "segment_1").pick().step == 31
    assert failed(lines) == ["best evaluation"]
    assert [row["best_eval"] for row in history(tmp_path, "eval")] == [None] * 3


@pytest.mark.parametrize(
    ("lost", "said", "null"),
    [
        ("watch_figures", ["best evaluation", "watch figures"], WATCHED),
        ("available_bytes", ["host memory"], ("host_available_bytes",)),
        ("evaluation", ["record of the evaluation"], WATCHED[1:]),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_a_column_that_fails_is_null_and_costs_no_other_one(tmp_path, monkeypatch, whole, lost, said, null):
    # given
    class Lossy(Engine):
        def __init__(self, *arguments, **settings):
            super().__init__(*arguments, **settings)
            if lost != "available_bytes":
                setattr(self.run, lost, fails)

    if lost == "available_bytes":
        monkeypatch.setattr("recipes.twin_moe.rows.memory", SimpleNamespace(available_bytes=fails))
    # when
    lines = []
    train(small(), out=tmp_path, stop_at=30, tell=lines.append, make_engine=Lossy)
    # then
    assert failed(lines) == said
    rows = history(tmp_path, "eval")
    expected = [row for row in history(whole[0], "eval") if row["step"] <= 30]
    for row, other in zip(rows, expected, strict=True):
        assert {name for name in row if row[name] is None} == {*null, "device_memory_bytes"}
        assert all(row[name] == other[name] for name in row.keys() - {*null, *WALL_CLOCK})
    shown = [line for line in lines if line.startswith("eval step ")]
    assert [f"  ce {row['ce']:.4f} " in line for row, line in zip(rows, shown, strict=True)] == [True, True]


def test_where_one_evaluation_is_not_recorded_its_row_has_no_best_and_not_that_of_the_one_before(tmp_path):
    # given
    class Lossy(Engine):
        def evaluate(self):
            if self.step == 30:
                self.run.evaluation = fails
            return super().evaluate()

    # when
    train(small(), out=tmp_path, stop_at=30, tell=lambda line: None, make_engine=Lossy)
    # then
    first, second = history(tmp_path, "eval")
    assert (first["best_eval"], first["best_eval_step"], first["regress_streak"]) == (first["ce"], 15, 0)
    assert [second[name] for name in WATCHED[1:]] == [None] * 3
    assert second["ce"] < first["ce"]


def test_device_memory_that_cannot_be_told_costs_no_row_and_no_line(tmp_path, monkeypatch):
    # given
    monkeypatch.setattr("recipes.twin_moe.rows._device_peak_bytes", fails)
    # when
    lines = []
    train(small(), out=tmp_path, stop_at=15, tell=lines.append)
    # then
    assert failed(lines) == ["device memory"]
    assert [row["step"] for row in history(tmp_path, "step")] == list(range(1, 16))
    assert [row["step"] for row in history(tmp_path, "eval")] == [15]
    assert sum(line.startswith("step ") for line in lines) == 4  # 1, 10, 15 and the last line


def test_a_console_that_raises_costs_nothing(tmp_path, capsys):
    # given
    def tell(line):
        raise UnicodeEncodeError("cp1252", "\u26a0", 0, 1, "no such character")

    # when
    result = train(small(num_steps=30), out=tmp_path, tell=tell)
    # then
    assert result.checkpoint is not None
    assert capsys.readouterr().err.count("could not be told") == 1


def test_a_round_trip_that_raises_costs_nothing(tmp_path):
    # given
    lines = []

    class OneWay(Engine):
        def round_trip(self, checkpoint):
            return 1 / 0

    # when
    result = train(small(), out=tmp_path, stop_at=5, tell=lines.append, make_engine=OneWay)
    # then
    assert result.checkpoint is not None
    assert result.round_trip is None
    assert any(line.startswith("round trip failed") for line in lines)


def test_a_round_trip_that_cannot_be_told_costs_nothing(tmp_path):
    # given bytes that are none: a model whose vocabulary is larger
    class Foreign(Engine):
        def round_trip(self, checkpoint):
            found = super().round_trip(checkpoint)
            return replace(found, probe=replace(found.probe, top_ids=(2**31,) * 4))

    # when
    lines = []
    result = train(small(), out=tmp_path, stop_at=5, tell=lines.append, make_engine=Foreign)
    # then
    assert failed(lines) == ["telling of the round trip"]
    assert result.round_trip.same
    assert lines[-1].startswith("step 5 of 120 is done")
    [log] = logs(tmp_path)
    ends = [event.facts["reason"] for event in trimtab.open_log(log).event_list() if event.kind == "end"]
    assert ends == ["closed"]


@pytest.mark.parametrize("best", [{"best": 2.5}, [2.5], {"best": {}, "best_step": 1, "num_worse": 0}], ids=str)
def test_a_best_evaluation_of_a_checkpoint_that_cannot_be_told_costs_no_resume(tmp_path, best):
    # given
    class Other(Engine):
        def best_eval(self):
            return best

    train(small(), out=tmp_path, stop_at=5, tell=lambda line: None, make_engine=Other)
    # when
    lines = []
    result = train(small(), out=tmp_path, stop_at=7, tell=lines.append)
    # then
    assert result.checkpoint.path.name == "step_7"
    assert lines[0].startswith("telling of the best evaluation failed at step 5: ")
    assert lines[1] == f"resumes {tmp_path / 'segment_1' / 'step_5'}: step 5, best eval loss unknown"


@pytest.mark.parametrize("source", ["x" * 5000, "x\0", "\ud800"], ids=["too long", "no name", "no text"])
def test_a_history_that_names_no_possible_checkpoint_costs_no_training(halfway, source):
    # given
    row = {"kind": "segment", "segment": 1, "begins_at_step": 31, "resumed_from": source}
    with (halfway / "history.jsonl").open("a") as file:
        file.write(f"{json.dumps(row)}\n")
    # when
    lines = []
    result = train(small(), out=halfway, stop_at=61, tell=lines.append)
    # then
    assert result.checkpoint.path.name == "step_61"
    assert len(failed(lines)) == (source == "x" * 5000)


def test_an_interrupted_training_writes_the_steps_that_it_has_done(tmp_path):
    # given
    class Interrupted(Engine):
        def train_step(self, micro_batches=None):
            if self.step == 7:
                raise KeyboardInterrupt
            return super().train_step(micro_batches)

    # when
    with pytest.raises(KeyboardInterrupt):
        train(small(), out=tmp_path, tell=lambda line: None, make_engine=Interrupted)
    # then
    assert [row["step"] for row in history(tmp_path, "step")] == list(range(1, 8))
