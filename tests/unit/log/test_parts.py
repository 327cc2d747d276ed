"""Which files are the parts of a run, and in what order."""

import os
from pathlib import Path

import pytest

from trimtab.log.parts import (
    ACTIVE,
    Part,
    closed_journals,
    is_newest,
    journal_name,
    list_parts,
    missing_numbers,
    next_number,
    other_files,
    segment_name,
)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Rank 0: parts 1 and 2 sealed, 3 in both forms, 12 closed, and the journal that is written; rank 1: that alone."""
    for rank, number in ((0, 1), (0, 2), (0, 3)):
        (tmp_path / "segments" / segment_name(rank, number)).mkdir(parents=True)
    for name in (journal_name(0, 3), journal_name(0, 12), journal_name(0), journal_name(1)):
        (tmp_path / name).touch()
    return tmp_path


def test_parts_stand_rank_by_rank_in_the_order_recorded(run: Path) -> None:
    segments = run / "segments"

    assert list_parts(run) == [
        Part(0, 1, None, segments / "rank-00000.000001"),
        Part(0, 2, None, segments / "rank-00000.000002"),
        Part(0, 3, run / "rank-00000.000003.journal", segments / "rank-00000.000003"),
        Part(0, 12, run / "rank-00000.000012.journal"),
        Part(0, ACTIVE, run / "rank-00000.journal"),
        Part(1, ACTIVE, run / "rank-00001.journal"),
    ]


def test_the_newest_part_of_a_rank_is_the_journal_that_bears_no_number(run: Path) -> None:
    names = [journal_name(0), journal_name(1), journal_name(0, 12), "copy-of-rank-00000.journal", "a.journal"]
    assert [is_newest(run / name) for name in names] == [True, True, False, False, False]


def test_what_only_looks_like_a_part_is_none(run: Path, tmp_path: Path) -> None:
    before = list_parts(run)

    (run / "rank-00000.journal.new").touch()
    (run / "rank-0.journal").touch()
    (run / "rank-00000.000000.journal").touch()
    (run / "rank-\u0660\u0660\u0660\u0660\u0660.journal").touch()
    (run / "segments" / "rank-00000.000004.new").mkdir()
    (run / "segments" / "rank-00000.000005").touch()
    (run / "segments" / "rank-00000.000000").mkdir()
    (run / "segments" / "rank-00000.000006").symlink_to(run / "segments" / "rank-00000.000001")
    os.mkfifo(run / "rank-00007.journal")

    assert list_parts(run) == before
    assert other_files(run) == [
        "rank-00000.000000.journal",
        "rank-00007.journal",
        "segments/rank-00000.000000",
        "segments/rank-00000.000005",
        "segments/rank-00000.000006",
    ]


def test_the_closed_journals_of_a_rank_are_those_that_were_not_deleted(run: Path) -> None:
    closed = closed_journals(run / "rank-00000.journal")

    assert sorted(file.name for file in closed) == ["rank-00000.000003.journal", "rank-00000.000012.journal"]
    assert closed_journals(run / "rank-00001.journal") == []
    assert closed_journals(run / "other.journal") == []
    # and: one that is written under a closed name is not among the others
    assert [file.name for file in closed_journals(run / "rank-00000.000003.journal")] == ["rank-00000.000012.journal"]


def test_segments_that_are_a_link_are_not_followed(run: Path) -> None:
    (run / "segments").rename(run / "elsewhere")
    (run / "segments").symlink_to(run / "elsewhere")

    assert [part.number for part in list_parts(run) if part.rank == 0] == [3, 12, ACTIVE]
    assert other_files(run) == ["segments"]


def test_the_next_number_is_behind_all_that_were_ever_given(run: Path) -> None:
    assert (next_number(run, 0), next_number(run, 1)) == (13, 1)

    (run / "segments" / "rank-00001.000007.new").mkdir()
    assert next_number(run, 1) == 8


def test_holes_in_the_numbers_are_found(run: Path) -> None:
    assert missing_numbers(list_parts(run)) == {0: [4, 5, 6, 7, 8, 9, 10, 11]}


def test_a_folder_that_is_none_cannot_be_listed(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        list_parts(tmp_path / "absent")
