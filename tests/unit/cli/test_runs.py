"""`trimtab runs`."""

import json
import sqlite3

import pytest


def test_runs_are_listed_newest_first(trimtab, record):
    record("older", created=1.0)
    record("newer", created=2.0)
    result = trimtab("runs")
    assert result.exit_code == 0
    assert result.stdout.index("newer") < result.stdout.index("older")


def test_a_run_that_is_gone_is_marked(trimtab, record, here):
    record("gone").rename(here / "hidden")
    assert "gone from" in trimtab("runs").stdout
    (run,) = json.loads(trimtab("runs", "--json", "-").stdout)["runs"]
    assert (run["run_id"], run["backend"], run["exists"]) == ("gone", "torch", False)


def test_where_a_run_is_fits_on_its_line_however_long_the_path(trimtab, record, here, monkeypatch):
    # given: a run below the current folder, one that is gone, and one far away; a terminal of 80 characters
    record("near", out="runs/a")
    record("lost", out="b" * 70).rename(here / "hidden")
    record("far", out="c" * 70 + "/end")
    monkeypatch.setenv("COLUMNS", "80")
    # when
    lines = trimtab("runs").stdout.splitlines()
    # then: one line a run below the heading, and one that says that something is not there
    assert len(lines) == 2 + 3 + 1
    assert lines[-1] == "... stands for a part of a folder that does not fit; --json has it whole."
    assert all(len(line) <= 80 for line in lines)
    assert next(line for line in lines if line.startswith("near")).split()[-1] == "runs/a"
    assert "  gone from bbb" in next(line for line in lines if line.startswith("lost"))
    far = next(line for line in lines if line.startswith("far")).rstrip()
    assert "  ccc" in far
    assert "..." in far
    assert far.endswith("/end")
    # then: nothing is cut where a program reads
    paths = [run["path"] for run in json.loads(trimtab("runs", "--json", "-").stdout)["runs"]]
    assert str(here / "runs" / "a" / "trimtab" / "near") in paths


def test_where_a_run_is_stands_whole_where_the_current_folder_is_no_shorter_way(trimtab, record, tmp_path, monkeypatch):
    path = record("a", out="o")
    far = tmp_path / "x" / "y" / "z" / "x" / "y" / "z"
    far.mkdir(parents=True)
    monkeypatch.chdir(far)
    monkeypatch.setenv("COLUMNS", "400")
    shown = trimtab("runs").stdout.splitlines()[-1].split()[-1]
    assert shown == min(str(path.parents[1]), "../" * 6 + "o", key=len)


@pytest.mark.parametrize("width", [80, 96, 120])
def test_a_list_fits_whatever_the_width_and_says_nothing_where_nothing_is_cut(trimtab, record, monkeypatch, width):
    record("near", out="runs/a")
    monkeypatch.setenv("COLUMNS", str(width))
    assert "..." not in trimtab("runs").stdout
    record("far", out="c" * 200)
    assert max(map(len, trimtab("runs").stdout.splitlines())) <= width


def test_no_runs_is_an_answer(trimtab):
    assert "No run is registered" in trimtab("runs").stdout
    result = trimtab("runs", "--json", "-")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"version": 1, "runs": []})


@pytest.mark.parametrize(
    "odd",
    [
        {"created": "notanumber"},
        {"created": float("inf")},
        {"created": 10**18},
        {"created": -(10**18)},
        {"run_id": b"\xff"},
        {"path": b"\xff"},
        {"backend": b"\xff"},
        {"backend": "\x1b[31m"},
        {"task": 5},
        {"out": 5},
        {"out": b"/"},
        {"experiment": 5},
        {"experiment": "../" * 3_000},
        {"path": "/" + "x" * 9_000},
        {"path": "/a\0b"},
        {"run_id": ""},
    ],
    ids=str,
)
def test_an_entry_that_makes_no_sense_costs_at_most_itself(trimtab, record, trimtab_home, odd):
    # given: a good run, and beside it the newest, whose file anybody may have written to
    record("good")
    entry = dict(run_id="odd", path="/nowhere", backend="torch", task=None, created=2.0, out=None, experiment=None)
    with sqlite3.connect(trimtab_home / "runs.sqlite") as connection:
        connection.execute("insert into runs values (?, ?, ?, ?, ?, ?, ?)", list({**entry, **odd}.values()))
    connection.close()
    # when
    drawn, document = trimtab("runs"), trimtab("runs", "--json", "-")
    # then
    assert (drawn.exit_code, document.exit_code) == (0, 0)
    assert "good" in drawn.stdout
    assert drawn.stdout.isascii()
    assert "good" in [run["run_id"] for run in json.loads(document.stdout)["runs"]]
    assert trimtab("rewind", "--json", "-").exit_code == 0
