"""The project as files: what a clone holds, without what .gitignore keeps out."""

import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def root() -> Path:
    return ROOT


@pytest.fixture(scope="session")
def project_files() -> list[Path]:
    ignored = [".git", *(line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines())]

    def walk(folder):
        for path in sorted(folder.iterdir()):
            if any(fnmatch.fnmatch(path.name, pattern) for pattern in ignored):
                continue
            if path.is_dir():
                yield from walk(path)
            else:
                yield path

    return list(walk(ROOT))


@pytest.fixture(scope="session")
def source_files() -> list[Path]:
    return sorted((ROOT / "src").rglob("*.py"))
