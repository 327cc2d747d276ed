"""Whether the files of a checkpoint are what its manifest says.

    sizes of all files -> checksum of each, in the order of the manifest

Enters: a folder, and its manifest. Leaves: the problems one by one. Invariants: every size is looked at before a byte
is read, and nothing outside the checkpoint is read at all, whatever links lead there; no pickle is opened.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from trimtab.resume.checksum import Progress, demand_plain_file, read_checksum
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, Manifest
from trimtab.resume.parts import in_order
from trimtab.text import listed, plain

MAX_NAMED: Final = 10
"""Files named that are there and not in the manifest."""


def find_problems(folder: Path, manifest: Manifest, *, progress: Progress | None = None) -> Iterator[str]:
    """What is wrong with a checkpoint, a sentence each; whoever takes the first one alone reads no further.

    Args:
        folder: The checkpoint.
        manifest: What its files should be.
        progress: Called now and then with how many more bytes were read.
    """
    whole, problems = _compare_sizes(folder, manifest)
    yield from problems
    for entry in whole:
        problem = _compare_content(folder, entry, progress)
        if problem is not None:
            yield problem


def find_size_problems(folder: Path, manifest: Manifest) -> list[str]:
    """What shows without reading a byte of payload, a sentence each."""
    return _compare_sizes(folder, manifest)[1]


def _compare_sizes(folder: Path, manifest: Manifest) -> tuple[list[FileEntry], list[str]]:
    """Files that are there with the size that they should have, and what is wrong with the others."""
    problems: list[str] = []
    inside = os.path.realpath(folder)
    folders: dict[str, str] = {}
    whole, gone = [], []
    for entry in manifest.files:
        try:
            size_bytes = _size_of(entry, inside=inside, folders=folders)
        except (FileNotFoundError, NotADirectoryError):
            gone.append(entry.path)
        except OSError as error:
            problems.append(f"{plain(entry.path)} {error.strerror}")
        else:
            if size_bytes == entry.size_bytes:
                whole.append(entry)
            else:
                problems.append(f"{plain(entry.path)} {_wrong_size(size_bytes, entry.size_bytes)}")
    if len(gone) == len(manifest.files) > 1:
        return [], [*problems, f"{MANIFEST_NAME} is there alone: all {len(gone)} files that it lists are missing"]
    return whole, problems + _missing(gone, manifest)


def _size_of(entry: FileEntry, *, inside: str, folders: dict[str, str]) -> int:
    """The size of a file of a checkpoint, in bytes.

    Args:
        entry: The file.
        inside: The checkpoint's folder, past all links.
        folders: Folders of the checkpoint, each past all links; those not yet known are added. Thousands of files are
            in a few of them, and finding that out costs ten times what looking at a file does.

    Raises:
        OSError: It is not there, not one, or not in the checkpoint; `strerror` is the end of a sentence.
    """
    folder, _, name = entry.path.rpartition("/")
    if folder not in folders:
        folders[folder] = os.path.realpath(os.path.join(inside, folder))  # noqa: PTH118 - text, as realpath gives it
    path = os.path.join(folders[folder], name)  # noqa: PTH118 - likewise
    if os.path.islink(path):  # noqa: PTH114 - likewise
        path = os.path.realpath(path)
    if not path.startswith(os.path.join(inside, "")):  # noqa: PTH118 - likewise
        raise OSError(errno.ELOOP, f"is a link that leads out of the checkpoint, to {plain(path)}; it was not read")
    try:
        return demand_plain_file(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        raise
    except OSError as error:
        why = error.strerror if error.errno == errno.EINVAL else f"cannot be read ({error.strerror})"
        raise OSError(error.errno, why) from error


def _wrong_size(found: int, expected: int) -> str:
    if not found:
        return f"is empty; it had {expected:,} bytes"
    if found < expected:
        return f"is truncated: {found:,} of its {expected:,} bytes are there"
    return f"is longer than it was: {found:,} bytes, {expected:,} were saved"


def _missing(gone: Sequence[str], manifest: Manifest) -> list[str]:
    """One sentence for all files that are missing of the same parts: a shard says which whole it was of."""
    of_parts: dict[tuple[str, ...], list[str]] = defaultdict(list)
    holders: dict[str, list[str]] = defaultdict(list)
    for name in in_order(manifest.parts):
        for path in manifest.parts[name]:
            holders[path].append(name)
    for path in gone:
        of_parts[tuple(holders[path])].append(path)
    sentences = []
    for names, paths in of_parts.items():
        num_files = sum(tuple(holders[entry.path]) == names for entry in manifest.files)
        first, which = plain(paths[0]), f"hold {plain(listed(names))}" if names else "hold no part"
        if num_files == 1:
            sentences.append(f"{first} is missing" + (f", which holds {plain(listed(names))}" if names else ""))
        elif len(paths) == 1:
            sentences.append(f"{first} is missing, one of the {num_files} files that {which}")
        elif len(paths) < num_files:
            sentences.append(f"{first} and {len(paths) - 1} more of the {num_files} files that {which} are missing")
        else:
            sentences.append(f"all {num_files} files that {which} are missing")
    return sentences


def _compare_content(folder: Path, entry: FileEntry, progress: Progress | None) -> str | None:
    try:
        size_bytes, crc32 = read_checksum(folder / entry.path, progress=progress)
    except OSError as error:
        return f"{plain(entry.path)} cannot be read ({error.strerror})"
    if size_bytes != entry.size_bytes:
        return f"{plain(entry.path)} {_wrong_size(size_bytes, entry.size_bytes)}"
    if crc32 != entry.crc32:
        return f"{plain(entry.path)} is not what was saved: found the checksum {crc32:08x}, expected {entry.crc32:08x}"
    return None


def unlisted(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """A note on files that are there and were not saved: nobody reads them, so they are no damage."""
    known = {entry.path for entry in manifest.files} | {MANIFEST_NAME}
    found = []
    for place, _, files in os.walk(folder):
        within = Path(place).relative_to(folder)
        found += [path for path in ((within / file).as_posix() for file in files) if path not in known]
    if not found:
        return ()
    are = "is not part of it" if len(found) == 1 else "are not part of it"
    names = listed(map(plain, sorted(found)), most=MAX_NAMED)
    return (f"{names} {are}: there, and not in its manifest",)
