"""The one voice: a line reaches every handler, whatever is in it."""

import logging
from pathlib import Path

import pytest

from trimtab import notices


def test_a_line_with_a_path_in_no_encoding_is_written_by_a_handler_of_utf8(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("trimtab")
    handler = logging.FileHandler(tmp_path / "log", encoding="utf-8")
    logger.addHandler(handler)
    try:
        notices.warn("test", "records into caf\udce9 and \u00e9")
    finally:
        logger.removeHandler(handler)
        handler.close()

    assert (tmp_path / "log").read_text(encoding="utf-8") == "records into caf\\udce9 and \u00e9\n"
    assert capsys.readouterr().err == ""
