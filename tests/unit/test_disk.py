"""What is written appears whole, and is on the disk where the file system can say so."""

import errno

import pytest

from trimtab.disk import sync_path, write_file, write_whole


def fail_to_sync(monkeypatch, code):
    def refuse(fd):
        raise OSError(code, "no")

    monkeypatch.setattr("os.fsync", refuse)


def test_a_file_appears_under_its_name_and_no_draft_is_left(tmp_path):
    write_whole(tmp_path / "run.json", b"{}")

    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("run.json", b"{}")]


def test_what_is_written_whole_was_synced_before_it_has_its_name(tmp_path, monkeypatch):
    # given
    seen = []
    monkeypatch.setattr("os.fsync", lambda fd: seen.append([entry.name for entry in tmp_path.iterdir()]))

    # when
    write_whole(tmp_path / "run.json", b"{}")

    # then
    assert seen == [["run.json.new"]]


@pytest.mark.parametrize("code", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_is_left_to_its_own_time(tmp_path, monkeypatch, code):
    fail_to_sync(monkeypatch, code)

    write_whole(tmp_path / "run.json", b"{}")
    sync_path(tmp_path)

    assert (tmp_path / "run.json").read_bytes() == b"{}"


def test_a_disk_that_fails_is_an_error_and_the_file_has_no_name(tmp_path, monkeypatch):
    fail_to_sync(monkeypatch, errno.EIO)

    with pytest.raises(OSError, match="no"):
        write_whole(tmp_path / "run.json", b"{}")
    with pytest.raises(OSError, match="no"):
        sync_path(tmp_path)

    assert not (tmp_path / "run.json").exists()


def test_a_file_that_is_written_piece_by_piece_has_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "a.jsonl"

    with write_file(path) as file:
        file.write(b"one")
        assert not path.exists()
        file.write(b", two")

    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a.jsonl", b"one, two")]


def test_a_file_that_could_not_be_finished_leaves_what_stood_there_and_no_draft(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"before")

    def write_half():
        with write_file(path) as file:
            file.write(b"half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()

    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("a.jsonl", b"before")]
