"""A run folder to record into, and what the recorder said about it."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trimtab.log.folder import RunFolder, create_run
from trimtab.values import RunHeader


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return create_run(tmp_path, RunHeader(run_id="a", backend="torch"))


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[], list[str]]]:
    caplog.set_level(logging.INFO, logger="trimtab.recorder")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "trimtab.recorder"]
