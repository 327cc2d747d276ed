"""The demo's folder: what it takes over, what it refuses, and how it puts things back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trimtab.demo.folder import DemoFolder
from trimtab.errors import UsageError

DOCUMENT = '{"rows": [3], "steps": [150], "kinds": {"3": "garbage"}}'


def everything_under(path: Path) -> dict[str, bytes | None]:
    return {str(entry.relative_to(path)): entry.read_bytes() if entry.is_file() else None for entry in path.rglob("*")}


def test_an_absent_folder_is_made_with_its_parents_and_undo_takes_all_of_it_away(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "a" / "b")
    folder.write_planted(DOCUMENT)
    folder.write_report('{"version": 1}')
    folder.write_rows([{"text": "a\nb"}, {"text": "\u4f60"}])
    run_folder = folder.path / "trimtab" / "run-1"
    run_folder.mkdir(parents=True)

    assert (folder.path / "planted.json").read_text() == DOCUMENT
    rows = (folder.path / "rows.jsonl").read_text()
    assert rows.isascii()
    assert [json.loads(line) for line in rows.splitlines()] == [{"text": "a\nb"}, {"text": "\u4f60"}]
    folder.undo(run_folder)

    assert everything_under(tmp_path) == {}


def test_an_empty_folder_is_used_and_stays_after_undo(tmp_path: Path) -> None:
    DemoFolder(tmp_path).undo(None)

    assert tmp_path.is_dir()


def test_a_former_demo_is_replaced_its_runs_are_kept_and_undo_brings_it_back(tmp_path: Path) -> None:
    # Given a former demo with a run.
    former = DemoFolder(tmp_path)
    former.write_planted(DOCUMENT)
    former.write_report('{"version": 1, "run_id": "former"}')
    former.write_rows([1])
    old_run = tmp_path / "trimtab" / "former"
    old_run.mkdir(parents=True)
    before = everything_under(tmp_path)

    # When another demo begins there.
    folder = DemoFolder(tmp_path)
    folder.write_planted(DOCUMENT.replace("3", "4"))
    folder.write_rows([2])
    new_run = tmp_path / "trimtab" / "new"
    new_run.mkdir()

    # Then the former report, which belongs to other rows, is gone and the former run is not.
    assert not (tmp_path / "report.json").exists()
    assert old_run.is_dir()

    # And undo restores what was there.
    folder.undo(new_run)
    assert everything_under(tmp_path) == before


@pytest.mark.parametrize(
    "content",
    [
        {"thesis.txt": "years of work"},
        {"planted.json": "{}"},
        {"planted.json": '{"rows": [1], "steps": [], "kinds": {}}'},
        {"planted.json": "not json"},
        {"planted.json": "[1]", "trimtab": None},
        {"trimtab": None},
    ],
)
def test_a_folder_of_something_else_is_refused_by_name_and_left_as_it_is(
    tmp_path: Path, content: dict[str, str | None]
) -> None:
    for name, text in content.items():
        if text is None:
            (tmp_path / name).mkdir()
        else:
            (tmp_path / name).write_text(text)
    before = everything_under(tmp_path)

    with pytest.raises(UsageError, match=next(iter(content))):
        DemoFolder(tmp_path)

    assert everything_under(tmp_path) == before


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.write_text("mine")

    with pytest.raises(UsageError, match="is a file, not a folder"):
        DemoFolder(place)

    assert place.read_text() == "mine"


def test_a_hostile_name_is_spelled_out_in_the_refusal(tmp_path: Path) -> None:
    (tmp_path / "\x1b[31mred").write_text("")

    with pytest.raises(UsageError) as caught:
        DemoFolder(tmp_path)

    assert "\x1b" not in str(caught.value)


def test_a_read_only_place_is_refused(read_only_folder: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot be written \(Permission denied\)"):
        DemoFolder(read_only_folder)
    with pytest.raises(UsageError, match="cannot be made"):
        DemoFolder(read_only_folder / "below")


def test_what_somebody_else_put_into_the_folder_meanwhile_survives_undo(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path / "out")
    (folder.path / "notes.txt").write_text("keep me")

    folder.undo(None)

    assert (folder.path / "notes.txt").read_text() == "keep me"
