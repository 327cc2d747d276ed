"""A `RunHeader` as strict JSON, and back from whatever stands in a file.

Enters: a header, or bytes that claim to be one. Leaves: bytes, or a header and what was wrong with its fields.
Invariant: a newer version is refused by name; anything else that is wrong costs its field, and is said.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final

from trimtab.dataset.table_files import MAX_NAME_CHARS, MAX_NAMES
from trimtab.errors import LogError, UsageError
from trimtab.strict_json import loads
from trimtab.values import RUN_ID, RunHeader

HEADER_VERSION: Final = 1
MAX_HEADER_SIZE: Final = 1 << 20

_MAX_NUMBER: Final = 2**53
_DEFAULTS: Final = RunHeader(run_id=None, backend="unknown")


def dump_header(header: RunHeader) -> bytes:
    """Strict JSON in ASCII, with `"version": 1`. UsageError if a field is not of its type, or the whole too long."""
    document: dict[str, Any] = {"version": HEADER_VERSION, **asdict(header)}
    for name, fits in _FITS.items():
        if not fits(document[name]):
            raise UsageError(f"the run header's {name} is {document[name]!r}, which a log cannot hold")
    data = json.dumps(document, indent=2, allow_nan=False).encode("ascii")
    if len(data) > MAX_HEADER_SIZE:
        raise UsageError(f"the run header is {len(data)} bytes as JSON, and a log holds at most {MAX_HEADER_SIZE}")
    return data


def load_header(data: bytes, *, where: str) -> tuple[RunHeader | None, list[str]]:
    """The header in `data`, and a line for each thing wrong with it; None if there is no header in it at all.

    Raises:
        LogError: It was written by a newer version.
    """
    if len(data) > MAX_HEADER_SIZE:
        return None, [f"{where}: more than {MAX_HEADER_SIZE} bytes, which is no run header; left out"]
    try:
        document = loads(data)
    except ValueError:
        return None, [f"{where}: no JSON; left out"]
    if not isinstance(document, dict):
        return None, [f"{where}: no JSON object; left out"]
    version = document.get("version")
    if type(version) is int and version > HEADER_VERSION:
        raise LogError(
            f"{where}: format version {version} was found, versions up to {HEADER_VERSION} are read; upgrade trimtab"
        )
    wrong = (
        []
        if type(version) is int and version == HEADER_VERSION
        else [f"{where}: no version; read as version {HEADER_VERSION}"]
    )
    fields: dict[str, Any] = {}
    for name, default in asdict(_DEFAULTS).items():
        fields[name] = value = document.get(name, default)
        if isinstance(value, list):
            fields[name] = tuple(value)
        if not _FITS[name](value):
            fields[name] = default
            wrong.append(f"{where}: {name} is not what it should be; {default!r} is taken")
    return RunHeader(**fields), wrong


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_optional_text(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_names(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) <= MAX_NAMES
        and all(isinstance(name, str) and len(name) <= MAX_NAME_CHARS for name in value)
    )


def _is_optional_count(value: object) -> bool:
    return value is None or _is_count(value)


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_NUMBER


def _is_positive(value: object) -> bool:
    return type(value) is int and 1 <= value <= _MAX_NUMBER


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= _MAX_NUMBER  # type: ignore[arg-type]


def _is_run_id(value: object) -> bool:
    # A run id is a folder's name: one that climbs or hides is never passed on.
    return value is None or (isinstance(value, str) and RUN_ID.match(value) is not None)


_FITS: Final = {
    "run_id": _is_run_id,
    "backend": _is_text,
    "task": _is_optional_text,
    "world_size": _is_positive,
    "num_rows": _is_optional_count,
    "batch_size": _is_optional_count,
    "accumulation": _is_positive,
    "dataset_fingerprint": _is_optional_text,
    "row_index": _is_text,
    "created": _is_time,
    "out": _is_optional_text,
    "experiment": _is_optional_text,
    "trimtab_version": _is_text,
    "dataset_files": _is_names,
    "dataset_index_files": _is_names,
    "dataset_columns": _is_names,
}
