"""`trimtab rewind --row` and `--data`, as a person or a script calls them."""

import json

import pytest

from trimtab.dataset import describe
from trimtab.log.folder import create_run
from trimtab.log.reader import open_log
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
    assert "Preview withheld: the run's dataset has 200 rows, other.jsonl has 1\n" in result.stdout


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
    told = f"Row 17\nIt occurs 41 times in 40 steps; mean loss {mean:.5g}, best 2 at step 1, worst 180 at step 30."
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


@pytest.fixture
def steps_alone(here):
    """A CSV of 40 steps, of which the 30th is a finding."""
    (here / "metrics.csv").write_text("step,loss\n" + "".join(f"{n},{90 if n == 30 else 1}\n" for n in range(1, 41)))
    return here / "metrics.csv"


def test_a_log_without_rows_has_none_to_show(trimtab, steps_alone, run):
    for row in ("5", "x"):
        result = trimtab("rewind", steps_alone, "--row", row, "--data", "rows.jsonl")
        assert (result.exit_code, result.stdout) == (1, "")
        assert "this log holds no rows, only steps: no row can be shown" in result.stderr


def test_a_log_without_rows_has_no_use_for_data_and_says_so(trimtab, steps_alone, run):
    result = trimtab("rewind", steps_alone, "--data", "rows.jsonl")
    assert (result.exit_code, "Preview withheld: this log holds no rows, only steps\n" in result.stdout) == (0, True)
    assert "withheld" not in trimtab("rewind", steps_alone).stdout
    document = document_of(trimtab("rewind", steps_alone, "--data", "rows.jsonl", "--json", "-"))
    assert document["preview_withheld"] == "this log holds no rows, only steps"


def test_a_log_without_rows_has_none_to_drop_and_no_list_is_written(trimtab, steps_alone, here):
    (here / "drop.json").write_text("of an earlier run")
    result = trimtab("rewind", steps_alone, "--drop-list", "drop.json", "--json", "report.json")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "this log holds no rows, only steps: nothing can be dropped, and no list was written" in result.stderr
    assert (here / "drop.json").read_text() == "of an earlier run"
    assert not (here / "report.json").exists()


def test_what_is_about_rows_is_refused_for_runs_over_two_datasets_until_they_are_parted(trimtab, write_log, run, here):
    # given: row 13 makes step 41 of the first run, and row 8 step 50 of a run over other data behind it
    first = write_log("a.jsonl", spikes={41: [(12, 1.0, 100), (13, 8.0, 3000)]}).read_text()
    second = write_log("b.jsonl", spikes={50: [(7, 1.0, 100), (8, 9.0, 3000)]}).read_text().replace("f" * 64, "e" * 64)
    (here / "r.jsonl").write_text(first + second)
    # then
    for option in (("--drop-list", "d.json"), ("--row", "13")):
        result = trimtab("rewind", "r.jsonl", *option)
        assert (result.exit_code, result.stdout) == (1, "")
        assert "runs over several datasets" in result.stderr
    assert not (here / "d.json").exists()
    withheld = document_of(trimtab("rewind", "r.jsonl", "--data", "rows.jsonl", "--json", "-"))["preview_withheld"]
    assert withheld.startswith("this log holds runs over several datasets")
    # and parted each is one of its own, of which only the first is known to be of the first header's data
    parted = document_of(trimtab("convert", "r.jsonl", "parted", "--json", "-"))["paths"]
    assert [open_log(path).header.dataset_fingerprint for path in parted] == ["f" * 64, None]
    for path, row in zip(parted, (13, 8), strict=True):
        assert trimtab("rewind", path, "--drop-list", "d.json").exit_code == 0
        assert json.loads((here / "d.json").read_text())["rows"] == [row]


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
    assert second["preview_withheld"].startswith("rows.jsonl has as many rows as the run's dataset, but ")
