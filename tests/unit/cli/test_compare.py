"""`trimtab compare`."""

import json

import pytest


@pytest.fixture
def pair(write_log):
    return write_log("a.jsonl"), write_log("b.jsonl", spikes={41: [(1041, 1.5, 100)]})


def test_runs_that_are_the_same_exit_with_0(trimtab, write_log):
    result = trimtab("compare", write_log("a.jsonl"), write_log("b.jsonl"))
    assert result.exit_code == 0
    assert "The same, bit for bit, in 60 steps" in result.stdout


def test_runs_that_differ_exit_with_3_and_name_where(trimtab, pair):
    result = trimtab("compare", *pair)
    assert result.exit_code == 3
    assert "The runs part at step 41, rank 0, micro-batch 0, row 1041: rows.loss_sum is 100.0 in a, 150.0 in b" in (
        result.stdout
    )


def test_json_holds_the_first_difference_and_nothing_else_is_printed(trimtab, pair):
    result = trimtab("compare", *pair, "--json", "-")
    assert result.exit_code == 3
    document = json.loads(result.stdout)
    keys = {"version", "a", "b", "same", "num_steps", "lacks", "first", "first_in_both", "columns", "notices"}
    assert set(document) == keys
    assert document["first"] == {
        "step": 41,
        "column": "rows.loss_sum",
        "micro": 0,
        "rank": 0,
        "row": 1041,
        "a": 100.0,
        "b": 150.0,
    }
    assert (document["version"], document["same"], document["num_steps"]) == (1, False, 60)
    assert document["columns"]["rows.loss_sum"] == 41


def test_json_goes_to_a_file_that_is_named(trimtab, pair, here):
    result = trimtab("compare", *pair, "--json", "found.json")
    assert json.loads((here / "found.json").read_text())["first"]["step"] == 41
    assert "Wrote found.json" in result.stdout


def test_a_run_is_found_by_the_beginning_of_its_id(trimtab, record):
    record("first", out="a")
    record("second", out="b")
    assert trimtab("compare", "fir", "sec").exit_code == 0


def test_what_is_read_is_not_written_over(trimtab, record, here):
    folder = record("first", out="a")
    result = trimtab("compare", "fir", "fir", "--json", str(folder.relative_to(here) / "found.json"))
    assert result.exit_code == 2
    assert "run folder" in result.stderr


def test_a_log_that_is_not_there_exits_with_1(trimtab, write_log):
    result = trimtab("compare", write_log("a.jsonl"), "nowhere")
    assert result.exit_code == 1
    assert "'nowhere' is neither a path nor the beginning of a registered run's id" in result.stderr


@pytest.mark.parametrize("names", [(), ("a.jsonl",), ("a.jsonl", "b.jsonl", "c.jsonl")])
def test_another_number_of_runs_than_two_is_a_usage_error(trimtab, names):
    assert trimtab("compare", *names).exit_code == 2
