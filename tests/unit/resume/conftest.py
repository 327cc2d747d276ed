"""Checkpoints on the disk, written as the format is described and not as the code writes it."""

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

FILES = {"model.pt": b"m" * 300, "optimizer.pt": b"o" * 500, "run.pt": b"r" * 40, "rank_0.pt": b"g" * 60}
PARTS = {"model": ["model.pt"], "optimizer": ["optimizer.pt"], "step": ["run.pt"], "rng": ["rank_0.pt"]}


def spelled(manifest: Mapping[str, Any]) -> bytes:
    canonical = json.dumps(manifest, sort_keys=True, separators=(",", ":")).encode()
    return b'{"manifest": ' + canonical + b', "crc32": ' + str(zlib.crc32(canonical)).encode() + b"}\n"


def described(step: int, files: Mapping[str, bytes], /, **fields: object) -> dict[str, Any]:
    return {
        "version": 1,
        "saver": "trimtab",
        "step": step,
        "run_id": "run-a",
        "serial": step + 1,
        "healthy": True,
        "parts": {name: paths for name, paths in PARTS.items() if set(paths) <= files.keys()},
        "files": [
            {"path": path, "size_bytes": len(content), "crc32": zlib.crc32(content)} for path, content in files.items()
        ],
        **fields,
    }


@pytest.fixture
def spell() -> Callable[[Mapping[str, Any]], bytes]:
    """The bytes of a manifest file, whatever stands in it."""
    return spelled


@pytest.fixture
def describe() -> Callable[..., dict[str, Any]]:
    """What a manifest says of files: `describe(step, files, **fields)`."""
    return described


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Writes a checkpoint: `save(step, name=..., folder=..., files=..., **fields of the manifest)`."""

    def write(
        step: int,
        *,
        name: str | None = None,
        folder: Path = tmp_path,
        files: Mapping[str, bytes] = FILES,
        **fields: object,
    ) -> Path:
        path = folder / (name or f"step_{step}")
        path.mkdir(parents=True)
        for relative, content in files.items():
            (path / relative).parent.mkdir(parents=True, exist_ok=True)
            (path / relative).write_bytes(content)
        (path / "trimtab_manifest.json").write_bytes(spelled(described(step, files, **fields)))
        return path

    return write
