"""`trimtab convert`, as a person or a script calls it."""

import json
from pathlib import Path

import pytest


def findings(trimtab, path, *more):
    result = trimtab("rewind", path, "--rule", "median", "--json", "-", *more)
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    spikes = [(spike["step"], spike["severity"], spike["kind"], spike["value"]) for spike in document["spikes"]]
    return spikes, [(row["row"], row["tokens"], row["share"]) for row in document["rows"]]


def test_a_run_becomes_a_rewind_log_with_the_same_findings(trimtab, record, here):
    folder = record("run-a")
    result = trimtab("convert", folder, "a.jsonl")
    assert result.exit_code == 0, result.output
    assert "40 micro-batches, 120 row records" in result.stdout
    assert "Note: 40 step records" in result.stdout
    assert findings(trimtab, "a.jsonl") == findings(trimtab, folder)
    assert trimtab("convert", "run-a", "b.jsonl").exit_code == 0  # by its id
    assert (here / "b.jsonl").read_bytes() == (here / "a.jsonl").read_bytes()


def test_a_rewind_log_becomes_a_run_with_the_same_findings(trimtab, spiky, here):
    result = trimtab("convert", spiky, "out", "--json", "-")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    (folder,) = document["paths"]
    assert Path(folder).parent == here / "out" / "trimtab"
    assert (document["version"], document["format"], document["source"]) == (1, "run", str(spiky))
    assert (document["num_micro_batches"], document["num_rows"], document["num_steps"]) == (60, 63, 0)
    found, expected = findings(trimtab, folder), findings(trimtab, spiky)
    assert found[0] == expected[0]
    assert [row[:2] for row in found[1]] == [row[:2] for row in expected[1]]


def test_a_log_of_steps_becomes_a_run_and_no_rewind_log(trimtab, here):
    (here / "train.log").write_text("".join(f"iter {step}: loss 1.5, time 1ms, mfu 1%\n" for step in range(1, 30)))
    refused = trimtab("convert", "train.log", "r.jsonl")
    assert (refused.exit_code, "holds steps and no rows" in refused.stderr) == (2, True)
    assert not (here / "r.jsonl").exists()
    result = trimtab("convert", "train.log", "out")
    assert (result.exit_code, "29 step records" in result.stdout) == (0, True)


def test_a_run_that_was_converted_does_not_claim_to_be_alive(trimtab, spiky, here):
    (here / "train.log").write_text("".join(f"iter {step}: loss 1.5, time 1ms, mfu 1%\n" for step in range(1, 30)))
    for source, out in ((spiky, "a"), ("train.log", "b")):
        assert trimtab("convert", source, out).exit_code == 0
        said = trimtab("rewind", out).stdout
        assert "nothing tells whether it has ended" in said
        assert "the run has not ended" not in said


def test_what_a_run_folder_cannot_hold_of_a_rewind_log_is_counted_line_by_line(trimtab, here):
    # given: 40 steps of two ranks, of which one micro-batch is empty and one stands twice
    lines = [
        {"kind": "batch", "step": step, "micro": 0, "rows": [100 * rank + step], "row_loss": [1.0], "row_tokens": [5]}
        for step in range(1, 41)
        for rank in (0, 1)
    ]
    lines[10] |= {"rows": [], "row_loss": [], "row_tokens": []}
    lines.insert(20, lines[19])
    header = {"kind": "header", "version": 1, "created": "2026-01-01T00:00:00"}
    (here / "r.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [header, *lines]))
    # when
    document = json.loads(trimtab("convert", "r.jsonl", "out", "--json", "-").stdout)
    # then: what was written and what was left out or joined are all lines
    assert document["num_micro_batches"] == 40
    numbers = [int(said.split()[0]) for said in document["notices"] if said.split()[1] in ("line", "lines")]
    assert sorted(numbers) == [1, 1, 39]
    assert document["num_micro_batches"] + sum(numbers) == len(lines)
    assert any(said.startswith("the header's created") for said in document["notices"])


def test_a_rewind_log_is_not_made_of_a_rewind_log(trimtab, spiky):
    result = trimtab("convert", spiky, "other.jsonl")
    assert (result.exit_code, "is a rewind.jsonl already" in result.stderr) == (2, True)


def test_nothing_is_overwritten(trimtab, record, here):
    folder = record("run-a")
    (here / "a.jsonl").write_text("mine")
    result = trimtab("convert", folder, "a.jsonl")
    assert (result.exit_code, "exists already" in result.stderr) == (2, True)
    assert (here / "a.jsonl").read_text() == "mine"


@pytest.mark.parametrize(
    ("dest", "reason"),
    [
        ("../a.jsonl", "outside the current folder"),
        ("none/a.jsonl", "does not exist"),
        ("folder", "is a folder"),
        ("link.jsonl", "symbolic link"),
        ("out/trimtab/run-a/a.jsonl", "lies in a run folder"),
        ("a\0b", "cannot be the name"),
        ("", "cannot be the name"),
    ],
)
def test_a_run_is_written_to_no_place_where_it_would_do_harm(trimtab, record, here, dest, reason):
    folder = record("run-a")
    (here / "folder").mkdir()
    (here / "link.jsonl").symlink_to(here / "elsewhere")
    result = trimtab("convert", folder, dest)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr


@pytest.mark.parametrize(
    ("dest", "reason"),
    [
        ("../out", "outside the current folder"),
        ("none/out", "does not exist"),
        ("file", "is a file"),
        ("link", "symbolic link"),
        ("holds-link", "symbolic link"),
        ("out/trimtab/run-a", "run folder"),
    ],
)
def test_a_run_folder_is_made_in_no_place_where_it_would_do_harm(trimtab, record, spiky, here, dest, reason):
    record("run-a")
    (here / "file").write_text("x")
    (here / "elsewhere").mkdir()
    (here / "link").symlink_to(here / "elsewhere")
    (here / "holds-link").mkdir()
    (here / "holds-link" / "trimtab").symlink_to(here / "elsewhere")
    result = trimtab("convert", spiky, dest)
    assert (result.exit_code, result.stdout) == (2, "")
    assert reason in result.stderr
    assert not list((here / "elsewhere").iterdir())


def test_a_log_that_cannot_be_converted_leaves_no_folder(trimtab, here):
    (here / "r.jsonl").write_text('{"kind": "header", "version": 1, "backend": "torch"}\n')
    result = trimtab("convert", "r.jsonl", "out")
    assert (result.exit_code, "neither rows nor steps" in result.stderr) == (1, True)
    assert not (here / "out").exists()


def test_two_logs_under_one_name_are_told_apart_by_the_user(trimtab, write_log, here):
    write_log("both/rewind.jsonl")
    write_log("both/rewind.jsonl.1")
    result = trimtab("convert", "both", "out")
    assert (result.exit_code, "holds 2 logs" in result.stderr) == (2, True)


def test_a_run_without_rows_leaves_no_file(trimtab, here):
    (here / "train.log").write_text("".join(f"iter {step}: loss 1.5, time 1ms\n" for step in range(1, 30)))
    folder = json.loads(trimtab("convert", "train.log", "out", "--json", "-").stdout)["paths"][0]
    result = trimtab("convert", folder, "a.jsonl")
    assert (result.exit_code, "holds no rows" in result.stderr) == (1, True)
    assert not list(here.glob("*a.jsonl*"))


def test_json_is_written_to_a_file_beside_what_is_said(trimtab, record, here):
    result = trimtab("convert", record("run-a"), "a.jsonl", "--json", "report.json")
    document = json.loads((here / "report.json").read_text())
    assert result.exit_code == 0
    assert document["paths"] == ["a.jsonl"]
    assert document["format"] == "rewind.jsonl"
    assert all(f"Note: {notice}" in result.stdout for notice in document["notices"])
