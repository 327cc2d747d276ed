"""Metric files in JSONL, read through the door that every log goes through."""

import json
import math

import numpy as np
import pytest

from trimtab.errors import LogError
from trimtab.log.foreign.steps import entries as room
from trimtab.log.reader import open_log


@pytest.fixture
def jsonl(tmp_path):
    """Writes entries (objects, or lines as they stand) and opens the file."""

    def make(*lines, end="\n", name="log.jsonl"):
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        path = tmp_path / name
        path.write_text("\n".join(texts) + end, encoding="utf-8")
        return open_log(path)

    return make


def losses(log):
    columns = log.step_columns()
    return dict(zip(columns.step.tolist(), columns.loss.tolist(), strict=True))


def test_one_object_is_one_step_with_all_that_it_says(jsonl):
    columns = jsonl({"step": 1, "loss": 2.5, "grad_norm": 0.5, "learning_rate": 1e-4, "loss_scale": 8}).step_columns()
    assert (columns.step.tolist(), columns.loss.tolist(), columns.grad_norm.tolist()) == ([1], [2.5], [0.5])
    assert (columns.lr.tolist(), columns.loss_scale.tolist(), columns.num_tokens.tolist()) == ([1e-4], [8.0], [-1])


def test_nested_objects_and_the_counter_of_wandb_are_read(jsonl):
    log = jsonl({"_step": 4, "train": {"loss": 2.5, "grad": {"norm": 1.5}}, "_timestamp": 1.7e9})
    assert losses(log) == {4: 2.5}
    assert log.step_columns().has_grad_norm.tolist() == [False]


def test_what_is_not_finite_keeps_its_kind_bare_or_as_text(jsonl):
    log = jsonl(
        '{"step":1,"loss":NaN}', '{"step":2,"loss":Infinity}', '{"step":3,"loss":"-inf"}', '{"step":4,"loss":"nan"}',
        '{"step":5,"loss":null}', '{"step":6,"loss":1e999}',
    )  # fmt: skip
    columns = log.step_columns()
    assert columns.loss[[1, 2, 5]].tolist() == [math.inf, -math.inf, math.inf]
    assert np.isnan(columns.loss[[0, 3, 4]]).all()
    assert columns.num_tokens.tolist() == [-1, -1, -1, -1, 0, -1]


def test_a_torn_end_and_a_bad_line_in_the_middle_are_told_apart(jsonl):
    # given
    log = jsonl('{"step":1,"loss":2}', "oops", "", '{"step":2,"loss":3}', '{"step":3,"lo', end="")
    # then
    assert losses(log) == {1: 2.0, 2: 3.0}
    assert log.notices() == [
        "1 line not a JSON object was left out (line 2)",
        "the last line (5) has no line end and was left out: it may be torn",
    ]


def test_a_whole_object_without_a_line_end_is_left_out_as_in_any_other_log(jsonl):
    log = jsonl({"step": 1, "loss": 2.0}, {"step": 2, "loss": 3.0}, end="")
    assert losses(log) == {1: 2.0}
    assert log.notices() == ["the last line (2) has no line end and was left out: it may be torn"]


def test_lines_may_end_in_carriage_returns(jsonl):
    log = jsonl('{"step":1,"loss":2}\r{"step":2,"loss":3}\r', end="")
    assert (losses(log), log.notices()) == ({1: 2.0, 2: 3.0}, [])


def test_a_torn_line_before_a_blank_one_is_bad(jsonl):
    log = jsonl('{"step":1,"loss":2}', '{"step":2,"lo', "")
    assert (losses(log), log.notices()) == ({1: 2.0}, ["1 line not a JSON object was left out (line 2)"])


def test_what_was_measured_on_other_data_is_an_evaluation_and_never_a_step(jsonl):
    # given: by its name, and by what the entry says of itself
    log = jsonl(
        {"step": 1, "loss": 2.0, "split": "train"},
        {"step": 1, "eval_loss": 2.5, "eval_runtime": 3.0},
        {"step": 2, "loss": 9.0, "split": "validation"},
        {"step": 3, "loss": 1.5, "split": "train"},
        {"step": 3, "eval_wiki_loss": float("nan"), "eval_code_loss": 1.0},
    )
    # then
    assert losses(log) == {1: 2.0, 3: 1.5}
    assert [(event.kind, event.step, event.facts) for event in log.event_list()] == [
        ("evaluation", 1, {"loss": 2.5, "eval_loss": 2.5}),
        ("evaluation", 2, {"loss": 9.0, "validation/loss": 9.0}),
        ("evaluation", 3, {"loss": "nan", "eval_wiki_loss": "nan", "eval_code_loss": 1.0}),
    ]


def test_the_summary_that_ends_a_log_is_no_step(jsonl):
    log = jsonl({"step": 1, "loss": 2.0}, {"step": 1, "train_loss": 5.0, "train_runtime": 9.0, "epoch": 1.0})
    assert (losses(log), log.notices()) == ({1: 2.0}, [])


def test_an_entry_without_a_loss_or_a_step_is_counted(jsonl):
    log = jsonl(
        {"step": 1, "loss": 2.0},
        {"config": {"lr": 1}},
        {"loss": 3.0},
        {"step": "x", "loss": 1},
        {"step": 7, "loss": [1]},
    )
    assert losses(log) == {1: 2.0}
    assert log.notices() == [
        "1 line with a loss or gradient norm that is no number was left out (line 5)",
        "2 lines without a whole number as step were left out (lines 3, 4)",
        "1 line holds neither a loss nor a gradient norm",
    ]


def test_a_value_that_is_no_number_costs_itself_alone_and_it_is_said(jsonl):
    log = jsonl({"step": 1, "loss": 2.0, "lr": "warmup"}, {"step": 2, "loss": 1.0, "lr": 0.5, "epoch": "1/4"})
    assert losses(log) == {1: 2.0, 2: 1.0}
    assert log.notices() == [
        "1 line with no number under 'lr' was read without it (line 1)",
        "1 line with no number under 'epoch' was read without it (line 2)",
    ]


def test_without_a_step_the_epoch_counts_or_the_line(jsonl):
    assert losses(jsonl({"epoch": 1, "loss": 2.0}, {"epoch": 2, "loss": 1.0})) == {1: 2.0, 2: 1.0}
    log = jsonl({"loss": 2.0}, {"loss": 1.0})
    assert losses(log) == {1: 2.0, 2: 1.0}
    assert log.notices() == ["no key is named as a step usually is: numbers of lines are read as it"]


def test_steps_are_exact_floats_where_a_table_had_gaps_are_whole_and_halves_are_none(jsonl):
    log = jsonl(f'{{"step": {2**53 + 1}, "loss": 1}}', '{"step": 12.0, "loss": 1}', '{"step": 0.5, "loss": 1}')
    assert sorted(losses(log)) == [12, 2**53 + 1]


def test_a_name_is_chosen_once_for_the_whole_log(jsonl):
    log = jsonl({"step": 1, "train/loss": 9.0}, {"step": 2, "loss": 2.0, "train/loss": 9.0})
    assert losses(log) == {2: 2.0}
    assert "'loss' was read as the loss; 'train/loss' would have been the next choice" in log.notices()


def test_hostile_values_are_no_numbers(jsonl):
    deep = '{"a":' * 5_000 + "1" + "}" * 5_000
    log = jsonl(
        {"step": 1, "loss": 2.0}, deep, '{"step": 2, "loss": ' + "9" * 5_000 + "}", '{"step": 3, "loss": true}',
        {"step": 10**30, "loss": 1.0}, {"step": 4, "loss": "9" * 100},
    )  # fmt: skip
    assert losses(log) == {1: 2.0}
    assert any("(line" in notice for notice in log.notices())


def test_only_so_many_names_are_kept(jsonl, monkeypatch):
    monkeypatch.setattr(room, "MAX_NAMES", 3)
    log = jsonl({"step": 1, "loss": 2.0}, *({f"x{index}_loss": 1.0} for index in range(10)))
    assert losses(log) == {1: 2.0}
    assert "names after the first 3 were not looked at" in log.notices()


def test_a_rewind_jsonl_is_still_one(jsonl):
    log = jsonl(
        {"kind": "batch", "step": 1, "micro": 0, "rows": [5], "row_loss": [2.0], "row_tokens": [10]},
        {"step": 1, "loss": 2.0},
        name="metrics.jsonl",
    )
    assert log.has_rows


@pytest.mark.parametrize("line", ['{"text": "hello"}', '{"step": 1}', "[1, 2]", '"text"'])
def test_objects_without_a_metric_are_no_log(jsonl, line):
    with pytest.raises(LogError, match="as no log that is known does"):
        jsonl(line)
