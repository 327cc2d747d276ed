"""`trimtab rewind`, as a person or a script calls it."""

import contextlib
import json
import os
import pty
import shutil
import subprocess
import sys

import numpy as np
import pytest

from trimtab.log.folder import create_run
from trimtab.recorder import Recorder
from trimtab.values import MicroBatch, RunHeader, StepRow


def strict(text):
    def refuse(constant):
        raise ValueError(f"bare {constant}")

    return json.loads(text, parse_constant=refuse)


def test_it_names_the_rows_behind_the_worst_finding(trimtab, spiky):
    result = trimtab("rewind", spiky, "--rule", "median")
    assert (result.exit_code, result.stderr) == (0, "")
    assert "row 8: its loss is not finite (nan) in step 50, 50 tokens" in result.stdout
    assert "Inspect or drop this row, then retrain." in result.stdout
    assert result.stdout.index("critical") < result.stdout.index("warning")


def test_json_is_strict_and_complete(trimtab, spiky, here):
    result = trimtab("rewind", spiky, "--rule", "median", "--json", "out.json")
    document = strict((here / "out.json").read_text())
    assert result.exit_code == 0
    assert [spike["step"] for spike in document["spikes"]] == [50, 41]
    assert [row["row"] for row in document["rows"]] == [8, 9, 7]
    assert (document["rows"][0]["share"], document["rows"][0]["loss"]) == (0.0, "nan")
    assert document["spikes"][1]["ratio"] == pytest.approx((100 + 24_000) / 3_100)


def test_json_on_standard_output_stands_there_alone(trimtab, spiky):
    result = trimtab("rewind", spiky, "--json", "-")
    assert strict(result.stdout)["version"] == 1
    assert result.stderr == ""


def test_json_is_written_when_there_is_nothing_to_find(trimtab, write_log, here):
    result = trimtab("rewind", write_log(), "--json", "out.json")
    assert result.exit_code == 0
    assert strict((here / "out.json").read_text())["spikes"] == []


def test_a_drop_list_holds_the_rows_that_made_a_finding(trimtab, spiky, here):
    result = trimtab("rewind", spiky, "--drop-list", "drop.json")
    assert result.exit_code == 0
    document = strict((here / "drop.json").read_text())
    assert [(entry["step"], entry["rows"]) for entry in document.pop("findings")] == [(50, [8]), (41, [13])]
    assert document == {
        "version": 1,
        "run_id": None,
        "dataset_fingerprint": "f" * 64,
        "num_rows": None,
        "rows": [8, 13],
        "digests": [None, None],
    }


def test_a_drop_list_goes_beyond_the_findings_that_are_drawn(trimtab, write_log, here):
    spikes = {step: [(step, 50.0, 100), (7, 1.0, 10)] for step in range(10, 170, 5)}
    trimtab("rewind", write_log(spikes=spikes, num_steps=200), "--rule", "median", "--drop-list", "drop.json")
    assert sorted(strict((here / "drop.json").read_text())["rows"]) == sorted(spikes)


def test_what_was_written_is_said_with_how_many_rows_it_drops(trimtab, spiky, write_log):
    # given a run with a row to drop, one whose spike nobody made, and one without any
    calm = write_log("calm.jsonl")
    nobody = write_log("nobody.jsonl", spikes={50: [(8, 9.0, 50), (9, 9.0, 50), (10, 9.0, 50)]})
    said = [
        trimtab("rewind", path, "--drop-list", "d.json", "--json", "r.json").stdout.splitlines()[-2:]
        for path in (spiky, calm, nobody)
    ]
    # then
    assert [lines[0] for lines in said] == ["Wrote r.json"] * 3
    assert [lines[1].removeprefix("Wrote d.json: ") for lines in said] == [
        '2 rows to leave out, with attach(trainer, exclude="d.json")',
        "no row to leave out: no step is out of line",
        "no row to leave out. step 50: no row carries half of the step's loss",
    ]
    # then: beside a document on standard output nothing is said
    assert "Wrote" not in trimtab("rewind", calm, "--drop-list", "d.json", "--json", "-").stdout


def test_a_drop_list_takes_one_run(trimtab, spiky, write_log, here):
    result = trimtab("rewind", spiky, write_log("other.jsonl"), "--drop-list", "drop.json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert not (here / "drop.json").exists()
    # then: before any of them is read
    (here / "no_steps.jsonl").write_text('{"kind": "header", "version": 1}\n')
    assert trimtab("rewind", "no_steps.jsonl", spiky, "--drop-list", "drop.json").exit_code == 2


def test_a_drop_list_takes_neither_the_row_of_a_notice_nor_the_only_row_of_a_step(trimtab, here):
    # given: one row a step; the loss is flat until step 50, the norm jumps at 40
    folder = create_run(here, RunHeader(run_id="r", backend="torch"))
    recorder = Recorder(folder)
    for step in range(1, 60):
        recorder.put(MicroBatch(step, 0, [step], [90.0 if step == 50 else 2.0], [1]))
        recorder.put(StepRow(step, 2.0, 50.0 if step == 40 else 1.0, 1e-3))
    recorder.close(timeout_s=30)
    # when
    document = strict(trimtab("rewind", ".", "--json", "-", "--drop-list", "drop.json").stdout)
    # then
    assert [(spike["step"], spike["severity"]) for spike in document["spikes"]] == [(50, "warning"), (40, "notice")]
    assert strict((here / "drop.json").read_text())["rows"] == []


def test_a_drop_list_takes_the_only_row_of_a_step_that_is_not_finite(trimtab, write_log, here):
    trimtab("rewind", write_log(spikes={50: [(8, None, 50)]}), "--drop-list", "drop.json")
    assert strict((here / "drop.json").read_text())["rows"] == [8]


def test_what_to_type_next_is_said_where_there_is_a_finding(trimtab, spiky, write_log):
    more = "--step N lists the rows of another step, --row ROW shows one, --drop-list FILE the rows to leave out."
    assert trimtab("rewind", spiky).stdout.endswith(f"\nMore: {more}\n")
    assert "More:" not in trimtab("rewind", write_log("quiet.jsonl")).stdout


def test_a_step_can_be_asked_for(trimtab, spiky):
    result = trimtab("rewind", spiky, "--step", "41", "--top", "1", "--no-preview")
    assert "row 13: 100% of step 41's loss, 3000 tokens" in result.stdout
    assert "and 1 more row; --top lists more" in result.stdout
    assert "Preview" not in result.stdout


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), 0),
        (("--fail-on", "warning"), 3),
        (("--fail-on", "critical"), 3),
    ],
)
def test_findings_fail_where_asked(trimtab, spiky, arguments, code):
    assert trimtab("rewind", spiky, *arguments).exit_code == code


def test_a_warning_does_not_fail_where_only_critical_does(trimtab, write_log):
    path = write_log(spikes={41: [(13, 8.0, 3000)]})
    assert trimtab("rewind", path, "--fail-on", "critical").exit_code == 0
    assert trimtab("rewind", path, "--fail-on", "warning").exit_code == 3


def test_a_failing_verdict_still_writes_what_was_asked(trimtab, spiky, here):
    assert trimtab("rewind", spiky, "--fail-on", "warning", "--json", "out.json").exit_code == 3
    assert strict((here / "out.json").read_text())["spikes"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("nosuch.jsonl",), 1, "nosuch.jsonl"),
        (("rewind.jsonl", "--step", "99"), 1, "steps 1 to 60"),
        (("rewind.jsonl", "--step", "9" * 40), 1, "steps 1 to 60"),
        (("empty.jsonl",), 1, "empty"),
        (("header.jsonl",), 1, "no training step"),
        (("folder",), 1, "folder"),
        ((), 1, "No run is registered"),
        (("rewind.jsonl", "--top", "0"), 2, "--top"),
        (("rewind.jsonl", "--rule", "mean"), 2, "mean"),
        (("rewind.jsonl", "--step", "x"), 2, "--step"),
        (("rewind.jsonl", "--no-such"), 2, "--no-such"),
        (("rewind.jsonl", "--fail-on", "notice"), 2, "notice"),
        (("x" * 5000,), 1, "neither a path"),
        (("a\0b",), 1, "neither a path"),
    ],
)
def test_every_error_is_one_line_and_its_code(trimtab, spiky, here, arguments, code, said):
    # given
    (here / "empty.jsonl").write_text("")
    (here / "header.jsonl").write_text('{"kind": "header", "version": 1}\n')
    (here / "folder").mkdir()
    # when
    result = trimtab("rewind", *arguments)
    # then
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert said in result.stderr


def test_an_error_shows_hostile_names_as_escapes(trimtab):
    result = trimtab("rewind", "\x1b[31m\u202e\nx")
    assert result.stderr.isascii()
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 1


def test_hostile_text_in_a_log_is_drawn_as_escapes(trimtab, write_log):
    path = write_log("\x1b[31m\u202e[red].jsonl", spikes={50: [(1, 9.0, 100), (2, 1.0, 1)]})
    result = trimtab("rewind", path)
    assert result.exit_code == 0
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout


# ---------------------------------------------------------------------------------------------- several runs


def test_two_files_of_one_folder_are_two_runs(trimtab, write_log, here):
    # given
    write_log("both/rewind.jsonl", spikes={41: [(13, 8.0, 3000)]})
    write_log("both/rewind.jsonl.1", spikes={41: [(13, 8.0, 3000)]})
    # when
    result = trimtab("rewind", "both", "--json", "out.json")
    # then
    document = strict((here / "out.json").read_text())
    assert [run["source"].rpartition("/")[2] for run in document["runs"]] == ["rewind.jsonl", "rewind.jsonl.1"]
    assert document["shared"][0]["step"] == 41
    assert document["shared"][0]["rows"] == [13]
    assert "the same rows spike in 2 of 2 runs: the data's doing" in result.stdout
    # then: a named file is one
    trimtab("rewind", "both/rewind.jsonl", "--json", "one.json")
    assert "runs" not in strict((here / "one.json").read_text())


def test_the_same_step_at_other_rows_is_not_the_data(trimtab, write_log):
    first = write_log("a.jsonl", spikes={41: [(13, 8.0, 3000)]})
    second = write_log("b.jsonl", spikes={41: [(14, 8.0, 3000)]})
    assert (
        "Step 41 spikes in 2 of 2 runs, but at other rows: not the data's doing"
        in trimtab("rewind", first, second).stdout
    )


@pytest.mark.parametrize("again", ["rewind.jsonl", "link.jsonl", "hard.jsonl", "./rewind.jsonl"])
def test_a_log_that_is_named_twice_is_one_run_and_that_is_said(trimtab, spiky, here, again):
    (here / "link.jsonl").symlink_to(spiky)
    (here / "hard.jsonl").hardlink_to(spiky)
    document = strict(trimtab("rewind", spiky, again, "--json", "-").stdout)
    assert "runs" not in document
    assert f"{again} is this log too: it was read once" in document["notices"]
    assert "the data's doing" not in trimtab("rewind", spiky, again).stdout


def test_a_run_by_its_id_and_by_its_folders_is_one_run(trimtab, record):
    record("a")
    document = strict(trimtab("rewind", "a", "out", "out/trimtab/a", "out/trimtab/a/run.json", "--json", "-").stdout)
    assert document["run_id"] == "a"
    assert sum("it was read once" in notice for notice in document["notices"]) == 3


def test_a_copy_of_a_run_agrees_with_it_because_it_is_the_same(trimtab, record, here):
    shutil.copytree(record("a"), here / "copy")
    result = trimtab("rewind", "a", "copy")
    assert "These are logs of one run: there is nothing to compare." in result.stdout
    assert "the data's doing" not in result.stdout
    assert strict(trimtab("rewind", "a", "copy", "--json", "-").stdout)["shared"] == []


# ---------------------------------------------------------------------------------------------- our own log


def test_the_newest_run_is_found_without_a_name(trimtab, record):
    record("older", created=1.0)
    record("newer", created=2.0)
    document = strict(trimtab("rewind", "--json", "-").stdout)
    assert (document["run_id"], document["num_steps"]) == ("newer", 40)
    assert document["spikes"][0]["step"] == 30
    assert document["rows"][0]["row"] == 17
    assert document["rows"][0]["excess"] == pytest.approx(9_000 / 50 - 2)


def test_a_run_is_found_by_the_beginning_of_its_id(trimtab, record):
    record("20261129-aa")
    record("20261130-bb")
    assert strict(trimtab("rewind", "20261129", "--json", "-").stdout)["run_id"] == "20261129-aa"
    ambiguous = trimtab("rewind", "2026")
    assert ambiguous.exit_code == 1
    assert "20261129-aa" in ambiguous.stderr
    assert "20261130-bb" in ambiguous.stderr


def test_a_full_id_is_never_ambiguous(trimtab, record):
    record("run-1")
    record("run-12")
    assert strict(trimtab("rewind", "run-1", "--json", "-").stdout)["run_id"] == "run-1"


def test_a_path_wins_over_an_id(trimtab, record, write_log):
    record("both")
    write_log("both", spikes={41: [(13, 8.0, 3000)]})
    assert strict(trimtab("rewind", "both", "--json", "-").stdout)["run_id"] is None


@pytest.mark.parametrize(
    ("place", "sealed"),
    [
        ("out", True),
        ("out/trimtab", True),
        ("out/trimtab/a", True),
        ("out/trimtab/a/run.json", True),
        ("out/trimtab/a/segments", True),
        ("out/trimtab/a/segments/rank-00000.000001", True),
        ("out/trimtab/a/segments/rank-00000.000001/rows.parquet", True),
        ("out/trimtab/a/rank-00000.journal", False),
    ],
)
def test_a_run_is_found_by_any_path_that_leads_to_it(trimtab, record, place, sealed):
    record("a", sealed=sealed)
    assert strict(trimtab("rewind", place, "--json", "-").stdout)["spikes"][0]["row"] == 17


def test_a_folder_of_several_runs_gives_the_newest_and_says_so(trimtab, record):
    record("a", created=1.0)
    record("b", created=2.0)
    document = strict(trimtab("rewind", "out", "--json", "-").stdout)
    assert document["run_id"] == "b"
    assert any("2 runs" in notice for notice in document["notices"])


def test_a_run_that_moved_is_found_below_its_output_folder(trimtab, record, here):
    # given: registered under its experiment, now directly below out
    path = record("moved", experiment="exp")
    (here / "out" / "trimtab").mkdir()
    path.rename(here / "out" / "trimtab" / "moved")
    assert strict(trimtab("rewind", "moved", "--json", "-").stdout)["run_id"] == "moved"


def test_a_run_that_is_gone_is_an_error_by_name_and_passed_over_without_one(trimtab, record, here):
    record("kept", created=1.0)
    record("gone", out="elsewhere", created=2.0).rename(here / "hidden")
    named = trimtab("rewind", "gone")
    assert named.exit_code == 1
    assert "gone from" in named.stderr
    newest = strict(trimtab("rewind", "--json", "-").stdout)
    assert newest["run_id"] == "kept"
    assert "gone from disk" in newest["notices"][0]


def test_steps_that_the_guard_left_out_are_named_and_their_rows_marked(trimtab, record):
    # given: the guard left out step 30, a spike, and step 12, which is none
    path = record("a", left_out=(12, 30), events=("end",))
    # when
    text, asked = trimtab("rewind", path).stdout, trimtab("rewind", path, "--step", "12").stdout
    # then
    assert "Note: the guard left out micro-batches in 1 step that is no finding of the loss: 12. " in text
    assert "Note: the guard left out micro-batches in 1 step that is a finding of the loss: 30\n" in text
    assert "Step 12 is not a spike" in asked
    assert "Note: every row of step 12 was in a micro-batch that the guard left out of the update\n" in asked


@pytest.mark.parametrize(("events", "has_ended"), [((), False), (("end",), True), (("end", "resume"), False)])
def test_a_run_that_has_not_ended_says_so(trimtab, record, events, has_ended):
    text = trimtab("rewind", record("a", events=events)).stdout
    said = "Note: the run has not ended: it is still going on, or was killed after step 40\n"
    assert (said in text) is not has_ended


@pytest.mark.parametrize(("events", "has_ended"), [((), False), (("end",), True)])
def test_the_journal_of_a_run_tells_of_its_end_what_the_run_does(trimtab, record, events, has_ended):
    # given
    path = record("a", events=events, sealed=False)
    journal = path / "rank-00000.journal"
    said = "Note: the run has not ended: it is still going on, or was killed after step 40\n"
    # then
    for named in (path, journal):
        assert (said in trimtab("rewind", named).stdout) is not has_ended
    # then: one that was closed, while the run went on in another, tells nothing
    closed = journal.rename(path / "rank-00000.000001.journal")
    assert said not in trimtab("rewind", closed).stdout


def test_a_notice_never_fails_a_run(trimtab, here):
    # given a run of quiet losses with one jump of the gradient norm
    folder = create_run(here, RunHeader(run_id="r", backend="torch", created=1.0))
    recorder = Recorder(folder)
    for step in range(1, 61):
        recorder.put(MicroBatch(step, 0, [step], np.array([100.0], np.float32), [50]))
        recorder.put(StepRow(step, 2.0, 50.0 if step == 40 else 1.0, 0.1))
    recorder.close()
    # when
    result = trimtab("rewind", folder.path, "--fail-on", "warning")
    # then
    assert "notice" in result.stdout
    assert result.exit_code == 0


def test_a_person_who_waits_for_a_large_log_sees_how_far_it_is_in_plain_ascii(write_log, here):
    # given a terminal, and a log that counts as large
    path = write_log(spikes={41: [(13, 9.0, 100)]})
    program = (
        "import sys, trimtab.cli.progress as progress; progress.FROM_BYTES = 1;"
        "from trimtab.cli import main; main(['rewind', sys.argv[1]])"
    )
    terminal, end = pty.openpty()
    # when
    done = subprocess.run([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, stderr=end, check=True)
    os.close(end)
    drawn = b""
    with contextlib.suppress(OSError):  # what a terminal says when its other end is gone
        while chunk := os.read(terminal, 65536):
            drawn += chunk
    os.close(terminal)
    # then
    assert b"reading the log" in drawn
    assert b" %" in drawn
    assert drawn.isascii()
    assert b"13" in done.stdout


def test_a_log_at_step_level_gives_its_findings_and_no_word_of_rows_to_list(trimtab, here):
    # given
    losses = [2.0] * 40 + [9.0] + [2.0] * 5
    lines = "".join(f"{step},{loss}\n" for step, loss in enumerate(losses, start=1))
    (here / "log.csv").write_text(f"step,loss\n{lines}")
    # when
    result = trimtab("rewind", "log.csv", "--json", "found.json", "--fail-on", "warning")
    # then
    assert result.exit_code == 3
    found = strict((here / "found.json").read_text())
    assert [(spike["step"], spike["row"], spike["segment"]) for spike in found["spikes"]] == [(41, None, None)]
    assert (found["rows"], found["run_id"]) == ([], None)
    assert "this log holds no rows" in result.stdout
    assert "More:" not in result.stdout
