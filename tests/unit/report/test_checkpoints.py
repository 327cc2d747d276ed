"""Checkpoints as a console shows them, from values made up on the spot."""

import io
from pathlib import Path

import pytest

from trimtab.report.checkpoints import (
    MAX_IGNORED,
    ListedFolder,
    draw_folders,
    draw_remarks,
    draw_reports,
)
from trimtab.report.console import make_console
from trimtab.resume.info import CheckpointInfo, Refused, VerifyReport
from trimtab.resume.names import Ignored


def drawn(draw, value):
    stream = io.StringIO()
    draw(value, console=make_console(stream, environ={"COLUMNS": "120"}))
    return stream.getvalue().splitlines()


def info(step=500, **more):
    return CheckpointInfo(path=Path(f"a/step_{step}"), step=step, **{"healthy": True, "run_id": "r", **more})


def test_a_row_says_what_is_known_and_a_dash_what_is_not():
    known = info(size_bytes=2_600_294_812, loss=1.25)
    unknown = CheckpointInfo(path=Path("a/checkpoint-5"), step=5, healthy=None, promise="structure")
    lines = drawn(draw_folders, [ListedFolder(Path("a"), (known, unknown), (), 0)])
    assert lines[3].split() == ["500", "r", "yes", "yes", "2.6", "GB", "1.25", "step_500"]
    assert lines[4].split() == ["5", "-", "-", "-", "-", "-", "checkpoint-5"]


def test_what_is_wrong_stands_below_its_row():
    damaged = info(problem="model.pt is empty", missing=("rng",), healthy=False, unhealthy_because=("w holds nan",))
    incomplete = info(400, missing=("rng",))
    of_others = info(300, missing=("scheduler",), promise="structure")
    lines = drawn(draw_folders, [ListedFolder(Path("a"), (damaged, incomplete, of_others), (), 0)])
    assert lines[4] == "    model.pt is empty; not healthy: w holds nan"
    assert lines[6] == "    lacks rng, which a resume needs"
    assert lines[8] == "    lacks scheduler, which a resume needs"


def test_of_many_reasons_those_that_do_not_stand_below_the_row_are_told_behind_the_list():
    reasons = tuple(f"z_band in gate_{number} at step 9: z is 4e5" for number in range(4))
    told = ("w holds nan", *reasons)
    lines = drawn(draw_folders, [ListedFolder(Path("a"), (info(healthy=False, unhealthy_because=told),), (), 0)])
    assert lines[4:9] == ["    not healthy: w holds nan; z_band in gate_0 at step 9; and 3 more", *reasons]


def test_ignored_entries_are_told_up_to_a_limit():
    ignored = tuple(Ignored(Path(f"a/{number}"), "no checkpoint") for number in range(MAX_IGNORED + 5))
    lines = drawn(draw_folders, [ListedFolder(Path("a"), (info(),), ignored, len(ignored))])
    assert sum(line.startswith("ignored: ") for line in lines) == MAX_IGNORED + 1
    assert "ignored: 5 more; --json lists them" in lines
    lines = drawn(draw_folders, [ListedFolder(Path("a"), (info(),), ignored, 100_000)])
    assert "ignored: 99,980 more; --json lists the first 25" in lines


def test_refusals_for_the_same_reason_are_told_once():
    reasons = {160: "in doubt", 120: "in doubt", 80: "in doubt", 60: "model.pt is empty", 40: "in doubt"}
    refused = tuple(Refused(Path(f"a/step_{step}"), reason) for step, reason in reasons.items())
    assert drawn(draw_remarks, info(20, refused=refused))[1:] == [
        "refused: step_80 to step_160 (3 checkpoints): in doubt",
        "refused: step_60: model.pt is empty",
        "refused: step_40: in doubt",
    ]
    # and what is left is counted by checkpoints
    many = tuple(Refused(Path(f"a/step_{step}"), f"why {step // 2}") for step in range(2 * MAX_IGNORED + 6, 1, -1))
    assert drawn(draw_remarks, info(1, refused=many))[-1] == "refused: 6 more; --json lists them"


def test_a_folder_in_a_list_is_json_without_what_only_a_choice_has():
    folder = ListedFolder(Path("a"), (info(refused=(Refused(Path("b"), "why"),)),), (Ignored(Path("a/x"), "why"),), 1)
    document = folder.to_dict()
    assert document["ignored"] == [{"path": "a/x", "reason": "why"}]
    assert {"path", "step", "healthy", "run_id"} <= set(document["checkpoints"][0])
    assert not {"refused", "notices", "version"} & set(document["checkpoints"][0])


@pytest.mark.parametrize(
    ("healthy", "words"),
    [(True, "healthy"), (False, "not healthy: w holds nan"), (None, "its health is not known")],
)
def test_the_remarks_begin_with_its_health(healthy, words):
    because = ("w holds nan",) if healthy is False else ()
    assert drawn(draw_remarks, info(healthy=healthy, unhealthy_because=because))[0] == f"step 500, {words}"


def test_a_report_says_what_was_promised_and_what_does_not_hold():
    reports = [
        VerifyReport(path=Path("a"), step=1, ok=True, num_files=1, size_bytes=999),
        VerifyReport(path=Path("b"), step=2, ok=True, promise="structure", num_files=1_200, size_bytes=999_600),
        VerifyReport(path=Path("c"), step=3, ok=False, problems=("x is empty",), missing=("rng",), healthy=False),
    ]
    assert drawn(draw_reports, reports) == [
        "ok       a: every byte is what was saved (1 file, 999 B)",
        "ok       b: its structure is sound (1,200 files, 1 MB)",
        "damaged  c",
        "    x is empty",
        "    lacks rng, which a resume needs",
        "    was not healthy when it was saved",
        "",
        "3 checkpoints, 1 damaged",
    ]


def test_a_file_that_needs_pickle_is_not_called_damaged():
    needs = VerifyReport(path=Path("a"), step=1, ok=False, problems=("a needs pickle: x",), needs_pickle=True)
    damaged = VerifyReport(path=Path("b"), step=2, ok=False, problems=("b is empty",))
    lines = drawn(draw_reports, [needs, damaged])
    assert lines[0] == "pickle   a: not damaged as far as it can be read, and cannot be loaded without pickle"
    assert lines[-1] == "2 checkpoints, 1 damaged, 1 that cannot be loaded without pickle"


def test_nothing_from_a_stranger_acts_on_a_terminal():
    evil = "\x1b[31m\u202e"
    one = info(
        run_id=evil, problem=evil, healthy=False, unhealthy_because=(evil,), refused=(Refused(Path(evil), evil),),
        notices=(evil,), ignored=(Ignored(Path(evil), evil),), missing=(evil,),
    )  # fmt: skip
    report = VerifyReport(path=Path(evil), step=1, ok=False, problems=(evil,), notes=(evil,), missing=(evil,))
    shown = [
        *drawn(draw_folders, [ListedFolder(Path(evil), (one,), one.ignored, 1), ListedFolder(Path(evil), (), (), 0)]),
        *drawn(draw_remarks, one),
        *drawn(draw_reports, [report]),
    ]
    assert all(line.isascii() and "\x1b" not in line for line in shown)
