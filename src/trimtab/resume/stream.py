"""`Stream`: a file of a checkpoint while it is written, and its checksum on the way.

Enters: bytes, in pieces of any size. Leaves: the same bytes in the file, their number and their crc32. Invariants:
nothing is copied or held back; a disk that failed once is not written to again.
"""

from __future__ import annotations

import errno
import zlib
from typing import Final

from trimtab.resume.disk_changes import Disk

_CHUNK_BYTES: Final = 1 << 20
"""What is added to the checksum and then written: the second finds it where the first left it, in the cache."""


class Stream:
    """A file of a draft while it is written: what `torch.save(obj, stream)` asks for, and its size and checksum.

    Attributes:
        size_bytes: Bytes written so far.
        crc32: `zlib.crc32` of them.
        failure: What the disk said, once a write failed.
    """

    def __init__(self, fd: int, *, disk: Disk) -> None:
        self._fd = fd
        self._disk = disk
        self.size_bytes = 0
        self.crc32 = 0
        self.failure: OSError | None = None

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Writes all of it, without a copy.

        Returns:
            How many bytes that were.

        Raises:
            OSError: The disk is full or failed; each further write raises the same.
        """
        if self.failure is not None:
            raise self.failure
        left = memoryview(data).cast("B")
        size_bytes = len(left)
        try:
            while left:
                chunk = left[:_CHUNK_BYTES]
                self.crc32 = zlib.crc32(chunk, self.crc32)
                self._write_all(chunk)
                left = left[len(chunk) :]
        except OSError as error:
            self.failure = error
            raise
        self.size_bytes += size_bytes
        return size_bytes

    def flush(self) -> None:
        """Nothing is held back."""

    def _write_all(self, chunk: memoryview) -> None:
        while chunk:
            num_written = self._disk.write(self._fd, chunk)
            if num_written == 0:
                raise OSError(errno.EIO, "the disk takes no more bytes and gives no reason")
            chunk = chunk[num_written:]
