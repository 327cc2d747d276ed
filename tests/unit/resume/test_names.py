"""Which names are checkpoints, and in which order."""

import os
import re
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.errors import CheckpointError
from trimtab.resume.names import MAX_IGNORED, CheckpointName, checkpoint_name, newest_first, scan


def made(folder: Path, *, files: tuple[str, ...] = (), folders: tuple[str, ...] = ()) -> Path:
    for name in files:
        (folder / name).touch()
    for name in folders:
        (folder / name).mkdir()
    return folder


def test_a_collapse_a_recovery_and_a_draft_are_ignored_and_said(tmp_path: Path) -> None:
    # C069
    files = (
        "step_p_003000.pt",
        "step_p_003500_postcollapse.pt",
        "recovery_step002500.pt",
        "step_p_900.pt.tmp",
    )

    listing = scan(made(tmp_path, files=files))

    assert [(entry.path.name, entry.step) for entry in listing.found] == [("step_p_003000.pt", 3000)]
    assert {entry.path.name for entry in listing.ignored} == set(files[1:])
    assert all("not the whole name of a checkpoint" in entry.reason for entry in listing.ignored)


def test_a_backup_of_a_later_step_is_ignored(tmp_path: Path) -> None:
    # C070
    listing = scan(made(tmp_path, folders=("step_900", "step_1000_backup")))

    assert [entry.path.name for entry in listing.found] == ["step_900"]
    assert [entry.path.name for entry in listing.ignored] == ["step_1000_backup"]


def test_numbers_are_compared_as_numbers(tmp_path: Path) -> None:
    names = ("step_9000", "step_10000", "checkpoint-0900000", "checkpoint-100000")

    listing = scan(made(tmp_path, folders=names))

    assert [entry.step for entry in listing.found] == [900_000, 100_000, 10_000, 9_000]


def test_times_of_files_decide_nothing(tmp_path: Path) -> None:
    made(tmp_path, folders=("step_100", "step_200"))
    os.utime(tmp_path / "step_200", (1, 1))

    assert [entry.step for entry in scan(tmp_path).found] == [200, 100]


@pytest.mark.parametrize(
    "name",
    [
        "step_", "step-5", "Step_5", "step_5 ", " step_5", "step_5\n", "step_-5", "step_+5", "step_5.0", "step_1e3",
        "step_\u0665", "step_\u00b2", "step_5_", "xstep_5", "step_5.tmp-0badcafe", "checkpoint_5", "checkpoint-5x",
        "latest", "step_" + "9" * 19, "step_5.pt", "step_abc_5", "checkpoint-", "step_0x10", "step_1_000",
    ],
)  # fmt: skip
def test_another_name_is_no_checkpoint_folder(tmp_path: Path, name: str) -> None:
    listing = scan(made(tmp_path, folders=(name,)))

    assert listing.found == ()
    assert [entry.path.name for entry in listing.ignored] == [name]


@pytest.mark.parametrize(
    "name",
    ["step_5.pt.bak", "x.pt.tmp", "step_5.PT", "step_best_5.pt", "step_5.bin", "5.pt", "step_5.pt~", "step_p5.pt"],
)
def test_another_name_is_no_checkpoint_file(tmp_path: Path, name: str) -> None:
    assert scan(made(tmp_path, files=(name,))).found == ()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("step_5.tmp-0badcafe", "a draft: its save has not ended, or was killed"),
        ("latest", "a pointer is a hint, never the truth"),
        ("step_" + "9" * 19, "a number of more than 18 digits"),
        ("step_5.pt", "a folder with the name of a file"),
        ("trimtab", "no checkpoint"),
    ],
)
def test_the_reason_says_what_is_wrong_with_a_name(tmp_path: Path, name: str, reason: str) -> None:
    assert [entry.reason for entry in scan(made(tmp_path, folders=(name,))).ignored] == [reason]


def test_a_file_with_the_name_of_a_folder_is_said(tmp_path: Path) -> None:
    listing = scan(made(tmp_path, files=("step_5", "checkpoint-7")))

    assert listing.found == ()
    assert {entry.reason for entry in listing.ignored} == {"a file with the name of a folder"}


def test_a_pipe_and_a_link_to_itself_are_ignored(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "step_5.pt")
    (tmp_path / "step_6").symlink_to(tmp_path / "step_6")

    listing = scan(tmp_path)

    assert listing.found == ()
    assert {entry.reason for entry in listing.ignored} == {"neither a file nor a folder"}


def test_a_folder_that_is_not_there_is_an_error_that_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape("none\\x1b: no folder that can be listed (No such file")):
        scan(tmp_path / "none\x1b")


def test_a_hundred_thousand_other_files_cost_little_more_than_listing_them(tmp_path: Path) -> None:
    made(tmp_path, files=tuple(f"file_{number}" for number in range(10_000)), folders=("step_5", "step_6_backup"))

    costs = []
    for _ in range(5):
        began = time.process_time()
        listing = scan(tmp_path)
        costs.append(time.process_time() - began)

    assert [entry.step for entry in listing.found] == [5]
    assert (len(listing.ignored), listing.num_ignored) == (MAX_IGNORED, 10_001)
    assert "step_6_backup" in {entry.path.name for entry in listing.ignored}
    # 0.03 s; with a path and four patterns for each entry it was 0.3 s
    assert min(costs) < 0.15


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "a").touch()

    with pytest.raises(CheckpointError, match="Name the folder that holds the checkpoints"):
        scan(tmp_path / "a")


@given(steps=st.lists(st.tuples(st.integers(0, 10**17), st.integers(0, 4)), min_size=1, max_size=8))
def test_whatever_zeros_a_number_has_its_value_decides(steps: list[tuple[int, int]]) -> None:
    names = [checkpoint_name(Path(f"/x/step_{'0' * zeros}{step}"), kind="folder") for step, zeros in steps]

    found = sorted((name for name in names if name is not None and len(name.path.name) < 24), key=newest_first)

    assert [name.step for name in found] == sorted((name.step for name in found), reverse=True)
    assert all(int(name.path.name[5:]) == name.step for name in found)


@given(text=st.text(max_size=12))
def test_a_name_with_anything_else_in_it_is_none(text: str) -> None:
    is_number = re.fullmatch("[0-9]*", text) is not None

    found = (
        checkpoint_name(Path("/x", f"step_12{text}"), kind="folder") if "/" not in text and "\0" not in text else None
    )

    assert isinstance(found, CheckpointName) == is_number
