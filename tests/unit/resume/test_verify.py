"""One checkpoint, damaged in every way: each has a sentence of its own, and nothing is waited for or led out to."""

import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from trimtab.errors import CheckpointError
from trimtab.resume.checksum import read_checksum
from trimtab.resume.verify import verify

Save = Callable[..., Path]

SHARDED = {
    "sharded/__0_0.distcp": b"a" * 100,
    "sharded/__1_0.distcp": b"b" * 100,
    "sharded/.metadata": b"c" * 10,
    "run.pt": b"r" * 40,
    "rank_0.pt": b"g" * 60,
}
SHARDED_PARTS = {
    "model": sorted(SHARDED)[2:],
    "optimizer": sorted(SHARDED)[2:],
    "step": ["run.pt"],
    "rng": ["rank_0.pt"],
}


def problems(path: Path) -> list[str]:
    report = verify(path)
    assert report.ok == (not report.problems)
    assert all(problem.isascii() and problem.isprintable() for problem in (*report.problems, *report.notes))
    return list(report.problems)


def test_a_checkpoint_as_it_was_saved_is_whole(save: Save) -> None:
    report = verify(save(900, healthy=False, run_id="run-b"))

    assert report.ok
    assert (report.step, report.healthy, report.promise) == (900, False, "checksums")
    assert report.parts == ("model", "optimizer", "step", "rng")
    assert (report.num_files, report.size_bytes) == (4, 900)
    assert (report.problems, report.notes, report.missing) == ((), (), ())


def test_the_document_is_what_was_found(save: Save) -> None:
    path = save(900)
    (path / "model.pt").unlink()

    document = verify(path).to_dict()

    assert document == {
        "version": 1, "path": str(path), "step": 900, "ok": False, "notes": [], "promise": "checksums", "healthy": True,
        "problems": ["model.pt is missing, which holds model"], "parts": ["model", "optimizer", "step", "rng"],
        "missing": [], "num_files": 4, "size_bytes": 900, "needs_pickle": False,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "model.pt is empty; it had 300 bytes"),
        (b"m" * 299, "model.pt is truncated: 299 of its 300 bytes are there"),
        (b"m" * 301, "model.pt is longer than it was: 301 bytes, 300 were saved"),
    ],
)
def test_another_size_is_said(save: Save, content: bytes, problem: str) -> None:
    path = save(900)
    (path / "model.pt").write_bytes(content)

    assert problems(path) == [problem]


@pytest.mark.parametrize("place", [0, 150, 299])
@pytest.mark.parametrize("bit", [1, 0x80])
def test_one_flipped_bit_is_said(save: Save, place: int, bit: int) -> None:
    path = save(900)
    content = bytearray(b"m" * 300)
    content[place] ^= bit
    (path / "model.pt").write_bytes(content)

    expected = f"found the checksum {zlib.crc32(content):08x}, expected {zlib.crc32(b'm' * 300):08x}"
    assert problems(path) == [f"model.pt is not what was saved: {expected}"]


def test_a_folder_or_a_pipe_where_a_file_should_be_is_said(save: Save) -> None:
    path = save(900)
    for name in ("model.pt", "optimizer.pt"):
        (path / name).unlink()
    (path / "model.pt").mkdir()
    os.mkfifo(path / "optimizer.pt")

    assert problems(path) == ["model.pt is a folder", "optimizer.pt is no ordinary file"]


def test_a_link_that_leads_out_is_not_followed(save: Save, tmp_path: Path) -> None:
    path = save(900)
    (path / "model.pt").rename(tmp_path / "model.pt")
    (path / "model.pt").symlink_to(tmp_path / "model.pt")

    (problem,) = problems(path)

    assert problem.startswith("model.pt is a link that leads out of the checkpoint, to ")


def test_a_folder_that_is_a_link_and_leads_out_is_not_followed(save: Save, tmp_path: Path) -> None:
    path = save(900, files=SHARDED, parts=SHARDED_PARTS)
    (path / "sharded").rename(tmp_path / "elsewhere")
    (path / "sharded").symlink_to(tmp_path / "elsewhere")

    assert len([problem for problem in problems(path) if "leads out of the checkpoint" in problem]) == 3


def test_a_link_within_the_checkpoint_and_one_to_it_are_taken(save: Save, tmp_path: Path) -> None:
    path = save(900)
    (path / "run.pt").rename(path / "other")
    (path / "run.pt").symlink_to("other")
    (tmp_path / "disk").mkdir()
    (path).rename(tmp_path / "disk" / "step_900")
    path.symlink_to(tmp_path / "disk" / "step_900")

    assert problems(path) == []


def test_a_link_to_itself_is_said(save: Save) -> None:
    path = save(900)
    (path / "run.pt").unlink()
    (path / "run.pt").symlink_to("run.pt")

    assert problems(path) == ["run.pt cannot be read (Too many levels of symbolic links)"]


def test_one_shard_of_two_that_is_missing_is_said(save: Save) -> None:
    path = save(900, files=SHARDED, parts=SHARDED_PARTS)
    (path / "sharded/__1_0.distcp").unlink()

    assert problems(path) == ["sharded/__1_0.distcp is missing, one of the 3 files that hold model and optimizer"]


def test_metadata_without_its_shards_is_said(save: Save) -> None:
    path = save(900, files=SHARDED, parts=SHARDED_PARTS)
    for name in ("__0_0.distcp", "__1_0.distcp"):
        (path / "sharded" / name).unlink()

    assert problems(path) == [
        "sharded/__0_0.distcp and 1 more of the 3 files that hold model and optimizer are missing"
    ]


def test_shards_that_are_all_missing_are_said_in_one_sentence(save: Save) -> None:
    path = save(900, files=SHARDED, parts=SHARDED_PARTS)
    for name in SHARDED:
        if name.startswith("sharded/"):
            (path / name).unlink()

    assert problems(path) == ["all 3 files that hold model and optimizer are missing"]


def test_a_manifest_alone_is_said(save: Save) -> None:
    path = save(900)
    for name in ("model.pt", "optimizer.pt", "run.pt", "rank_0.pt"):
        (path / name).unlink()

    assert problems(path) == ["trimtab_manifest.json is there alone: all 4 files that it lists are missing"]


def test_every_size_and_every_checksum_is_told_where_all_are_asked_for(save: Save) -> None:
    path = save(900)
    (path / "model.pt").write_bytes(b"n" * 300)
    (path / "optimizer.pt").write_bytes(b"")
    (path / "run.pt").unlink()

    assert [problem.split(" ")[:3] for problem in problems(path)] == [
        ["optimizer.pt", "is", "empty;"],
        ["run.pt", "is", "missing,"],
        ["model.pt", "is", "not"],
    ]


def test_files_that_are_not_in_the_manifest_are_a_note(save: Save) -> None:
    path = save(900)
    (path / "notes\x1b.txt").touch()
    (path / "sub").mkdir()
    (path / "sub" / "a").touch()

    report = verify(path)

    assert report.ok
    assert report.notes == ("notes\\x1b.txt and sub/a are not part of it: there, and not in its manifest",)


def test_a_checkpoint_under_the_name_of_another_step_is_said(save: Save) -> None:
    path = save(200, name="step_300")

    assert problems(path) == [
        "called step_300 and saved after step 200: it was copied or renamed. Give it back the name that its step has"
    ]


def test_a_backup_under_a_name_of_its_own_is_whole(save: Save) -> None:
    assert problems(save(200, name="step_200_backup")) == []


def test_a_manifest_that_was_changed_is_said(save: Save) -> None:
    path = save(900)
    file = path / "trimtab_manifest.json"
    file.write_bytes(file.read_bytes().replace(b'"healthy":true', b'"healthy":null'))

    (problem,) = problems(path)

    assert problem.startswith(f"{file}: found the checksum ")
    assert verify(path).step == 900


def test_a_folder_of_ours_without_a_manifest_says_what_it_holds(save: Save) -> None:
    path = save(900)
    (path / "trimtab_manifest.json").unlink()

    assert problems(path) == [
        "no trimtab_manifest.json, which a save writes last; it holds model.pt, optimizer.pt, rank_0.pt and run.pt"
    ]


def test_a_path_where_nothing_is_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=re.escape("step_5\\n: nothing is there, expected a checkpoint")):
        verify(tmp_path / "step_5\n")


def test_a_model_without_the_rest_is_whole_and_lacks_it(save: Save) -> None:
    # C079
    report = verify(
        save(900, files={"model.pt": b"m", "run.pt": b"r"}, parts={"model": ["model.pt"], "step": ["run.pt"]})
    )

    assert report.ok
    assert report.missing == ("optimizer", "rng")


def test_reading_is_told_as_it_goes(save: Save) -> None:
    num_bytes: list[int] = []

    verify(save(900), progress=num_bytes.append)

    assert sum(num_bytes) == 900


def test_a_large_file_is_read_piece_by_piece(tmp_path: Path) -> None:
    content = os.urandom(3 * (1 << 20) + 17)
    (tmp_path / "a").write_bytes(content)
    num_bytes: list[int] = []

    assert read_checksum(tmp_path / "a", progress=num_bytes.append) == (len(content), zlib.crc32(content))
    assert len(num_bytes) > 3
