"""`trimtab runs`."""

import json


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


def test_no_runs_is_an_answer(trimtab):
    assert "No run is registered" in trimtab("runs").stdout
    result = trimtab("runs", "--json", "-")
    assert (result.exit_code, json.loads(result.stdout)) == (0, {"version": 1, "runs": []})
