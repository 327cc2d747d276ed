"""The public names come from where they say, and no room hides one."""

import importlib
import pkgutil
import subprocess
import sys

import trimtab


def test_a_public_name_is_what_its_home_defines():
    assert trimtab.rewind is importlib.import_module("trimtab.analysis").rewind
    assert trimtab.Findings is importlib.import_module("trimtab.findings").Findings
    assert trimtab.open_log is importlib.import_module("trimtab.log.reader").open_log


def test_no_room_has_the_name_of_something_public():
    # a submodule becomes an attribute of the package when it is imported, and would hide the name
    rooms = {module.name for module in pkgutil.iter_modules(trimtab.__path__)}
    assert not rooms & set(trimtab.__all__)


def test_a_name_is_loaded_once_and_is_then_an_ordinary_attribute():
    program = "import trimtab; trimtab.LogError; print('LogError' in vars(trimtab), 'Run' in vars(trimtab))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout == "True False\n"


def test_the_proof_is_there_by_its_own_name_and_loaded_when_it_is_used():
    program = "import sys, trimtab; early = 'torch' in sys.modules; print(early, trimtab.proof.Loop.__module__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "False trimtab.proof.loop\n", done.stderr
