"""Reads the frames of one journal, whatever happened to the file.

Enters: a path. Leaves: frames whose two checksums were right, in file order, and after a full pass one line for each
stretch that was left out. Invariants: damage never raises and never yields a wrong frame; memory stays at one frame;
work stays linear in the file's size, also in a file made to prevent that; a journal that is renamed or deleted by its
writer, who sealed it, is read to its end all the same.

```
  frame | frame | damaged ... | frame        after damage: look for the next magic, then for a header that names this
                ^ gap         ^ found        very offset, then for a payload with the right checksum
```
"""

from __future__ import annotations

import io
import os
import stat
import weakref
import zlib
from array import array
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import BinaryIO, Final, cast

from trimtab.errors import LogError
from trimtab.log.damage import MAX_LINES, Damage, Gap, contents
from trimtab.log.frames import (
    FORMAT_VERSION,
    HEADER_SIZE,
    KIND_ATTEMPT,
    KINDS,
    MAGIC,
    FrameHeader,
    inflate,
    parse_header,
)
from trimtab.log.header import MAX_HEADER_SIZE, load_header
from trimtab.values import RunHeader

_CHUNK: Final = 1 << 18
# A damaged file costs its own size in checksums that turn out wrong. A file may spend that and this much more before
# the rest of it is left out; a candidate that is no frame counts as one page.
_SPARE_WORK: Final = 64 << 20
_CANDIDATE_WORK: Final = 4096


class Journal:
    """One journal, read as often as wanted; the first full pass remembers where the good frames are.

    Args:
        path: The file.
        run_id: Frames of other runs are left out; None takes the run of the first attempt header.
        spare_work: Bytes of failed checksums allowed beyond the file's size.
        hold: Keep the file open, so that its writer may rename or delete it meanwhile.

    Attributes:
        path: Where the file was.
        inode: Device and inode of the file: what it is, whatever its name.
        header: What the first attempt frame says of the run; known after a full pass.
        attempt_numbers: Attempts whose frames were seen.

    Raises:
        LogError: The file cannot be opened, or is none.
    """

    def __init__(
        self, path: Path, *, run_id: str | None = None, spare_work: int = _SPARE_WORK, hold: bool = True
    ) -> None:
        self.path = path
        fd = _open(path)
        status = os.fstat(fd)
        self.inode = (status.st_dev, status.st_ino)
        self.size_bytes = status.st_size
        self._fd: int | None = None
        if hold and hasattr(os, "pread"):
            self._fd = fd
            weakref.finalize(self, os.close, fd)
        else:
            os.close(fd)
        self.num_checked_bytes = 0
        self.header: RunHeader | None = None
        self.attempt_numbers: set[int] = set()
        self._run_id = run_id
        self._spare_work = spare_work
        self._index: _Index | None = None
        self._damage: list[str] = []
        self._refused: dict[int, str] = {}

    def frames(
        self, kinds: Collection[int], *, first_step: int | None = None, last_step: int | None = None
    ) -> Iterator[tuple[FrameHeader, bytes]]:
        """Good frames of these kinds with their payloads, left compressed; those wholly outside the steps are skipped.

        Raises:
            LogError: The file has gone since it was opened, and was not held.
        """
        low = -(2**63) if first_step is None else first_step
        high = 2**63 - 1 if last_step is None else last_step
        with self._reader() as file:
            if self._index is not None:
                yield from self._read_index(file, self._index, kinds, low, high)
                return
            for header, payload in self._walk(file):
                if header.kind in kinds and header.first_step <= high and header.last_step >= low:
                    yield header, payload

    def scan(self) -> None:
        """One full pass, unless there was one: afterwards `notices` and `header` are complete."""
        if self._index is None:
            for _ in self.frames(()):
                pass

    def attempts(self) -> Iterator[tuple[int, RunHeader | None]]:
        """Each attempt frame's number and what it says of the run; None where that cannot be read."""
        for header, payload in self.frames((KIND_ATTEMPT,)):
            yield header.attempt, _attempt(header, payload)[0]

    def refuse(self, header: FrameHeader, why: str) -> None:
        """Notes that a frame with right checksums does not hold together, so that it is said once."""
        self._refused[header.offset] = (
            f"{self.path.name}: the block at byte {header.offset} does not hold together ({why}); "
            f"{contents(Gap.of(header))} left out"
        )

    def notices(self) -> list[str]:
        """What was left out, in file order; complete after a full pass."""
        refused = [self._refused[offset] for offset in sorted(self._refused)]
        more = len(refused) - MAX_LINES
        rest = [f"{self.path.name}: {more} more blocks that do not hold together"] if more > 0 else []
        return [*self._damage, *refused[:MAX_LINES], *rest]

    def _reader(self) -> BinaryIO:
        """The file from its start, at a position of its own."""
        if self._fd is not None:
            return cast("BinaryIO", io.BufferedReader(_Held(self._fd), _CHUNK))
        file = os.fdopen(_open(self.path), "rb", buffering=_CHUNK)
        status = os.fstat(file.fileno())
        if (status.st_dev, status.st_ino) != self.inode:
            file.close()
            raise LogError(f"{self.path} is another file than a moment ago: the run goes on writing; read it again")
        return file

    def _read_index(
        self, file: BinaryIO, index: _Index, kinds: Collection[int], low: int, high: int
    ) -> Iterator[tuple[FrameHeader, bytes]]:
        for offset, kind, first, last in zip(index.offset, index.kind, index.first, index.last, strict=True):
            if kind not in kinds or first > high or last < low:
                continue
            header, payload = self._frame_at(file, offset)
            if header is not None and payload is not None:
                yield header, payload
            else:
                self._refused[offset] = f"{self.path.name}: changed at byte {offset} while it was read; left out"

    def _walk(self, file: BinaryIO) -> Iterator[tuple[FrameHeader, bytes]]:
        """All good frames of this run and of known kinds; sets index, damage and header when it reaches the end."""
        index, damage = _Index(), Damage(self.path.name)
        run_id, first_run, stranger = self._run_id, None, False
        for header, payload in self._good_frames(file, damage):
            if header.version > FORMAT_VERSION or header.kind not in KINDS:
                damage.newer(header)
                continue
            if header.kind == KIND_ATTEMPT:
                run, wrong = _attempt(header, payload)
                for line in wrong:
                    damage.add(line)
                if run is not None:
                    run_id = run_id or run.run_id
                    stranger = run.run_id != run_id
                    first_run = first_run or run
            if stranger:
                damage.num_of_other_runs += 1
                continue
            index.add(header)
            self.attempt_numbers.add(header.attempt)
            yield header, payload
        self._index, self._damage, self.header = index, damage.said(), first_run

    def _good_frames(self, file: BinaryIO, damage: Damage) -> Iterator[tuple[FrameHeader, bytes]]:
        """All frames with right checksums; what lies between them goes to `damage`."""
        work = self.size_bytes + self._spare_work
        position = 0
        gap: Gap | None = None
        while position < self.size_bytes:
            try:
                header, payload = self._frame_at(file, position)
            except OSError as error:
                damage.add(f"not readable from byte {position} on ({error.strerror})")
                return
            if header is not None and payload is not None:
                if gap is not None:
                    damage.close(gap, position)
                    gap = None
                position = header.end
                yield header, payload
                continue
            gap = gap or Gap(position)
            work -= _CANDIDATE_WORK
            if header is not None:
                gap.lost(header)
                work -= min(header.payload_size, self.size_bytes - position)
            if work <= 0:
                damage.too_much(gap.start, self.size_bytes)
                return
            position = _next_magic(file, position + 1, self.size_bytes)
        if gap is not None:
            damage.close_at_end(gap, self.size_bytes, zeros=_only_zeros(file, gap.start, self.size_bytes))

    def _frame_at(self, file: BinaryIO, position: int) -> tuple[FrameHeader | None, bytes | None]:
        """Header and payload at this offset: no header, a header whose payload is missing or wrong, or both."""
        if file.tell() != position:
            file.seek(position)
        header = parse_header(file.read(HEADER_SIZE), position)
        if header is None or header.end > self.size_bytes:
            return header, None
        payload = file.read(header.payload_size)
        self.num_checked_bytes += len(payload)
        return header, payload if zlib.crc32(payload) == header.payload_crc else None


def highest_attempt(path: Path) -> int:
    """Highest attempt in a journal, by its frame headers: payloads are hopped over, but for the last. 0 if none."""
    highest, position, look_from = 0, 0, 0
    with os.fdopen(_open(path), "rb", buffering=_CHUNK) as file:
        size = os.fstat(file.fileno()).st_size
        work = size + _SPARE_WORK
        while position < size and work > 0:
            file.seek(position)
            header = parse_header(file.read(HEADER_SIZE), position)
            if header is not None:
                highest = max(highest, header.attempt)
                look_from, position = position + HEADER_SIZE, header.end
                if position < size or _is_whole(file, header):
                    continue
            # A frame that was cut off hides those behind it: look again from its header on.
            position = _next_magic(file, look_from, size)
            look_from = position + 1
            work -= _CANDIDATE_WORK
    return highest


def first_header(path: Path) -> RunHeader | None:
    """What the first attempt frame of a journal says of its run; None if none can be read."""
    return next((run for _, run in Journal(path).attempts() if run is not None), None)


class _Held(io.RawIOBase):
    """A file that is open already, read at a position of its own and not closed with this."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        assert whence == os.SEEK_SET or (whence == os.SEEK_CUR and offset == 0)
        self._position = offset if whence == os.SEEK_SET else self._position
        return self._position

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        data = os.pread(self._fd, len(buffer), self._position)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Index:
    """Where the good frames are: 25 bytes a frame, because a run of days has millions."""

    def __init__(self) -> None:
        self.offset = array("q")
        self.kind = array("B")
        self.first = array("q")
        self.last = array("q")

    def add(self, header: FrameHeader) -> None:
        self.offset.append(header.offset)
        self.kind.append(header.kind)
        self.first.append(header.first_step)
        self.last.append(header.last_step)


def _is_whole(file: BinaryIO, header: FrameHeader) -> bool:
    """Whether the payload behind the header, which was just read, is all there and right."""
    payload = file.read(header.payload_size)
    return len(payload) == header.payload_size and zlib.crc32(payload) == header.payload_crc


def _attempt(header: FrameHeader, payload: bytes) -> tuple[RunHeader | None, list[str]]:
    where = f"the attempt header at byte {header.offset}"
    raw = inflate(header, payload) if header.raw_size <= MAX_HEADER_SIZE else None
    if raw is None:
        return None, [f"{where} does not hold together; left out"]
    try:
        return load_header(raw, where=where)
    except LogError as error:
        return None, [f"{error}; left out"]


def _next_magic(file: BinaryIO, position: int, size: int) -> int:
    """Offset of the first magic at or after `position`; `size` if there is none."""
    file.seek(position)
    tail = b""
    while position < size:
        chunk = file.read(min(_CHUNK, size - position))
        if not chunk:
            break
        found = (tail + chunk).find(MAGIC)
        if found >= 0:
            return position - len(tail) + found
        position += len(chunk)
        tail = (tail + chunk)[-(len(MAGIC) - 1) :]
    return size


def _only_zeros(file: BinaryIO, position: int, size: int) -> bool:
    file.seek(position)
    while position < size:
        chunk = file.read(min(_CHUNK, size - position))
        if not chunk or chunk.count(0) != len(chunk):
            return False
        position += len(chunk)
    return True


def _open(path: Path) -> int:
    """A descriptor of the file. A pipe under its name is refused, and not waited for."""
    try:
        fd = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        raise LogError(
            f"{path} cannot be read: {error.strerror}; name a run folder or a journal that exists"
        ) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise LogError(f"{path} is no file; name a run folder or a journal that exists")
    return fd
