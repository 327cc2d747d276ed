"""Whether a checkpoint is what was saved, byte for byte; and, where nobody wrote down what that was, as much as shows.

    sizes of all files -> checksum of each, in the order of the manifest

Enters: a path. Leaves: a `VerifyReport`, or the problems one by one. Invariants: every size is looked at before a byte
is read, and nothing outside the checkpoint is read at all, whatever links lead there; no pickle is opened.
"""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from trimtab.errors import CheckpointError
from trimtab.resume.checksum import demand_plain_file, read_checksum
from trimtab.resume.foreign import Inspected, inspect_file, inspect_hf
from trimtab.resume.foreign.hf import STATE_NAME
from trimtab.resume.info import VerifyReport
from trimtab.resume.manifest import MANIFEST_NAME, FileEntry, Manifest, read_manifest
from trimtab.resume.names import CheckpointName, checkpoint_name
from trimtab.resume.parts import in_order, listed, missing_parts
from trimtab.text import plain

MAX_NAMED: Final = 10
"""Files named that are there and not in the manifest."""

STRUCTURE_ONLY: Final = (
    "no manifest of Trimtab: lengths and layout are checked, a changed byte in a weight may not show, and health is "
    "not known"
)
"""What the weaker promise is."""

Progress = Callable[[int], None]
"""Called now and then with how many more bytes were read."""


def verify(path: str | os.PathLike[str], *, progress: Progress | None = None) -> VerifyReport:
    """Reads all of one checkpoint and says what is wrong with it.

    Args:
        path: A folder with a manifest, a checkpoint folder of the Trainer, or a file.
        progress: Called now and then with how many more bytes were read.

    Returns:
        What was found; `ok` if every promise holds.

    Raises:
        CheckpointError: There is nothing at this path.

    Example:
        report = verify("runs/step_9000")
        print(report.ok, *report.problems)
    """
    place = Path(path)
    if not os.path.lexists(place):
        raise CheckpointError(
            f"{plain(str(place))}: nothing is there, expected a checkpoint. `trimtab ckpt ls FOLDER` lists those in a "
            "folder"
        )
    if not has_manifest(place):
        return _of_foreign(place, inspect(place, progress=progress))
    try:
        manifest = read_manifest(place)
    except CheckpointError as error:
        name = named(place)
        return VerifyReport(path=place, step=None if name is None else name.step, ok=False, problems=(str(error),))
    problems = tuple(find_problems(place, manifest, progress=progress))
    return VerifyReport(
        path=place,
        step=manifest.step,
        ok=not problems,
        problems=problems,
        notes=_unlisted(place, manifest),
        healthy=manifest.healthy,
        parts=in_order(name for name, files in manifest.parts.items() if files),
        missing=missing_parts(manifest.parts),
        num_files=len(manifest.files),
        size_bytes=sum(entry.size_bytes for entry in manifest.files),
    )


def named(path: Path) -> CheckpointName | None:
    """What the name of a path says, and what stands there; None where that is no checkpoint's."""
    return checkpoint_name(path, kind="folder" if path.is_dir() else "file")


def has_manifest(path: Path) -> bool:
    """Whether anything is where a manifest should be."""
    return os.path.lexists(path / MANIFEST_NAME)


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


def other_step(name: CheckpointName, step: int) -> str:
    """What is wrong with a checkpoint that was saved after another step than its name says."""
    return (
        f"called {plain(name.path.name)} and saved after step {step}: it was copied or renamed. Give it back the name "
        "that its step has"
    )


def inspect(path: Path, *, progress: Progress | None = None) -> Inspected:
    """What shows of a checkpoint without a manifest."""
    name = named(path)
    if not path.is_dir():
        return inspect_file(path, progress=progress)
    # Whatever the folder is called, a Trainer saved into it; but none calls it as we do.
    if name.form == "hf" if name is not None else os.path.lexists(path / STATE_NAME):
        return inspect_hf(path, progress=progress)
    return Inspected(parts=(), problems=(no_manifest(path),))


def no_manifest(folder: Path) -> str:
    """What is wrong with a folder that has no manifest: one is written last, so nobody ever said that it is whole."""
    try:
        with os.scandir(folder) as entries:
            there = sorted(entry.name for entry in entries)
    except OSError as error:
        return f"cannot be listed ({error.strerror})"
    held = plain(", ".join(there[:MAX_NAMED])) + (f" and {len(there) - MAX_NAMED} more" if there[MAX_NAMED:] else "")
    return f"no {MANIFEST_NAME}, which a save writes last; it holds {held or 'nothing'}"


def _compare_sizes(folder: Path, manifest: Manifest) -> tuple[list[FileEntry], list[str]]:
    """Files that are there with the size that they should have, and what is wrong with the others."""
    problems = []
    name = named(folder)
    if name is not None and name.step != manifest.step:
        problems.append(other_step(name, manifest.step))
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


def _unlisted(folder: Path, manifest: Manifest) -> tuple[str, ...]:
    """A note on files that are there and were not saved: nobody reads them, so they are no damage."""
    known = {entry.path for entry in manifest.files} | {MANIFEST_NAME}
    found = []
    for place, _, files in os.walk(folder):
        within = Path(place).relative_to(folder)
        found += [path for path in ((within / file).as_posix() for file in files) if path not in known]
    if not found:
        return ()
    more = f" and {len(found) - MAX_NAMED} more" if found[MAX_NAMED:] else ""
    are = "is not part of it" if len(found) == 1 else "are not part of it"
    return (f"{plain(', '.join(sorted(found)[:MAX_NAMED]))}{more} {are}: there, and not in its manifest",)


def _of_foreign(path: Path, found: Inspected) -> VerifyReport:
    name = named(path)
    return VerifyReport(
        path=path,
        step=name.step if name is not None else found.step,
        ok=not found.problems,
        problems=found.problems,
        notes=(STRUCTURE_ONLY, *found.notes),
        promise="structure",
        parts=found.parts,
        missing=found.missing,
        num_files=found.num_files,
        size_bytes=found.size_bytes,
    )
