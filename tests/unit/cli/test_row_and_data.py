"""`trimtab rewind --row` and `--data`, as a person or a script calls them."""

import json

import pytest

from trimtab.dataset import describe
from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.values import MicroBatch, RunHeader, StepRow

ROWS = [{"text": f"text of row {row}"} for row in range(200)]


@pytest.fixture
def run(here):
    """A run over ROWS of which row 17 makes step 30, and rows.jsonl; gives the run folder."""
    facts = describe(ROWS)
    header = RunHeader(run_id="r", backend="torch", num_rows=200, dataset_fingerprint=facts.fingerprint)
    folder = create_run(here / "out", header)
    recorder = Recorder(folder)
    for step in range(1, 41):
        losses = [100.0, 100.0, 9_000.0 if step == 30 else 100.0]
        recorder.put(MicroBatch(step, 0, [step, 100 + step, 17], losses, [50, 50, 50]))
        recorder.put(StepRow(step, sum(losses) / 150, 1.0, 1e-3))
    recorder.close(timeout_s=30)
    (here / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return folder.path


@pytest.fixture
def module(here, monkeypatch):
    """A module of the user's in the current folder, under a name of its own."""
    import sys

    def write(source, *, name):
        (here / f"{name}.py").write_text(source)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    monkeypatch.setattr(sys, "path", list(sys.path))
    return write


def document_of(result):
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_data_gives_the_rows_their_text(trimtab, run):
    result = trimtab("rewind", run, "--data", "rows.jsonl")
    assert "text of row 17" in result.stdout
    assert "withheld" not in result.stdout
    document = document_of(trimtab("rewind", run, "--data", "rows.jsonl", "--json", "-"))
    assert document["rows"][0]["preview"] == "text of row 17"
    assert document["rows"][0]["repetition"] == 0.0
    assert document["preview_withheld"] is None


def test_without_data_it_says_what_to_pass_and_with_other_data_why_not(trimtab, run, here):
    assert "Preview withheld: the rows were only in memory; pass --data\n" in trimtab("rewind", run).stdout
    (here / "other.jsonl").write_text('{"text": "x"}\n')
    result = trimtab("rewind", run, "--data", "other.jsonl")
    assert result.exit_code == 0
    fingerprint = describe(ROWS).fingerprint[:12]
    assert (
        f"Preview withheld: the run's dataset has the fingerprint {fingerprint}, 200 rows; other.jsonl" in result.stdout
    )


def test_without_previews_no_data_is_opened_and_none_is_missed(trimtab, run):
    assert "Preview" not in trimtab("rewind", run, "--no-preview").stdout
    result = trimtab("rewind", run, "--no-preview", "--data", "rows.jsonl")
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_function_gives_the_data_and_what_it_prints_is_no_document(trimtab, run, module):
    name = module(
        "import json\n"
        "def rows():\n"
        "    print('reading')\n"
        "    with open('rows.jsonl') as file:\n"
        "        return [json.loads(line) for line in file]\n",
        name="own_rows_module",
    )
    result = trimtab("rewind", run, "--data", f"{name}:rows", "--json", "-")
    assert document_of(result)["rows"][0]["preview"] == "text of row 17"
    assert "reading" in result.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ("nothing.jsonl", "nothing.jsonl does not exist"),
        ("no_such_module:rows", "cannot be imported"),
        ("failing_rows_module:rows", "failed: ZeroDivisionError"),
        ("failing_rows_module:absent", "cannot be imported"),
        ("failing_rows_module:NUMBER", "is of type int, and no function"),
        ("failing_rows_module:stream", "a row is looked up by its number"),
        ("os:getcwd", "is a folder|is not a dataset that was saved to disk"),
        ("out", "is not a dataset that was saved to disk"),
        ("https://example.com/rows.jsonl", "does not exist"),
        ("__import__('os').system('touch pwned'):x", "does not exist"),
    ],
)
def test_data_that_is_not_there_is_usage(trimtab, run, module, here, data, said):
    import re

    module("NUMBER = 5\ndef rows():\n    1 / 0\ndef stream():\n    return iter([])\n", name="failing_rows_module")
    result = trimtab("rewind", run, "--data", data)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(said, result.stderr)
    assert result.stderr.count("\n") == 1
    assert not (here / "pwned").exists()


def test_a_row_is_told_with_and_without_its_data(trimtab, run):
    result = trimtab("rewind", run, "--row", "17")
    # 40 times by itself, and once as the first row of step 17
    mean = (40 * 100 + 9_000) / (41 * 50)
    told = f"Row 17\nIt occurs 41 times; mean loss {mean:.5g}, best 2 at step 1, worst 180 at step 30."
    assert result.stdout.startswith(told)
    assert "Preview withheld: the rows were only in memory; pass --data" in result.stdout
    result = trimtab("rewind", run, "--row", "17", "--data", "rows.jsonl")
    assert "text:\n    text of row 17\n" in result.stdout
    assert "withheld" not in trimtab("rewind", run, "--row", "17", "--no-preview").stdout


def test_a_row_as_json(trimtab, run):
    document = document_of(trimtab("rewind", run, "--row", "17", "--data", "rows.jsonl", "--json", "-"))
    assert (document["row"], document["count"], document["worst"]["step"]) == (17, 41, 30)
    assert (document["preview"], document["repetition"], document["preview_withheld"]) == ("text of row 17", 0.0, None)
    document = document_of(trimtab("rewind", run, "--row", "17", "--json", "-"))
    assert document["preview"] is None
    assert document["preview_withheld"].endswith("pass --data")


def test_a_row_that_the_log_does_not_hold(trimtab, run):
    # then: with its data it is shown all the same
    result = trimtab("rewind", run, "--row", "199", "--data", "rows.jsonl")
    assert "It occurs nowhere in this log." in result.stdout
    assert "text of row 199" in result.stdout
    for row in ("199", "200", "-1", "x"):
        result = trimtab("rewind", run, "--row", row)
        assert (result.exit_code, result.stdout) == (1, "")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize("other", [("--step", "3"), ("--drop-list", "d.json"), ("--fail-on", "warning")])
def test_a_row_alone_and_findings_are_two_questions(trimtab, run, other):
    result = trimtab("rewind", run, "--row", "17", *other)
    assert result.exit_code == 2
    assert other[0] in result.stderr


def test_a_row_is_of_one_run(trimtab, run, write_log):
    result = trimtab("rewind", run, write_log(), "--row", "17")
    assert result.exit_code == 2
    assert "one run at a time" in result.stderr


def test_several_runs_share_the_data_that_is_theirs(trimtab, run, write_log):
    other = write_log(spikes={41: [(13, 8.0, 3000)]})
    document = document_of(trimtab("rewind", run, other, "--data", "rows.jsonl", "--json", "-"))
    first, second = document["runs"]
    assert first["rows"][0]["preview"] == "text of row 17"
    assert second["rows"][0]["preview"] is None
    assert second["preview_withheld"].startswith("the run's dataset has the fingerprint ffffffffffff")
