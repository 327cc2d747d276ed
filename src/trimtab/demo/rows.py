"""Question and answer rows from the standard library's own docstrings; nothing is downloaded and nothing shipped.

In goes a folder of Python sources (or, where an embedded Python has none, the modules already loaded); out comes a list
of `Row`, in an order that depends on the texts alone. Sources are parsed, never imported, so collecting has no side
effects. Rows differ a little between Python versions: a row number holds for one Python only.

Collect before `import torch`: the garbage collector walking torch's heap makes the same parse 2.5 times slower.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import os
import sys
import sysconfig
import types
import warnings
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

NUM_ROWS: Final = 2880
"""Rows of a whole demo: 360 optimizer steps of 8. Python 3.10 to 3.13 give 2,962 to 3,506 to choose from."""
MIN_ROWS: Final = 1600
"""With fewer rows there are too few steps for a settled baseline and the planted ones."""
MIN_CHARS: Final = 30
MAX_CHARS: Final = 300
"""Short answers: in a step of 8 rows a long garbage row then carries about 90 % of the loss."""

_SKIPPED_FOLDERS: Final = frozenset(
    {
        "site-packages",
        "dist-packages",
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "turtledemo",
        "ensurepip",
        "__pycache__",
    }
)


class Row(NamedTuple):
    """One row: a definition as the question, its docstring as the answer."""

    question: str
    answer: str


def rows_from_sources(root: Path | None = None, *, limit: int = NUM_ROWS) -> list[Row]:
    """Public functions, classes and methods with a docstring of 30 to 300 characters.

    Args:
        root: Folder of `.py` files; the running Python's standard library by default.
        limit: Most rows to return.

    Returns:
        Rows without duplicates, ordered by the hash of their text; empty where there are no sources.
    """
    folder = Path(sysconfig.get_paths()["stdlib"]) if root is None else root
    found: list[Row] = []
    for path in _source_files(folder):
        module = _module_name(path.relative_to(folder))
        tree = None if module is None else _parse(path)
        if tree is not None:
            found.extend(_walk(tree.body, f"{module}"))
    return _choose(found, limit)


def rows_from_modules(modules: Mapping[str, object] | None = None, *, limit: int = NUM_ROWS) -> list[Row]:
    """The same from the docstrings of standard library modules that are loaded already; imports nothing.

    For a Python without sources (embedded zip, frozen). After `import transformers` some 4,000 docstrings are there.

    Args:
        modules: Loaded modules by name; `sys.modules` by default.
        limit: Most rows to return.

    Returns:
        Rows without duplicates, ordered by the hash of their text.
    """
    loaded = dict(sys.modules if modules is None else modules)
    found: list[Row] = []
    for name, module in sorted(loaded.items()):
        if name.partition(".")[0] not in sys.stdlib_module_names or any(part[:1] == "_" for part in name.split(".")):
            continue
        if isinstance(module, types.ModuleType):
            found.extend(_walk_namespace(vars(module), name))
    return _choose(found, limit)


def _source_files(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in _SKIPPED_FOLDERS and not name.startswith(("config-", "_"))
        )
        yield from (Path(parent, name) for name in sorted(names) if name.endswith(".py"))


def _module_name(relative: Path) -> str | None:
    """Dotted name; None for a private module."""
    parts = [*relative.parts[:-1], relative.stem]
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts) if parts and not any(part.startswith("_") for part in parts) else None


def _parse(path: Path) -> ast.Module | None:
    with warnings.catch_warnings():
        # The library's own sources still hold invalid escapes that the parser warns of.
        warnings.simplefilter("ignore")
        try:
            return ast.parse(path.read_bytes())
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            return None


def _walk(body: Iterable[ast.stmt], where: str) -> Iterator[Row]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if not node.name.startswith("_"):
                arguments = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args)]
                yield Row(f"{where}: def {node.name}({', '.join(arguments)})", ast.get_docstring(node) or "")
        elif isinstance(node, ast.ClassDef):
            if not node.name.startswith("_"):
                yield Row(f"{where}: class {node.name}", ast.get_docstring(node) or "")
                yield from _walk(node.body, f"{where}.{node.name}")
        elif isinstance(node, ast.If):
            yield from _walk(node.body, where)
            yield from _walk(node.orelse, where)
        elif isinstance(node, ast.Try):
            for part in (node.body, *(handler.body for handler in node.handlers), node.orelse, node.finalbody):
                yield from _walk(part, where)


def _walk_namespace(namespace: Mapping[str, object], where: str) -> Iterator[Row]:
    for name, value in sorted(namespace.items()):
        if name.startswith("_"):
            continue
        if inspect.isclass(value):
            yield Row(f"{where}: class {name}", _document(value))
            for method_name, method in sorted(vars(value).items()):
                if not method_name.startswith("_") and inspect.isroutine(method):
                    yield Row(f"{where}.{name}: def {method_name}", _document(method))
        elif inspect.isroutine(value):
            yield Row(f"{where}: def {name}", _document(value))


def _document(value: object) -> str:
    """Only the docstring that stands there: `inspect.getdoc` would repeat an inherited one for every override."""
    text = value.__doc__
    return inspect.cleandoc(text) if isinstance(text, str) else ""


def _choose(found: Iterable[Row], limit: int) -> list[Row]:
    """Rows of the right length, one a text, in the order of their hash: the same in every process."""
    seen: set[str] = set()
    kept: list[tuple[bytes, Row]] = []
    for row in found:
        plain = " ".join(row.answer.split())
        if not MIN_CHARS <= len(row.answer) <= MAX_CHARS or plain in seen:
            continue
        seen.add(plain)
        kept.append((hashlib.sha256("\0".join(row).encode("utf-8", "surrogatepass")).digest(), row))
    return [row for _, row in sorted(kept)[:limit]]
