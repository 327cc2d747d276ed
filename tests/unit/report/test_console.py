"""The console of reports: its width shows something, whatever the environment says."""

import fcntl
import io
import os
import struct
import termios

import pytest

from trimtab.report.console import make_console


@pytest.mark.parametrize(
    ("columns", "width"),
    [
        ("100", 100),
        ("0", 120),
        ("", 120),
        ("abc", 120),
        ("-80", 120),
        ("80.5", 120),
        ("\u0668\u0660", 120),
        ("\u00b2", 120),
        ("9" * 5_000, 120),
        ("1", 40),
        ("39", 40),
        ("40", 40),
        ("1000", 1_000),
        ("9999999999", 1_000),
    ],
)
def test_columns_decide_where_they_are_a_number(columns, width):
    assert make_console(io.StringIO(), environ={"COLUMNS": columns}).size.width == width


def test_without_columns_and_terminal_a_line_has_120_characters(monkeypatch):
    # given: what rich would read for itself
    monkeypatch.setenv("COLUMNS", "0")
    monkeypatch.setenv("LINES", "\u00b2")
    assert make_console(io.StringIO(), environ={}).size.width == 120


@pytest.mark.parametrize(("says", "width"), [(0, 120), (80, 80), (3, 40)])
def test_a_terminal_is_asked_for_its_width(says, width):
    # given: a terminal of a size that was set
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, says, 0, 0))
    with os.fdopen(master, "rb"), os.fdopen(slave, "w") as terminal:
        assert make_console(terminal, environ={}).size.width == width


def test_a_closed_pipe_is_left_to_the_caller():
    with pytest.raises(BrokenPipeError):
        make_console(io.StringIO(), environ={}).on_broken_pipe()
