"""A test cannot touch the home of who runs it, nor what another test left behind."""

import os
import pwd
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from trimtab import notices

seen_homes: list[str] = []


def test_home_is_a_scratch_folder_here_and_in_processes_started_from_here(trimtab_home):
    # given: the home that the system's user table names
    real = Path(pwd.getpwuid(os.getuid()).pw_dir).resolve()
    program = "import os, pathlib; print(pathlib.Path.home()); print(os.environ['TRIMTAB_HOME'])"
    # when
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    # then
    for home in (Path.home(), *map(Path, run.stdout.splitlines())):
        assert home.resolve().is_relative_to(Path(tempfile.gettempdir()).resolve())
        assert home.resolve() != real
    assert run.stdout.splitlines()[1] == str(trimtab_home)


@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_has_a_registry_folder_of_its_own(turn):
    home = os.environ["TRIMTAB_HOME"]
    assert home not in seen_homes
    assert list(Path(home).iterdir()) == []
    seen_homes.append(home)


@pytest.mark.parametrize("turn", ["first", "second"])
def test_a_warning_said_in_one_test_is_said_again_in_the_next(turn, caplog):
    notices.warn_once("house", "only once", cause="the same")
    notices.warn_once("house", "only once", cause="the same")
    assert [record.getMessage() for record in caplog.records] == ["only once"]


def test_a_test_that_asks_the_network_fails_at_once():
    # given: an address that is set aside for documentation, and belongs to nobody
    with socket.socket() as asked, pytest.raises(AssertionError, match=r"a test asked the network: .*192\.0\.2\.1"):
        asked.connect(("192.0.2.1", 80))
