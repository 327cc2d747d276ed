"""What a verb may write: a report again and again, and never anything that a run left behind."""

import json
import os
import shutil

import pytest


def strict(text):
    def refuse(constant):
        raise ValueError(f"bare {constant}")

    return json.loads(text, parse_constant=refuse)


def test_json_replaces_what_stood_there_and_leaves_nothing_else(trimtab, spiky, here):
    (here / "sub").mkdir()
    (here / "sub" / "out.json").write_text("old")
    assert trimtab("rewind", spiky, "--json", "sub/out.json").exit_code == 0
    assert [path.name for path in (here / "sub").iterdir()] == ["out.json"]
    assert (here / "sub" / "out.json").stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("option", ["--json", "--drop-list"])
@pytest.mark.parametrize(
    "bad", ["../x.json", "/tmp/x.json", "folder", "link.json", "absent/x.json", "x\0y", "way/x.json"]
)
def test_a_file_that_must_not_be_written_is_refused_before_anything_is_read(trimtab, here, option, bad):
    # given: a link out, and a folder that is one
    (here / "folder").mkdir()
    (here / "target.json").write_text("precious")
    (here / "link.json").symlink_to(here / "target.json")
    (here / "way").symlink_to(here.parent, target_is_directory=True)
    before = sorted(here.rglob("*"))
    # when
    result = trimtab("rewind", "nosuch.jsonl", option, bad)
    # then
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert sorted(here.rglob("*")) == before
    assert (here / "target.json").read_text() == "precious"


def contents(here):
    return {path: path.read_bytes() for path in here.rglob("*") if path.is_file()}


@pytest.mark.parametrize("option", ["--json", "--drop-list"])
@pytest.mark.parametrize(
    ("log", "destination"),
    [
        ("logs/log.jsonl", "logs/log.jsonl"),
        ("logs/log.jsonl", "logs/../logs/log.jsonl"),
        ("logs/log.jsonl", "hard.json"),
        ("logs/link.jsonl", "logs/log.jsonl"),
        ("logs/log.jsonl", "other.jsonl"),
        ("logs/log.jsonl", "headless.txt"),
        ("logs/log.jsonl", "logs/rewind.jsonl"),
        ("logs/log.jsonl", "rewind.jsonl.1"),
        ("logs/log.jsonl", "run.json"),
        ("logs/log.jsonl", "RUN.JSON"),
        ("logs/log.jsonl", "absent.journal"),
        ("logs/log.jsonl", "out/trimtab/a/report.json"),
        ("logs/log.jsonl", "out/trimtab/a/sub/report.json"),
        ("logs/log.jsonl", "weights.safetensors"),
        ("logs/log.jsonl", "fifo"),
        ("out", "out/trimtab/a/rank-00000.journal"),
        ("out", "out/trimtab/a/report.json"),
        ("out", "journal.json"),
        ("out", "header.json"),
        ("copy", "copy/report.json"),
        ("copy/rank-00000.journal", "copy/report.json"),
        ("copy/run.json", "copy/sub/report.json"),
    ],
)
def test_what_a_run_left_behind_is_never_written_over(trimtab, write_log, record, here, option, log, destination):
    # given: a log under a name of its own, links to it, other logs, a run folder where it was written and a copy of it
    (here / "logs").mkdir()
    write_log("logs/log.jsonl", spikes={41: [(13, 8.0, 3000)]})
    (here / "hard.json").hardlink_to(here / "logs" / "log.jsonl")
    (here / "logs" / "link.jsonl").symlink_to("log.jsonl")
    write_log("other.jsonl")
    (here / "headless.txt").write_text((here / "other.jsonl").read_text().partition("\n")[2])
    run = record("a", sealed=False)
    (run / "sub").mkdir()
    shutil.copytree(run, here / "copy")
    (here / "journal.json").hardlink_to(run / "rank-00000.journal")
    (here / "header.json").hardlink_to(run / "run.json")
    (here / "weights.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    os.mkfifo(here / "fifo")
    before = contents(here)
    # when
    result = trimtab("rewind", log, option, destination)
    # then
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: ")
    assert result.stderr.count("\n") == 1
    assert contents(here) == before


def test_a_report_and_any_other_text_are_replaced_by_the_next_report(trimtab, spiky, here):
    for _ in range(2):
        assert trimtab("rewind", spiky, "--json", "out.json", "--drop-list", "drop.json").exit_code == 0
    (here / "drop.json").write_text("notes\n")
    assert trimtab("rewind", spiky, "--json", "drop.json").exit_code == 0
    assert strict((here / "drop.json").read_text())["spikes"]


def test_a_folder_that_is_only_called_like_ours_is_written_to(trimtab, spiky, here):
    (here / "trimtab" / "reports").mkdir(parents=True)
    assert trimtab("rewind", spiky, "--json", "trimtab/reports/out.json").exit_code == 0


@pytest.mark.parametrize(
    ("second", "exists"),
    [
        ("o.json", False),
        ("./o.json", False),
        ("sub/../o.json", False),
        ("o.json", True),
        ("./o.json", True),
        ("hard.json", True),
    ],
)
def test_one_file_is_not_given_for_two_outputs(trimtab, spiky, here, second, exists):
    (here / "sub").mkdir()
    if exists:
        (here / "o.json").write_text("old")
        (here / "hard.json").hardlink_to(here / "o.json")
    result = trimtab("rewind", spiky, "--json", "o.json", "--drop-list", second)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--drop-list and --json would both write" in result.stderr
    assert (here / "o.json").read_text() == "old" if exists else not (here / "o.json").exists()


def test_standard_output_is_no_drop_list(trimtab, spiky):
    result = trimtab("rewind", spiky, "--drop-list", "-")
    assert (result.exit_code, result.stdout) == (2, "")
