"""`--data`: the rows of a run, named on the command line.

Enters: `FILE`, a folder, or `MODULE:FUNCTION`. Leaves: rows at hand. Invariant: code runs only where the user named it
as MODULE:FUNCTION, and what it prints goes to standard error: standard output may be a document.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

from trimtab.dataset.data import Data
from trimtab.dataset.opening import open_data
from trimtab.errors import TrimtabError, UsageError

_FUNCTION: Final = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<function>[A-Za-z_]\w*)\Z")


def open_named_data(name: str) -> list[Data]:
    """Opens what `--data` names.

    Args:
        name: The path of a file or of a folder that `save_to_disk` has left; or `module:function`, imported with the
            current folder on the path, whose result is the dataset.

    Raises:
        UsageError: Nothing is there, or the function is not there, fails, or gives nothing that has rows by number.
        MissingExtraError: A package to read it is not installed.
    """
    function = _FUNCTION.match(name)
    if function is None or os.path.lexists(name):
        return open_data(Path(name))
    with redirect_stdout(sys.stderr):
        return open_data(_result(function["module"], function["function"]))


def _result(module_name: str, function_name: str) -> object:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except Exception as error:
        raise _failed(f"--data {module_name}:{function_name} cannot be imported from {here}", error) from error
    if not callable(function):
        raise UsageError(f"--data {module_name}:{function_name} is of type {type(function).__name__}, and no function.")
    try:
        return function()
    except Exception as error:
        raise _failed(f"--data {module_name}:{function_name}, called without arguments, failed", error) from error


def _failed(what: str, error: Exception) -> TrimtabError:
    return UsageError(f"{what}: {type(error).__name__}: {str(error)[:500]}")
