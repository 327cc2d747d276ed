"""A kill, a full disk or a failing one at every single change of the disk: what loaded before still loads, or more."""

import errno
import json
import os
import runpy
import shutil
import zlib
from pathlib import Path

import pytest

from trimtab.errors import CheckpointError
from trimtab.resume.disk_changes import Disk
from trimtab.resume.drafts import remove_checkpoint
from trimtab.resume.manifest import Manifest
from trimtab.resume.writing import Draft

OLD = {"model.pt": b"old weights", "sharded/a": b"old shard"}
NEW = {"model.pt": b"new weights and more", "sharded/b": b"new shard", "rank_0.pt": b"rng"}

_faulty = runpy.run_path(str(Path(__file__).parents[2] / "faulty_disk.py"))
Faulty, KILL, KILL_AFTER, SHORT = (_faulty[name] for name in ("Faulty", "KILL", "KILL_AFTER", "SHORT"))


def save(folder, payload, *, step=200, disk=None):
    draft = Draft.begin(folder, f"step_{step}", disk=disk or Disk())
    try:
        for relative, data in payload.items():
            with draft.file(relative) as stream:
                stream.write(data)
        entries = draft.entries
        parts = {"model": tuple(entry.path for entry in entries)}
        return draft.commit(
            Manifest(saver="trimtab", step=step, run_id="a", serial=1, parts=parts, files=entries),
        )
    except (OSError, CheckpointError):
        draft.abandon()
        raise


def load(checkpoint):
    """Payload by its last names, None where the manifest or a file does not hold; shares no code with the library."""
    try:
        told = json.loads((checkpoint / "trimtab_manifest.json").read_bytes())["manifest"]
        found = {entry["path"]: (checkpoint / entry["path"]).read_bytes() for entry in told["files"]}
    except (OSError, ValueError, KeyError):
        return None
    if any(
        (len(found[e["path"]]), zlib.crc32(found[e["path"]])) != (e["size_bytes"], e["crc32"]) for e in told["files"]
    ):
        return None
    return {path.partition("/")[2] if path.startswith("again-") else path: data for path, data in found.items()}


def everything(folder):
    """All paths, those of drafts and of what took a place by the part that does not change."""
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


def fresh(folder, disk):
    save(folder, NEW, disk=disk)


def over_an_old_one(folder, disk):
    save(folder, NEW, step=100, disk=disk)


def over_one_that_was_replaced(folder, disk):
    save(folder, NEW, step=300, disk=disk)


def remove(folder, disk):
    remove_checkpoint(folder / "step_300", disk=disk)


SCENES = {"fresh": (fresh, 200), "over": (over_an_old_one, 100), "again": (over_one_that_was_replaced, 300)}


@pytest.fixture(scope="module")
def prepare(tmp_path_factory):
    """Fills a folder: step 100, and step 300 which the run went over again; copied, as a copy costs no sync."""
    made = tmp_path_factory.mktemp("made")
    save(made, OLD, step=100)
    save(made, {"model.pt": b"older", "sharded/z": b""}, step=300)
    save(made, OLD, step=300)
    return lambda folder: shutil.copytree(made, folder)


@pytest.fixture
def count(prepare, tmp_path):
    """How many changes of the disk a scene makes."""

    def run(scene):
        disk = Faulty()
        prepare(tmp_path / "counted")
        scene(tmp_path / "counted", disk)
        return disk.num

    return run


def in_a_child(work):
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_clean(folder, *, steps):
    """The next save clears all away that is no part of a checkpoint."""
    Draft.begin(folder, "step_400").abandon()
    assert sorted(path.name for path in folder.iterdir()) == sorted(f"step_{step}" for step in steps)
    for step in steps:
        told = json.loads((folder / f"step_{step}" / "trimtab_manifest.json").read_bytes())["manifest"]
        files = {Path(entry["path"]) for entry in told["files"]}
        folders = {parent for path in files for parent in path.parents} - {Path()}
        expected = files | folders | {Path("trimtab_manifest.json")}
        assert everything(folder / f"step_{step}") == sorted(map(str, expected))


@pytest.mark.parametrize("what", [KILL, KILL_AFTER])
@pytest.mark.parametrize("scene", SCENES)
def test_a_saver_killed_at_any_change_of_the_disk_leaves_what_was_there_or_the_new_one(
    tmp_path, prepare, count, scene, what
):
    act, step = SCENES[scene]
    num = count(act)
    assert num > 15

    seen = []
    for at in range(num):
        # given
        folder = tmp_path / str(at)
        prepare(folder)

        # when
        assert in_a_child(lambda: act(folder, Faulty(at, what))) == 9  # noqa: B023 - ended in this round

        # then
        found = load(folder / f"step_{step}")
        seen.append(found)
        assert found in ((NEW, None) if scene == "fresh" else (NEW, OLD))
        assert all(load(folder / f"step_{other}") == OLD for other in {100, 300} - {step})
        check_clean(folder, steps={100, 300} | ({step} if found else set()))
        act(folder, Disk())
        assert load(folder / f"step_{step}") == NEW
        check_clean(folder, steps={100, 300, step})
    assert seen == sorted(seen, key=lambda found: found == NEW)  # once it stands it stands
    assert what == KILL or seen[-1] == NEW


@pytest.mark.parametrize("what", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("scene", SCENES)
def test_a_disk_that_is_full_or_fails_at_any_change_leaves_no_draft_and_all_that_loaded(
    tmp_path, prepare, count, scene, what
):
    act, step = SCENES[scene]
    num = count(act)

    num_failed = 0
    for at in range(num):
        # given
        folder = tmp_path / str(at)
        prepare(folder)

        # when
        failed = None
        try:
            act(folder, Faulty(at, what))
        except OSError as error:
            failed = error.errno
        assert failed in (None, what)
        num_failed += failed is not None

        # then
        found = load(folder / f"step_{step}")
        assert found == NEW or (failed and found == (None if scene == "fresh" else OLD))
        assert all(load(folder / f"step_{other}") == OLD for other in {100, 300} - {step})
        assert not list(folder.glob("*.tmp-*"))
        check_clean(folder, steps={100, 300} | ({step} if found else set()))
        act(folder, Disk())
        assert load(folder / f"step_{step}") == NEW
    assert num_failed >= num - 6  # what was replaced and cannot be removed fails no save


@pytest.mark.parametrize("scene", SCENES)
def test_a_write_that_takes_a_part_anywhere_goes_on(tmp_path, prepare, count, scene):
    act, step = SCENES[scene]

    for at in range(count(act)):
        folder = tmp_path / str(at)
        prepare(folder)
        act(folder, Faulty(at, SHORT))
        assert load(folder / f"step_{step}") == NEW


@pytest.mark.parametrize("what", [KILL, KILL_AFTER, errno.EIO])
def test_a_removal_that_is_cut_short_leaves_a_whole_checkpoint_or_none(tmp_path, prepare, count, what):
    num = count(remove)

    for at in range(num):
        folder = tmp_path / str(at)
        prepare(folder)

        def work(folder=folder, at=at):
            remove(folder, Faulty(at, what))

        if isinstance(what, str):
            assert in_a_child(work) == 9
        else:
            with pytest.raises(OSError, match="Input/output"):
                work()

        left = (folder / "step_300").exists()
        assert not left or load(folder / "step_300") == OLD
        check_clean(folder, steps={100, 300} if left else {100})


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_a_kill_while_the_leftovers_of_a_kill_are_cleared_away_harms_nothing(tmp_path, prepare, count, every):
    num = count(over_an_old_one)

    for first in range(0, num, every):
        folder = tmp_path / str(first)
        prepare(folder)
        assert in_a_child(lambda: over_an_old_one(folder, Faulty(first, KILL))) == 9  # noqa: B023 - ended in this round
        for second in range(0, 2 * num, every):
            in_a_child(lambda: over_an_old_one(folder, Faulty(second, KILL)))  # noqa: B023 - ended in this round
            assert load(folder / "step_100") in (OLD, NEW)
            assert load(folder / "step_300") == OLD
        check_clean(folder, steps={100, 300})


@pytest.mark.parametrize("what", [KILL, errno.ENOSPC])
def test_a_second_rank_that_ends_at_any_of_its_changes_leaves_what_was_there(tmp_path, prepare, what):
    def write(draft, disk):
        second = Draft.join(draft.path, disk=disk)
        with second.file("deep/rank_1.pt") as stream:
            stream.write(b"rng")
        second.leave()

    prepare(tmp_path / "counted")
    disk = Faulty()
    draft = Draft.begin(tmp_path / "counted", "step_200")
    write(draft, disk)
    assert disk.num >= 5

    for at in range(disk.num):
        folder = tmp_path / str(at)
        prepare(folder)
        draft = Draft.begin(folder, "step_200")
        if what == KILL:
            assert in_a_child(lambda: write(draft, Faulty(at, what))) == 9  # noqa: B023 - ended in this round
        else:
            with pytest.raises(OSError, match="No space"):
                write(draft, Faulty(at, what))
        assert load(folder / "step_100") == OLD
        draft.abandon()
        check_clean(folder, steps={100, 300})
