"""The factory of a training loop, by the name that a command line gives it.

Enters: `module:factory`. Leaves: the function. Invariant: code runs only where the user named it, with the current
folder on the import path, in every process of a proof alike.
"""

from __future__ import annotations

import importlib
import re
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from trimtab.errors import TrimtabError, UsageError
from trimtab.proof.loop import Factory

_NAME: Final = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<factory>[A-Za-z_]\w*)\Z", re.ASCII)

_UNSET: Final = "module:factory"
"""What stands in a written test until somebody sets it."""

_MAX_CHARACTERS: Final = 500
"""Of what an error says."""

_PACKAGE: Final = Path(__file__).resolve().parents[1]
_INSTALLED: Final = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "purelib", "platlib")}
"""Folders of code that is not the user's: torch is among the last two."""


def check_name(name: str) -> tuple[str, str]:
    """The module and the function that a name names; imports nothing.

    Args:
        name: `module:factory`, for example "recipes.sft.engine:build".

    Raises:
        UsageError: The name is not of that form, or nobody has set it yet.
    """
    named = _NAME.match(name)
    if named is None:
        raise UsageError(
            f"found {name!r} where MODULE:FACTORY was expected, for example recipes.sft.engine:build: the module as in "
            "an import statement, a colon, and the function in it that builds the training loop."
        )
    module, factory = named["module"], named["factory"]
    if name == _UNSET:
        raise UsageError(
            f'the factory is still "{_UNSET}": set the line FACTORY to the function that builds your training loop, '
            'for example FACTORY = "recipes.sft.engine:build".'
        )
    if module.endswith(".py"):
        raise UsageError(
            f"found the file name {module} where a module was expected, as in an import statement: write "
            f"{module.removesuffix('.py')}:{factory}."
        )
    return module, factory


def load_factory(name: str) -> Factory:
    """Imports a factory, with the current folder first on the import path.

    Args:
        name: `module:factory`, for example "recipes.sft.engine:build".

    Raises:
        UsageError: The name is not of that form, or nobody has set it yet.
        TrimtabError: There is no such module, it fails to import, or it has no such function.
    """
    module_name, factory_name = check_name(name)
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _import(module_name, name=name, here=here)
    factory = getattr(module, factory_name, None)
    if factory is None:
        functions = [
            other
            for other, value in vars(module).items()
            if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not other.startswith("_")
        ]
        offered = f"; it has {', '.join(functions[:8])}" if functions else ""
        raise TrimtabError(
            f"{name}: the module {module.__name__} ({getattr(module, '__file__', None)}) has no {factory_name}"
            f"{offered}. Name a function build(guard) that gives a trimtab.proof.Loop."
        )
    if not callable(factory):
        raise TrimtabError(
            f"{name}: found an object of type {type(factory).__name__}, expected a function build(guard) that gives a "
            "trimtab.proof.Loop."
        )
    result: Factory = factory
    return result


def last_line(error: BaseException) -> str:
    """What an error says, as the last line of its traceback does, on one line, and where in the user's code it was.

    Without a full stop, so that it can stand within a sentence.
    """
    if isinstance(error, TrimtabError) and not isinstance(error, UsageError):
        return " ".join(str(error).split()).rstrip(".")  # a sentence of ours, which says by itself what it is
    said = shortened(str(error).rstrip().rstrip("."))
    named = f"{type(error).__name__}: {said}" if said else type(error).__name__
    place = _place(error)
    return f"{named} ({place})" if place else named


def shortened(said: str) -> str:
    """What somebody else's code said, on one line of at most 500 characters, cut between words."""
    line = " ".join(said.split())
    if len(line) <= _MAX_CHARACTERS:
        return line
    return line[:_MAX_CHARACTERS].rpartition(" ")[0].rstrip(" ,;:.") + " ..."


def _place(error: BaseException) -> str:
    """File and line of the last frame that is neither ours nor installed; "" where there is none."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if not path.is_absolute() or _PACKAGE in path.parents or _INSTALLED.intersection(path.parents):
            continue
        return f"{path.name}:{frame.lineno}"
    return ""


def _import(module: str, *, name: str, here: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _failed(name, error) from error
        raise TrimtabError(
            f"{name}: there is no module {error.name} in {here}, nor among what is installed. Run the command in the "
            f"folder from which `import {module}` works."
        ) from error
    except KeyboardInterrupt:
        raise
    # SystemExit too: a script without an `if __name__` may end itself when it is imported.
    except BaseException as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> TrimtabError:
    return TrimtabError(
        f"{name}: importing its module failed: {last_line(error)}. Make `python -c 'import {name.partition(':')[0]}'` "
        "work first."
    )
