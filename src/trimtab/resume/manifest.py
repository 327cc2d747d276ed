"""The manifest of a checkpoint: what it holds, how large each file is, and the checksum of each.

Enters: what a saver knows; or the bytes of a `trimtab_manifest.json`, which may have been through other people's hands.
Leaves: a `Manifest`, or a `CheckpointError` that says what is wrong with the file. Invariants: the manifest is written
last, and is under a checksum of its own; a path in it never leads out of the checkpoint.

    {"manifest": {"version": 1, ...}, "crc32": ...}      the checksum is that of the manifest's canonical spelling, so
                                                         that any changed byte is noticed or changes nothing
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, get_args

from trimtab.errors import CheckpointError, UsageError
from trimtab.resume.checksum import demand_plain_file
from trimtab.resume.fields import BadFieldError, count, entries, items, number, refuse, shown, texts
from trimtab.strict_json import loads
from trimtab.text import plain
from trimtab.values import RUN_ID, json_number

MANIFEST_NAME: Final = "trimtab_manifest.json"

MANIFEST_VERSION: Final = 1

MAX_SIZE_BYTES: Final = 16 << 20
"""A file takes about 100 bytes of it: 160,000 files, as 10,000 ranks with 16 each have. Whoever sends a larger one
wants the memory that reading it takes, some twenty times as much."""

MAX_PATH_LENGTH: Final = 1024
"""Characters of a file's path in a checkpoint; no system opens much longer ones."""

Saver = Literal["trimtab", "transformers"]
"""Who wrote the files of a checkpoint: `Checkpointer`, or the Trainer that `trimtab.attach` watches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """One file of a checkpoint.

    Attributes:
        path: Relative to the checkpoint's folder, with "/" between its parts.
        size_bytes: Its size.
        crc32: `zlib.crc32` of its content.
    """

    path: str
    size_bytes: int
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedFrom:
    """The load that a saver went on from: where a run was taken back, and what stood in the folder by then.

    Attributes:
        step: The step of the checkpoint that was loaded.
        serial: The highest serial in the folder of the saver at that load; 0 in one without checkpoints.
    """

    step: int
    serial: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint says of itself.

    Attributes:
        saver: Who wrote the files.
        step: Optimizer step after which it was saved.
        run_id: The run that saved it; None where nobody named it.
        serial: The place of this save among all in its folder, from 1: a clock that does not jump. The run with the
            highest one is the folder's newest, whatever the clocks of the machines said.
        resumed_from: The last load before this save; None where the saver loaded none. Of the run's checkpoints those
            that were saved before that load and have a higher step were left behind (`trimtab.resume.lineage`).
        parts: What this run has, by name (`trimtab.resume.parts`), and the files that hold it.
        files: Every file of the checkpoint but the manifest itself.
        world_size: Ranks that saved it.
        healthy: Whether no weight or moment is non-finite that was finite when the run began, and nothing that watches
            the run called it broken.
        unhealthy_because: Why it is not, a sentence each; none where it is.
        unhealthy_since: Last step at which all of that was known to be well, so that what was saved since may have it
            too; None where nobody knows, and where it is healthy.
        loss: The loss that the saver logged; None where there is none.
        lr: Learning rate of each parameter group; none where no optimizer was saved.
        saved_at: Seconds since the epoch, for people: nothing is decided by it.
        versions: Name of a package and its version, of those that saved it.
        facts: Further JSON-ready facts of the saver's own.
    """

    saver: Saver
    step: int
    run_id: str | None
    serial: int
    parts: Mapping[str, tuple[str, ...]]
    files: tuple[FileEntry, ...]
    resumed_from: ResumedFrom | None = None
    world_size: int = 1
    healthy: bool = True
    unhealthy_because: tuple[str, ...] = ()
    unhealthy_since: int | None = None
    loss: float | None = None
    lr: tuple[float, ...] = ()
    saved_at: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)


def read_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """The manifest of a checkpoint.

    Raises:
        CheckpointError: There is none, or what stands there is none, of a newer version or damaged; names the file.
    """
    return read_with_checksum(folder)[0]


def manifest_checksum(folder: str | os.PathLike[str]) -> int:
    """The checksum that a manifest is under: two saves have two, for a manifest holds the checksum of every file.

    Raises:
        CheckpointError: As `read_manifest`.
    """
    return read_with_checksum(folder)[1]


def read_with_checksum(folder: str | os.PathLike[str]) -> tuple[Manifest, int]:
    """The manifest of a checkpoint, and the checksum that this very one is under.

    Raises:
        CheckpointError: As `read_manifest`.
    """
    path = Path(folder) / MANIFEST_NAME
    data = _read(path)
    try:
        document = _checked_document(data)
        return _manifest(document), zlib.crc32(_canonical(document))
    except BadFieldError as error:
        raise CheckpointError(f"{plain(str(path))}: found {error}") from error


def has_manifest(path: Path) -> bool:
    """Whether anything is where a manifest should be."""
    return os.path.lexists(path / MANIFEST_NAME)


def load_manifest(data: bytes, *, where: str) -> Manifest:
    """The manifest in the bytes of a file.

    Args:
        data: What stands in it.
        where: Its name, as an error shows it.

    Raises:
        CheckpointError: It is none, of a newer version or damaged.
    """
    try:
        return _manifest(_checked_document(data))
    except BadFieldError as error:
        raise CheckpointError(f"{where}: found {error}") from error


def dump_manifest(manifest: Manifest) -> bytes:
    """The bytes of `trimtab_manifest.json`, in ASCII.

    Raises:
        UsageError: A field is not what a reader takes, or the whole is too long.
    """
    document = {**asdict(manifest), "version": MANIFEST_VERSION}
    document["loss"] = json_number(manifest.loss)
    document["lr"] = [json_number(rate) for rate in manifest.lr]
    try:
        spelled = _canonical(document)
        data = b'{"manifest": %s, "crc32": %d}\n' % (spelled, zlib.crc32(spelled))
        _manifest(_checked_document(data))
    except (BadFieldError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"the manifest of step {manifest.step} cannot be written: {error}") from error
    return data


def _read(path: Path) -> bytes:
    try:
        size_bytes = demand_plain_file(path)
        with path.open("rb", buffering=0) as file:
            # One byte more than there should be: a file that is longer is refused, and not read.
            return file.read(min(size_bytes, MAX_SIZE_BYTES) + 1)
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise CheckpointError(f"{plain(str(path))}: {plain(why)}, expected the manifest of a checkpoint") from error


def _canonical(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _checked_document(data: bytes) -> dict[str, Any]:
    """What is under the checksum, if it holds, and if this version can read it."""
    if len(data) > MAX_SIZE_BYTES:
        refuse(f"more than {MAX_SIZE_BYTES} bytes", "a manifest, which is shorter")
    try:
        outer = loads(data)
    except ValueError:
        refuse("no JSON" if data.strip(b" \n") else "an empty file", "a whole manifest")
    if not isinstance(outer, dict) or not isinstance(outer.get("manifest"), dict):
        refuse("JSON without a manifest in it", 'an object {"manifest": {...}, "crc32": ...}')
    document: dict[str, Any] = outer["manifest"]
    try:
        crc32 = zlib.crc32(_canonical(document))
    except (ValueError, RecursionError):
        refuse("JSON that nests too deep, or holds too large a number", "a manifest")
    if type(outer.get("crc32")) is not int or outer["crc32"] != crc32:
        refuse(f"the checksum {shown(outer.get('crc32'))}", f"{crc32}, that of what stands there: it was changed")
    version = document.get("version")
    if type(version) is int and version > MANIFEST_VERSION:
        refuse(f"format version {shown(version)}", f"a version up to {MANIFEST_VERSION}; upgrade trimtab")
    if type(version) is not int or version < 1:
        refuse(f"version {shown(version)}", "a number from 1")
    return document


def _manifest(document: Mapping[str, Any]) -> Manifest:
    """The fields that this version knows; those of a later one are left alone."""
    saver = _field(document, "saver")
    if saver not in get_args(Saver):
        refuse(f"saver {shown(saver)}", f"one of {', '.join(get_args(Saver))}")
    run_id = _field(document, "run_id")
    if run_id is not None and not (isinstance(run_id, str) and RUN_ID.match(run_id)):
        refuse(f"run_id {shown(run_id)}", "the id of a run")
    healthy = _field(document, "healthy")
    if not isinstance(healthy, bool):
        refuse(f"healthy {shown(healthy)}", "true or false")
    files = _files(_field(document, "files"))
    loss, since = document.get("loss"), document.get("unhealthy_since")
    return Manifest(
        saver=saver,
        step=count(_field(document, "step"), "step"),
        run_id=run_id,
        serial=count(_field(document, "serial"), "serial", least=1),
        parts=_parts(_field(document, "parts"), known={entry.path for entry in files}),
        files=files,
        resumed_from=_resumed_from(document.get("resumed_from")),
        world_size=count(document.get("world_size", 1), "world_size", least=1),
        healthy=healthy,
        unhealthy_because=texts(document.get("unhealthy_because", []), "unhealthy_because"),
        unhealthy_since=None if since is None else count(since, "unhealthy_since"),
        loss=None if loss is None else number(loss, "loss"),
        lr=tuple(number(rate, "lr") for rate in items(document.get("lr", []), "lr")),
        saved_at=number(document.get("saved_at", 0.0), "saved_at"),
        versions=_versions(document.get("versions", {})),
        facts=entries(document.get("facts", {}), "facts"),
    )


def _resumed_from(found: object) -> ResumedFrom | None:
    if found is None:
        return None
    load = entries(found, "resumed_from")
    return ResumedFrom(
        step=count(load.get("step"), "resumed_from step"), serial=count(load.get("serial"), "resumed_from serial")
    )


def _files(found: object) -> tuple[FileEntry, ...]:
    files = []
    for item in items(found, "files"):
        entry = entries(item, "file")
        path = _path(entry.get("path"))
        size_bytes = count(entry.get("size_bytes"), "size_bytes")
        crc32 = count(entry.get("crc32"), "crc32", most=0xFFFFFFFF)
        files.append(FileEntry(path=path, size_bytes=size_bytes, crc32=crc32))
    if len({entry.path for entry in files}) < len(files):
        refuse("the same file twice", "each once")
    return tuple(files)


# Backslashes and a letter with a colon lead out on Windows; a control character would act on a terminal.
_PATH: Final = re.compile(r"(?![A-Za-z]:)[^/\\\x00-\x1f\x7f-\x9f]+(?:/[^/\\\x00-\x1f\x7f-\x9f]+)*\Z")


def _path(found: object) -> str:
    expected = "a path within the checkpoint, as dir/file"
    if not isinstance(found, str) or len(found) > MAX_PATH_LENGTH or not _PATH.match(found):
        refuse(f"the file {shown(found)}", expected)
    if not {".", ".."}.isdisjoint(found.split("/")):
        refuse(f"the file {shown(found)}, which climbs", expected)
    if found.casefold() == MANIFEST_NAME:
        refuse(f"the file {found}, which is the manifest itself", "the others")
    try:
        os.fsencode(found)
    except ValueError:
        refuse(f"the file {shown(found)}, which no file can be called", expected)
    return found


def _parts(found: object, *, known: set[str]) -> dict[str, tuple[str, ...]]:
    parts = {}
    for name, files in entries(found, "parts").items():
        parts[name] = texts(files, "parts")
        unknown = next((path for path in parts[name] if path not in known), None)
        if unknown is not None:
            refuse(f"the part {shown(name)} in {shown(unknown)}", "one of the files that it lists")
    return parts


def _versions(found: object) -> dict[str, str]:
    versions = entries(found, "versions")
    texts(list(versions.values()), "versions")
    return versions


def _field(document: Mapping[str, Any], name: str) -> Any:
    if name not in document:
        refuse(f"no {name}", "one")
    return document[name]
