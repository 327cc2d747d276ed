"""What the one look at a checkpoint finds, for whoever asks."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trimtab.errors import CheckpointError
from trimtab.resume import content, examine
from trimtab.resume.examine import Examined
from trimtab.resume.manifest import MANIFEST_NAME

Save = Callable[..., Path]

PAYLOAD = ("model.pt", "optimizer.pt", "run.pt", "rank_0.pt")


def replaces(path: Path, new: Path, monkeypatch: pytest.MonkeyPatch, *, after: int) -> None:
    """Puts another save in the place of one, after that many reads of its manifest."""
    original = examine.read_with_checksum
    num_read = 0

    def read_and_replace(folder: Path) -> Any:
        nonlocal num_read
        read = original(folder)
        num_read += 1
        if num_read == after:
            shutil.copytree(new, path, dirs_exist_ok=True)
            for name in PAYLOAD:
                (path / name).unlink()
        return read

    monkeypatch.setattr(examine, "read_with_checksum", read_and_replace)


@pytest.fixture
def again(save: Save, tmp_path: Path) -> Path:
    """The run's next save of step 200, whose payload is in a folder of its own."""
    payload = "again-0badcafe/all.pt"
    parts = {name: [payload] for name in ("model", "optimizer", "step", "rng")}
    return save(200, serial=2, folder=tmp_path / "other", files={payload: b"n"}, parts=parts)


def test_the_manifest_is_the_one_that_the_bytes_were_held_against(
    save: Save, tmp_path: Path, again: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(200, serial=1)
    replaces(path, again, monkeypatch, after=1)

    found = examine.examine(path)

    assert found.manifest is not None
    assert (found.problems, found.manifest.serial, found.info.serial) == ((), 2, 2)
    assert [entry.path for entry in found.manifest.files] == ["again-0badcafe/all.pt"]
    # and its checksum is that of this very manifest
    assert found.manifest_crc32 == json.loads((again / MANIFEST_NAME).read_bytes())["crc32"]


def test_payload_that_is_not_what_its_manifest_says_is_no_race(save: Save) -> None:
    path = save(200)
    (path / "model.pt").write_bytes(b"M" * 300)
    (path / "run.pt").unlink()

    assert [problem.split()[0] for problem in examine.examine(path).problems] == ["run.pt", "model.pt"]
    assert [problem.split()[0] for problem in examine.examine(path, most=1).problems] == ["run.pt"]


def test_of_one_that_lacks_what_is_needed_no_payload_is_read(save: Save, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(200, files={"model.pt": b"m", "run.pt": b"r"})
    read: list[str] = []
    original = content.read_checksum
    monkeypatch.setattr(
        content, "read_checksum", lambda place, **kwargs: (read.append(place.name), original(place, **kwargs))[1]
    )

    found = examine.examine(path)

    assert (read, found.problems, found.missing) == ([], (), ("optimizer", "rng"))
    assert found.lacks == (
        "lacks optimizer and rng, which a resume needs; as an explicit fresh start, which restarts the schedule, load "
        "its model alone by its path"
    )
    fresh = examine.examine(path, needs=("model",))
    assert (read, fresh.missing, fresh.lacks, fresh.info.missing) == (
        ["model.pt", "run.pt"], (), None, ("optimizer", "rng"),
    )  # fmt: skip


def test_without_a_model_no_fresh_start_is_advised(save: Save) -> None:
    found = examine.examine(save(200, files={"run.pt": b"r"}), needs=("model",))

    assert found.lacks == "lacks model, which a resume needs"


def test_a_rank_that_does_not_read_looks_at_the_sizes(save: Save) -> None:
    path = save(200)
    (path / "model.pt").write_bytes(b"M" * 300)

    assert examine.examine(path, reads=False).problems == ()
    (path / "model.pt").write_bytes(b"M")
    assert examine.examine(path, reads=False).problems == ("model.pt is truncated: 1 of its 300 bytes are there",)


def test_a_file_that_may_be_removed_is_no_damage_where_it_is_and_is_read_where_it_is_not(save: Save) -> None:
    path = save(200)
    content_before = (path / "run.pt").read_bytes()

    (path / "run.pt").unlink()
    assert examine.examine(path, optional=("run.pt",)).problems == ()
    (path / "run.pt").write_bytes(content_before[:-1] + b"x")
    assert len(examine.examine(path, optional=("run.pt",)).problems) == 1


def test_what_is_no_checkpoint_is_an_error_or_a_problem(tmp_path: Path, save: Save) -> None:
    with pytest.raises(CheckpointError, match="nothing is there, expected a checkpoint"):
        examine.examine(tmp_path / "step_9")
    (tmp_path / "step_10").mkdir()
    torn = save(11)
    (torn / "trimtab_manifest.json").write_bytes(b"{")

    empty, unreadable = examine.examine(tmp_path / "step_10"), examine.examine(torn)

    assert (empty.step, empty.problems) == (
        10,
        ("no trimtab_manifest.json, which a save writes last; it holds nothing",),
    )
    assert unreadable == Examined(info=unreadable.info, manifest=None, problems=unreadable.problems, step=11)
    assert unreadable.problems[0].endswith("found no JSON, expected a whole manifest")
