"""The factory of a training loop, by the name that a command line gives it.

Enters: `module:factory`. Leaves: the function. Invariant: code runs only where the user named it, with the current
folder on the import path, in every process of a proof alike.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import FunctionType
from typing import Any, Final

from trimtab.errors import TrimtabError, UsageError
from trimtab.proof.loop import Factory

_NAME: Final = re.compile(r"(?P<module>[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):(?P<factory>[A-Za-z_]\w*)\Z", re.ASCII)


def load_factory(name: str) -> Factory:
    """Imports a factory, with the current folder first on the import path.

    Args:
        name: `module:factory`, for example "recipes.sft.engine:build".

    Raises:
        UsageError: The name is not of that form.
        TrimtabError: There is no such module, it fails to import, or it has no such function.
    """
    named = _NAME.match(name)
    if named is None:
        raise UsageError(
            f"found {name!r} where MODULE:FACTORY was expected, for example recipes.sft.engine:build: the module as in "
            "an import statement, a colon, and the function in it that builds the training loop."
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    module = _import(named["module"], name=name, here=here)
    factory = getattr(module, named["factory"], None)
    if factory is None:
        functions = [
            other
            for other, value in vars(module).items()
            if isinstance(value, FunctionType) and value.__module__ == module.__name__ and not other.startswith("_")
        ]
        offered = f"; it has {', '.join(functions[:8])}" if functions else ""
        raise TrimtabError(
            f"{name}: the module {module.__name__} ({getattr(module, '__file__', None)}) has no {named['factory']}"
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
    """What an error says, as the last line of its traceback does, on one line of at most 500 characters.

    Without a full stop, so that it can stand within a sentence.
    """
    said = " ".join(str(error).split())[:500].rstrip(".")
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


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
    # SystemExit too: a script without an `if __name__` may end itself when it is imported.
    except (Exception, SystemExit) as error:
        raise _failed(name, error) from error


def _failed(name: str, error: BaseException) -> TrimtabError:
    return TrimtabError(
        f"{name}: importing its module failed: {last_line(error)}. Make `python -c 'import {name.partition(':')[0]}'` "
        "work first."
    )
