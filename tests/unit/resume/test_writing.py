"""A checkpoint appears whole or not at all, and nothing that loads is gone before its successor stands."""

import errno
import json
import os
import zlib
from contextlib import suppress
from pathlib import Path

import pytest

from trimtab.errors import CheckpointError
from trimtab.resume.disk_changes import Disk
from trimtab.resume.drafts import remove_checkpoint
from trimtab.resume.manifest import Manifest
from trimtab.resume.writing import Draft

PAYLOAD = {"model.pt": b"weights", "optimizer.pt": b"moments" * 3, "ranks/rank_0.pt": b""}


def manifest_of(*drafts, step=200, run_id="a", **more):
    entries = tuple(entry for draft in drafts for entry in draft.entries)
    parts = {"model": tuple(entry.path for entry in entries)}
    return Manifest(saver="trimtab", step=step, run_id=run_id, serial=1, parts=parts, files=entries, **more)


def save(folder, payload, *, step=200, run_id="a", disk=None):
    draft = Draft.begin(folder, f"step_{step}", **({} if disk is None else {"disk": disk}))
    for relative, data in payload.items():
        with draft.file(relative) as stream:
            stream.write(data)
    return draft.commit(manifest_of(draft, step=step, run_id=run_id))


def load(checkpoint):
    """The payload by its last names, each file checked against the manifest; shares no code with the library."""
    told = json.loads((checkpoint / "trimtab_manifest.json").read_bytes())["manifest"]
    found = {}
    for entry in told["files"]:
        data = (checkpoint / entry["path"]).read_bytes()
        assert (len(data), zlib.crc32(data)) == (entry["size_bytes"], entry["crc32"])
        found[entry["path"].partition("/")[2] if entry["path"].startswith("again-") else entry["path"]] = data
    assert sorted(told["parts"]["model"]) == sorted(entry["path"] for entry in told["files"])
    return found


def everything(folder):
    return sorted(str(path.relative_to(folder)) for path in Path(folder).rglob("*"))


class Told(Disk):
    """Tells what was done, in order."""

    def __init__(self):
        self.calls = []

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if name == "calls" or name.startswith("_"):
            return method

        def tell(*arguments):
            what = arguments[0]
            self.calls.append((name, what.name if isinstance(what, Path) else None))
            return method(*arguments)

        return tell


def test_a_checkpoint_has_its_name_when_all_of_it_is_there(tmp_path):
    # given
    draft = Draft.begin(tmp_path / "runs" / "one", "step_200")

    # when
    for relative, data in PAYLOAD.items():
        with draft.file(relative) as stream:
            stream.write(data)
            assert not (tmp_path / "runs" / "one" / "step_200").exists()
    path = draft.commit(manifest_of(draft))

    # then
    assert path == tmp_path / "runs" / "one" / "step_200"
    assert load(path) == PAYLOAD
    assert [child.name for child in path.parent.iterdir()] == ["step_200"]


def test_the_entries_hold_path_size_and_checksum_of_what_was_written_in_pieces(tmp_path):
    # given
    draft = Draft.begin(tmp_path, "step_1")
    data = bytes(range(256)) * 10_000

    # when
    with draft.file("a/b.pt") as stream:
        assert stream.write(memoryview(data)[:3]) == 3
        assert stream.write(memoryview(data)[3:]) == len(data) - 3
        stream.flush()

    # then
    (entry,) = draft.entries
    assert (entry.path, entry.size_bytes, entry.crc32) == ("a/b.pt", 2_560_000, zlib.crc32(data))
    assert (draft.path / "a/b.pt").read_bytes() == data
    draft.abandon()


def test_numbers_in_a_memoryview_are_written_as_their_bytes(tmp_path):
    draft = Draft.begin(tmp_path, "step_1")

    with draft.file("a.pt") as stream:
        assert stream.write(memoryview(bytearray(8)).cast("d")) == 8

    assert draft.entries[0].size_bytes == 8
    draft.abandon()


def test_everything_is_on_the_disk_before_the_name_is_given_and_the_name_after(tmp_path):
    # given
    disk = Told()

    # when
    save(tmp_path, PAYLOAD, disk=disk)

    # then
    calls = disk.calls
    draft = next(what for how, what in calls if how == "make_folder")
    at = calls.index(("rename", draft))
    before, after = calls[:at], calls[at + 1 :]
    assert sum(how == "sync" for how, _ in before) == len(PAYLOAD) + 1
    assert before[-4:-1] == [("open_new", "trimtab_manifest.json"), ("write", None), ("sync", None)]
    assert {("sync_folder", draft), ("sync_folder", "ranks")} <= set(before)
    assert before[-1] == ("sync_folder", draft)
    assert after == [("sync_folder", tmp_path.name)]


def test_a_step_that_the_same_run_goes_over_again_is_replaced_and_nothing_of_the_old_one_stays(tmp_path):
    # given
    save(tmp_path, PAYLOAD)

    # when
    for number in range(3):
        path = save(tmp_path, {"model.pt": b"new %d" % number, "sharded/a": b"s"})

        # then
        assert path == tmp_path / "step_200"
        assert load(path) == {"model.pt": b"new %d" % number, "sharded/a": b"s"}
        (inside,) = (child for child in path.iterdir() if child.is_dir())
        assert everything(path) == sorted(
            ["trimtab_manifest.json", inside.name]
            + [f"{inside.name}/{inner}" for inner in ("model.pt", "sharded", "sharded/a")]
        )
        assert [child.name for child in tmp_path.iterdir()] == ["step_200"]


def test_a_note_that_somebody_put_into_a_checkpoint_stays_when_it_is_replaced(tmp_path):
    path = save(tmp_path, PAYLOAD)
    (path / "note.txt").write_text("the good one")

    save(tmp_path, PAYLOAD)

    assert (path / "note.txt").read_text() == "the good one"


def test_old_payload_is_removed_only_when_the_new_manifest_is_on_the_disk(tmp_path):
    # given
    save(tmp_path, PAYLOAD)
    disk = Told()

    # when
    save(tmp_path, PAYLOAD, disk=disk)

    # then
    at = disk.calls.index(("replace", "trimtab_manifest.json"))
    assert disk.calls[at - 1] == ("sync_folder", "step_200")
    assert disk.calls[at + 1] == ("sync_folder", "step_200")
    assert not any(how.startswith("remove") for how, _ in disk.calls[:at])
    assert any(how.startswith("remove") for how, _ in disk.calls[at:])


@pytest.mark.parametrize(("run_id", "step"), [("b", 200), (None, 200)])
def test_a_checkpoint_of_another_run_is_never_overwritten(tmp_path, run_id, step):
    # given
    path = save(tmp_path, PAYLOAD)

    # when
    with pytest.raises(CheckpointError, match=r"step 200 of run a.*nothing was overwritten.*another folder"):
        save(tmp_path, {"model.pt": b"other"}, run_id=run_id, step=step)

    # then
    assert load(path) == PAYLOAD


def test_a_name_that_another_run_takes_at_the_last_moment_is_never_overwritten(tmp_path):
    # given
    class Overtaken(Disk):
        def rename(self, path, new):
            if new == tmp_path / "step_200" and not new.exists():
                save(tmp_path, PAYLOAD, run_id="b")
            super().rename(path, new)

    # when
    with pytest.raises(CheckpointError, match=r"step 200 of run b.*nothing was overwritten"):
        save(tmp_path, {"model.pt": b"other"}, disk=Overtaken())

    # then
    assert load(tmp_path / "step_200") == PAYLOAD


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_no_checkpoint_of_ours_is_never_overwritten(tmp_path, kind):
    # given
    target = tmp_path / "step_200"
    if kind == "folder":
        target.mkdir()
        (target / "thesis.txt").write_text("all of it")
    elif kind == "file":
        target.write_text("all of it")
    else:
        save(tmp_path / "elsewhere", PAYLOAD)
        target.symlink_to(tmp_path / "elsewhere" / "step_200")
    before = everything(tmp_path)

    # when
    draft = Draft.begin(tmp_path, "step_200")
    with pytest.raises(CheckpointError, match="is no checkpoint of Trimtab's"):
        draft.commit(manifest_of(draft))
    draft.abandon()

    # then
    assert everything(tmp_path) == before


def test_a_damaged_checkpoint_gives_its_name_up_and_is_kept_under_another(tmp_path, caplog):
    # given
    path = save(tmp_path, PAYLOAD)
    told = (path / "trimtab_manifest.json").read_bytes()
    (path / "trimtab_manifest.json").write_bytes(told[:-9])

    # when
    save(tmp_path, {"model.pt": b"new"})

    # then
    assert load(path) == {"model.pt": b"new"}
    (aside,) = tmp_path.glob("step_200.damaged-*")
    assert (aside / "model.pt").read_bytes() == PAYLOAD["model.pt"]
    assert aside.name in caplog.text


def test_an_abandoned_draft_is_gone_and_abandoning_again_or_after_a_commit_does_nothing(tmp_path):
    # given
    draft = Draft.begin(tmp_path, "step_1")
    with draft.file("a/b/model.pt") as stream:
        stream.write(b"x")

    # when
    draft.abandon()
    draft.abandon()

    # then
    assert everything(tmp_path) == []
    draft = Draft.begin(tmp_path, "step_1")
    draft.commit(manifest_of(draft, step=1))
    draft.abandon()
    assert everything(tmp_path) == ["step_1", "step_1/trimtab_manifest.json"]


def test_a_rank_that_joins_writes_its_own_files_and_rank_0_commits_all(tmp_path):
    # given
    first = Draft.begin(tmp_path, "step_200")
    second = Draft.join(first.path)

    # when
    for rank, draft in enumerate([first, second]):
        with draft.file(f"rank_{rank}.pt") as stream:
            stream.write(b"%d" % rank)
    with pytest.raises(CheckpointError, match="rank 0 began this draft"):
        second.commit(manifest_of(first, second))
    second.abandon()
    path = first.commit(manifest_of(first, second))

    # then
    assert load(path) == {"rank_0.pt": b"0", "rank_1.pt": b"1"}


def test_a_rank_that_does_not_see_the_draft_says_which_folder_it_was(tmp_path):
    with pytest.raises(CheckpointError, match=r"step_1\.tmp-0.*does not see.*all ranks share"):
        Draft.join(tmp_path / "step_1.tmp-00000000")


def test_a_draft_of_a_living_saver_stays_and_one_of_a_dead_saver_goes(tmp_path):
    # given
    living, joined, dead = (Draft.begin(tmp_path, f"step_{step}") for step in (1, 2, 3))
    second = Draft.join(joined.path)
    joined.leave()
    dead.leave()

    # when
    new = Draft.begin(tmp_path, "step_4")

    # then
    assert sorted(tmp_path.iterdir()) == sorted(draft.path for draft in (living, joined, new))
    second.leave()
    Draft.begin(tmp_path, "step_5")
    assert living.path.exists()
    assert not joined.path.exists()


def test_where_locks_do_not_work_no_draft_is_removed(tmp_path, monkeypatch):
    # given
    dead = Draft.begin(tmp_path, "step_3")
    dead.leave()

    def refuse(fd, how):
        raise OSError(errno.ENOLCK, "no locks available")

    monkeypatch.setattr("fcntl.flock", refuse)

    # when
    save(tmp_path, PAYLOAD)
    save(tmp_path, PAYLOAD)

    # then
    assert dead.path.exists()
    assert load(tmp_path / "step_200") == PAYLOAD


@pytest.mark.parametrize(
    "name", ["step_3.tmp", "step_3.tmp-12", "step_x.tmp-01234567", "best.tmp-01234567", "step_3.tmp-01234567.bak"]
)
def test_what_only_looks_like_a_draft_is_left_alone(tmp_path, name):
    (tmp_path / name).mkdir()

    Draft.begin(tmp_path, "step_4").abandon()

    assert everything(tmp_path) == [name]


def test_a_dead_draft_with_links_in_it_goes_and_what_they_point_to_stays(tmp_path):
    # given
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("here")
    dead = Draft.begin(tmp_path / "runs", "step_3")
    (dead.path / "link").symlink_to(tmp_path / "kept")
    dead.leave()

    # when
    Draft.begin(tmp_path / "runs", "step_4").abandon()

    # then
    assert everything(tmp_path) == ["kept", "kept/file", "runs"]


def test_a_manifest_that_says_it_replaced_files_elsewhere_removes_nothing_there(tmp_path):
    # given a checkpoint of a stranger's, which names what is to be removed
    (tmp_path / "mine").mkdir()
    for name in ("thesis.txt", "mine/thesis.txt"):
        (tmp_path / name).write_text("all of it")
    draft = Draft.begin(tmp_path / "runs", "step_200")
    hostile = [
        "../../thesis.txt",
        str(tmp_path / "thesis.txt"),
        "link/thesis.txt",
        "a\0b/c",
        "\ud800",
        "",
        ".",
        7,
        ["x"],
    ]
    path = draft.commit(manifest_of(draft, facts={"replaces": hostile}))
    (path / "link").symlink_to(tmp_path / "mine")
    (path / "again-01234567").mkdir()

    # when
    save(tmp_path / "runs", PAYLOAD, step=300)
    save(tmp_path / "runs", PAYLOAD, step=200)

    # then
    assert load(path) == PAYLOAD
    assert (tmp_path / "thesis.txt").exists()
    assert (tmp_path / "mine" / "thesis.txt").exists()


def test_a_removed_checkpoint_is_gone_and_one_that_another_process_removed_is_no_error(tmp_path):
    path = save(tmp_path, PAYLOAD)

    remove_checkpoint(path)
    remove_checkpoint(path)

    assert everything(tmp_path) == []


def test_a_write_that_is_cut_short_goes_on_where_it_stopped(tmp_path):
    class Short(Disk):
        def write(self, fd, data):
            return super().write(fd, data[:5])

    assert load(save(tmp_path, PAYLOAD, disk=Short())) == PAYLOAD


def test_a_disk_that_takes_nothing_and_says_nothing_is_an_error(tmp_path):
    class Silent(Disk):
        def write(self, fd, data):
            return 0

    with pytest.raises(OSError, match="takes no more bytes"):
        save(tmp_path, PAYLOAD, disk=Silent())


def test_a_full_disk_is_told_as_such_whatever_the_writer_makes_of_it(tmp_path):
    class Full(Disk):
        def write(self, fd, data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    draft = Draft.begin(tmp_path, "step_1", disk=Full())

    def swallow():
        with draft.file("a.pt") as stream, suppress(OSError):
            stream.write(b"x")

    def rename():
        with draft.file("b.pt") as stream:
            try:
                stream.write(b"x")
            except OSError:
                raise RuntimeError("unexpected pos 64 vs 0") from None

    for write in (swallow, rename):
        with pytest.raises(OSError, match="No space left"):
            write()
    assert draft.entries == ()
    draft.abandon()
    assert everything(tmp_path) == []


@pytest.mark.parametrize(("is_link", "there"), [(False, "a file"), (True, "a link that leads nowhere")])
def test_a_folder_whose_name_is_taken_is_an_error_that_says_by_what_and_what_to_do(
    tmp_path: Path, is_link: bool, there: str
) -> None:
    place = tmp_path / "runs"
    if is_link:
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.touch()

    with pytest.raises(FileExistsError) as caught:
        Draft.begin(place, "step_5")

    assert caught.value.strerror == f"{there} stands where a folder is needed. Remove it, or name another folder"
    assert caught.value.filename == str(place)
