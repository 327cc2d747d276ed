"""The writing end of a journal."""

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from trimtab.errors import UsageError
from trimtab.log.frames import HEADER_SIZE, KIND_EVENTS, Block, parse_header
from trimtab.log.journal import JournalWriter
from trimtab.log.parts import journal_name
from trimtab.log.scan import Journal


def block(text: bytes) -> Block:
    return Block(KIND_EVENTS, 1, 1, 1, [text])


def payloads(path: Path) -> list[bytes]:
    return [payload for _, payload in Journal(path).frames({KIND_EVENTS})]


def test_a_journal_is_named_after_its_rank() -> None:
    assert (journal_name(0), journal_name(12345)) == ("rank-00000.journal", "rank-12345.journal")


def test_frames_follow_each_other_and_name_their_offset(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path, attempt=3, rank=2)

    offsets = [writer.append(block(text)) for text in (b"one", b"two", b"three")]
    writer.close()

    data = path.read_bytes()
    headers = [parse_header(data[offset : offset + HEADER_SIZE], offset) for offset in offsets]
    assert offsets == [0, HEADER_SIZE + 3, 2 * HEADER_SIZE + 6]
    assert [(header.attempt, header.rank) for header in headers if header] == [(3, 2)] * 3
    assert payloads(path) == [b"one", b"two", b"three"]


def test_what_is_there_is_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "j"
    for text in (b"one", b"two"):
        writer = JournalWriter(path)
        writer.append(block(text))
        writer.close()

    assert payloads(path) == [b"one", b"two"]


def test_a_frame_is_one_write(tmp_path: Path) -> None:
    sizes = []

    def write(fd: int, data: bytes) -> int:
        sizes.append(len(data))
        return os.write(fd, data)

    writer = JournalWriter(tmp_path / "j", write=write)
    writer.append(block(b"one"))
    writer.append(block(b"three"))
    writer.close()

    assert sizes == [HEADER_SIZE + 3, HEADER_SIZE + 5]


def test_a_write_that_takes_a_part_is_followed_by_the_rest(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j", write=lambda fd, data: os.write(fd, data[:7]))

    writer.append(block(b"one"))
    writer.append(block(b"two"))
    writer.close()

    assert payloads(tmp_path / "j") == [b"one", b"two"]


def test_after_a_write_that_failed_midway_the_next_frame_is_read(tmp_path: Path) -> None:
    # given a disk that takes a part of the second frame and refuses the rest
    failing = [False]

    def write(fd: int, data: bytes) -> int:
        if failing[0] == "refuse":
            failing[0] = False
            raise OSError(28, "No space left on device")
        if failing[0]:
            failing[0] = "refuse"
            return os.write(fd, data[:30])
        return os.write(fd, data)

    writer = JournalWriter(tmp_path / "j", write=write)
    writer.append(block(b"one"))
    failing[0] = True
    with pytest.raises(OSError, match="No space left"):
        writer.append(block(b"two"))

    # when there is room again
    writer.append(block(b"three"))
    writer.close()

    # then only the failed frame is missing, and it is said
    journal = Journal(tmp_path / "j")
    assert [payload for _, payload in journal.frames({KIND_EVENTS})] == [b"one", b"three"]
    assert journal.notices() == ["j: a write that was cut off from byte 59 to byte 89: 30 bytes left out"]


def test_a_second_writer_is_refused_by_the_name_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "rank-00000.journal"
    first = JournalWriter(path)

    with pytest.raises(UsageError, match=r"rank-00000\.journal is being written by another"):
        JournalWriter(path)

    first.close()
    JournalWriter(path).close()


def test_a_writer_in_another_process_is_refused(tmp_path: Path) -> None:
    first = JournalWriter(tmp_path / "j")
    code = (
        "import sys, pathlib; from trimtab.log.journal import JournalWriter; JournalWriter(pathlib.Path(sys.argv[1]))"
    )

    other = subprocess.run([sys.executable, "-c", code, tmp_path / "j"], capture_output=True, text=True, check=False)

    assert other.returncode == 1
    assert "is being written by another process" in other.stderr
    first.close()


def test_a_forked_child_that_lives_on_does_not_keep_the_lock(tmp_path: Path) -> None:
    first = JournalWriter(tmp_path / "j")
    hold_read, hold_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(hold_read, 1)
        os._exit(0)

    try:
        first.close()
        JournalWriter(tmp_path / "j").close()
    finally:
        os.write(hold_write, b"x")
        os.waitpid(child, 0)
        os.close(hold_read)
        os.close(hold_write)


def test_a_file_system_without_locks_is_recorded_on_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)

    writer = JournalWriter(tmp_path / "j")
    writer.append(block(b"one"))
    writer.close()

    assert payloads(tmp_path / "j") == [b"one"]


def test_the_disk_is_synced_once_a_second_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now, synced = [100.0], []
    monkeypatch.setattr("os.fsync", lambda fd: synced.append(now[0]))
    writer = JournalWriter(tmp_path / "j", clock=lambda: now[0])

    for moment in (100.2, 100.9, 101.0, 101.5, 102.5, 102.6):
        now[0] = moment
        writer.append(block(b"x"))
        writer.sync()
    writer.close()

    assert synced == [101.0, 102.5, 102.6]


def test_nothing_new_is_not_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = []
    monkeypatch.setattr("os.fsync", synced.append)
    writer = JournalWriter(tmp_path / "j")

    writer.sync(force=True)
    writer.close()
    writer.close()

    assert synced == []


@pytest.mark.parametrize(("attempt", "rank"), [(0, 0), (65536, 0), (1, -1), (1, 65536)])
def test_an_attempt_or_rank_that_a_frame_cannot_hold_is_refused(tmp_path: Path, attempt: int, rank: int) -> None:
    with pytest.raises(UsageError, match="at most 65535"):
        JournalWriter(tmp_path / "j", attempt=attempt, rank=rank)

    assert not (tmp_path / "j").exists()


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOSYS, errno.ENOTSUP])
def test_a_file_system_that_cannot_sync_is_recorded_on_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.fsync", refuse)
    writer = JournalWriter(tmp_path / "j")
    writer.append(block(b"one"))
    writer.close()

    assert payloads(tmp_path / "j") == [b"one"]


def test_a_disk_that_fails_to_sync_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(fd: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.fsync", fail)
    writer = JournalWriter(tmp_path / "j")
    writer.append(block(b"one"))

    with pytest.raises(OSError, match="Input/output error"):
        writer.close()


def test_a_writer_knows_whether_its_file_is_still_there(tmp_path: Path) -> None:
    path, aside = tmp_path / "j", tmp_path / "aside"
    writer = JournalWriter(path)
    assert writer.is_in_place()

    path.rename(aside)
    assert not writer.is_in_place()

    path.write_bytes(b"another")
    with pytest.raises(FileNotFoundError, match="j was replaced by another file while the run wrote to it"):
        writer.is_in_place()

    aside.unlink()
    with pytest.raises(FileNotFoundError, match="j was deleted while the run wrote to it"):
        writer.is_in_place()
    writer.close()


def test_a_rotated_journal_goes_on_in_a_new_file_under_the_old_name(tmp_path: Path) -> None:
    path, closed = tmp_path / "rank-00000.journal", tmp_path / "rank-00000.000001.journal"
    writer = JournalWriter(path)
    writer.append(block(b"one"))

    writer.rotate(closed, block(b"first"))
    writer.append(block(b"two"))

    assert (payloads(closed), payloads(path)) == ([b"one"], [b"first", b"two"])
    assert writer.size_bytes == path.stat().st_size
    assert writer.is_in_place()
    assert sorted(file.name for file in tmp_path.iterdir()) == [closed.name, path.name]
    writer.release()
    writer.close()


@pytest.mark.parametrize("is_last", [False, True], ids=["rotated", "finished"])
def test_what_a_closed_journal_holds_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_last: bool
) -> None:
    # given: the size that each file had when it was synced
    synced: dict[int, int] = {}

    def noted(fd: int) -> None:
        synced[os.fstat(fd).st_ino] = os.fstat(fd).st_size

    monkeypatch.setattr("os.fsync", noted)
    path, closed = tmp_path / "rank-00000.journal", tmp_path / "rank-00000.000001.journal"
    renamed: list[tuple[str, bool]] = []
    rename = Path.rename

    def noted_rename(source: Path, target: Path) -> Path:
        renamed.append((Path(target).name, synced.get(source.stat().st_ino) == source.stat().st_size))
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", noted_rename)
    writer = JournalWriter(path)
    writer.append(block(b"one"))
    # when
    if is_last:
        writer.finish(closed)
    else:
        writer.rotate(closed, block(b"first"))
    # then: whatever got a name was whole on the disk
    assert renamed == [(closed.name, True)] + ([] if is_last else [(path.name, True)])
    writer.release()
    writer.close()


def test_a_finished_journal_has_its_closed_name(tmp_path: Path) -> None:
    path, closed = tmp_path / "rank-00000.journal", tmp_path / "rank-00000.000001.journal"
    writer = JournalWriter(path)
    writer.append(block(b"one"))

    writer.finish(closed)
    writer.close()

    assert payloads(closed) == [b"one"]
    assert not path.exists()


def test_a_second_writer_is_refused_at_every_moment_of_a_rotation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a writer that is asked after by another process after each call to the system
    path = tmp_path / "rank-00000.journal"
    code = textwrap.dedent("""
        import sys, pathlib
        from trimtab.errors import UsageError
        from trimtab.log.journal import JournalWriter
        for path in sys.stdin:
            try:
                JournalWriter(pathlib.Path(path.strip()))
                print("taken", flush=True)
            except UsageError:
                print("refused", flush=True)
    """)
    other = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    answers: list[str] = []

    def asking(call):
        def ask(*args, **kwargs):
            result = call(*args, **kwargs)
            other.stdin.write(f"{path}\n")
            other.stdin.flush()
            answers.append(other.stdout.readline().strip())
            return result

        return ask

    writer = JournalWriter(path)
    writer.append(block(b"one"))
    for name in ("rename", "fsync", "unlink"):
        monkeypatch.setattr(f"os.{name}", asking(getattr(os, name)))

    # when it rotates and ends
    writer.rotate(tmp_path / "rank-00000.000001.journal", block(b"two"))
    writer.release()
    writer.finish(tmp_path / "rank-00000.000002.journal")

    # then the other one never got in, and nothing was lost
    other.stdin.close()
    other.wait()
    other.stdout.close()
    assert set(answers) == {"refused"}
    assert len(answers) >= 5
    assert payloads(tmp_path / "rank-00000.000001.journal") == [b"one"]
    assert payloads(tmp_path / "rank-00000.000002.journal") == [b"two"]
    writer.close()


@pytest.mark.parametrize("refused", [1, 2])
def test_a_rotation_that_fails_leaves_the_journal_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    path, closed = tmp_path / "rank-00000.journal", tmp_path / "rank-00000.000001.journal"
    writer = JournalWriter(path)
    writer.append(block(b"one"))
    rename, calls = os.rename, []

    def failing(*args: object) -> None:
        calls.append(args)
        if len(calls) == refused:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        rename(*args)

    monkeypatch.setattr("os.rename", failing)
    with pytest.raises(OSError, match="Permission denied"):
        writer.rotate(closed, block(b"first"))
    writer.append(block(b"two"))
    writer.close()

    assert payloads(path) == [b"one", b"two"]
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_a_writer_that_waited_for_a_journal_which_was_sealed_meanwhile_takes_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a journal that is closed, and deleted, between our opening it and our lock
    path = tmp_path / "rank-00000.journal"
    path.write_bytes(b"old")
    import fcntl

    flock, moved = fcntl.flock, []

    def late(fd: int, operation: int) -> None:
        if not moved:
            moved.append(path.rename(tmp_path / "sealed"))
        flock(fd, operation)

    monkeypatch.setattr("fcntl.flock", late)
    writer = JournalWriter(path)
    writer.append(block(b"one"))
    writer.close()

    assert payloads(path) == [b"one"]
    assert (tmp_path / "sealed").read_bytes() == b"old"
