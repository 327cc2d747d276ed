"""How much memory of the host this process may still take.

Enters: the system's own files. Leaves: a number of bytes, or None where nothing tells it. Invariant: of all limits that
hold (the machine's, and every control group's that the process is in) the tightest counts; memory that a limit counts
and the kernel gives back by itself (the page cache) is available.

Linux: `MemAvailable` of /proc/meminfo, and the memory controller of control groups, version 2 and 1, as a container or
a batch system sets it. Elsewhere None. Standard library only.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from trimtab.watched import Vitals

__all__ = ["available_bytes"]

# What version 1 shows as the limit where there is none: the largest number of pages, a little under 2^63.
_NO_LIMIT: Final = 1 << 62


class _Controller(NamedTuple):
    """What the files of a memory controller are called."""

    limit: str
    usage: str
    inactive: str


_VERSION_2: Final = _Controller("memory.max", "memory.current", "inactive_file")
_VERSION_1: Final = _Controller("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def look(needed_bytes: int | None = None, *, step: int = 0, root: Path = Path("/")) -> Vitals:
    """A look at the host's memory: at launch, and before a save takes some of it.

    Args:
        needed_bytes: What is about to be taken; None: nothing in particular.
        step: Optimizer step (1-based) that has just ended; 0 at launch.
        root: Where the system's files are.

    Returns:
        Vitals with the memory alone.
    """
    return Vitals(step=step, host_available_bytes=available_bytes(root=root), host_needed_bytes=needed_bytes)


def available_bytes(*, root: Path = Path("/")) -> int | None:
    """Memory that this process may still take; None where nothing tells it. Reads some small files, and never raises.

    Args:
        root: Where the system's files are.
    """
    found = [left for left in (_of_machine(root), *_of_groups(root)) if left is not None]
    return max(0, min(found)) if found else None


def _of_machine(root: Path) -> int | None:
    kilobytes = _entry(root / "proc/meminfo", "MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _of_groups(root: Path) -> Iterator[int | None]:
    """What is left under the limit of every group from the process's own up to the top."""
    mounted = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        # "0::/path" is version 2, "4:memory:/path" version 1; a path may itself hold colons.
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            yield from (_left(group, _VERSION_2) for group in _upwards(mounted, path))
        elif "memory" in controllers.split(","):
            yield from (_left(group, _VERSION_1) for group in _upwards(mounted / "memory", path))


def _upwards(top: Path, path: str) -> Iterator[Path]:
    # Seen from inside of a container the path may be the host's, which is not there; the top is then the container's.
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    for length in range(len(parts), -1, -1):
        yield top.joinpath(*parts[:length])


def _left(group: Path, files: _Controller) -> int | None:
    limit = _number(_text(group / files.limit))
    if limit is None or limit >= _NO_LIMIT:  # most groups have none, and are looked at no further
        return None
    used = _number(_text(group / files.usage))
    return None if used is None else limit - used + (_entry(group / "memory.stat", files.inactive) or 0)


def _entry(path: Path, name: str) -> int | None:
    """The number that stands behind a name, in a file of names and numbers."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name:
            return _number(words[1])
    return None


def _number(text: str) -> int | None:
    digits = text.strip()
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 20 else None  # "max": no limit


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8", "replace")
    except (OSError, ValueError):  # not there, not ours to read, or a name with a zero in it
        return ""
