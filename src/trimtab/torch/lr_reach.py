"""Which numbers a factor of a LambdaLR or MultiplicativeLR can reach.

    arguments of a partial, closure, defaults, globals that it loads, attributes that it names, lists, dicts
    -> what lies in those, and in the functions that it calls

Enters: a factor. Leaves: `Held`. Invariant: nothing of the factor is called, no property is read, and the walk is
bounded: what is not looked through is said.
"""

from __future__ import annotations

import dis
import itertools
import math
import numbers
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from inspect import getattr_static
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, Final

import numpy as np
import torch
from torch.optim.lr_scheduler import LRScheduler

_LIBRARY: Final = "transformers"
_LEFT_OUT: Final = sys.stdlib_module_names | {"torch", "numpy", "scipy"}
"""Packages whose functions hold no rate of a run."""

_END: Final = "lr_end"
"""What a polynomial calls the rate that it ends at: at 0 all of it is in proportion to the rate that it begins at."""

_MAX_LOOKED_AT: Final = 2_000
_MAX_ENTRIES: Final = 64
"""Of a list or an array that is looked through: a longer one is a table, and no setting."""

_BY_GLOBAL_NAME: Final = ("LOAD_GLOBAL", "LOAD_NAME")


@dataclass(slots=True)
class Held:
    """What a factor can reach.

    Attributes:
        numbers: Fractions, and whole ones that are no counts, by the name that each has in it.
        restored: The names of those that a state puts back.
        live: What it does that cannot be followed, as "reads ..."; "" where there is nothing.
        is_of_library: Whether it is one of `transformers`.
        ends_at_zero: Whether it says that its rate ends at 0.
    """

    numbers: dict[str, float] = field(default_factory=dict)
    restored: set[str] = field(default_factory=set)
    live: str = ""
    is_of_library: bool = False
    ends_at_zero: bool = False


def held_by(factor: Callable[..., Any]) -> Held:
    """Looks through a factor."""
    walk = _Walk(held=Held(is_of_library=_package(factor) == _LIBRARY))
    # Of these a state keeps nothing that they compute with.
    is_object = not isinstance(factor, FunctionType | partial | MethodType)
    walk.look(factor, name="", names=None, is_restored=is_object)
    return walk.held


@dataclass(slots=True)
class _Walk:
    """One look through a factor; objects are followed once."""

    held: Held
    seen: set[int] = field(default_factory=set)

    def look(self, value: Any, *, name: str, names: frozenset[str] | None, is_restored: bool) -> None:
        """Looks at one value, and at what it holds.

        Args:
            value: The value.
            name: What it is called.
            names: The attributes that are read of objects here; None: all.
            is_restored: Whether a state puts it back.
        """
        if isinstance(value, numbers.Number):
            self._number(value, name=name, is_restored=is_restored)
            return
        if value is None or isinstance(value, str | bytes | type | ModuleType | torch.nn.Module):
            return
        if id(value) in self.seen:
            return
        self.seen.add(id(value))
        if len(self.seen) > _MAX_LOOKED_AT:
            self.held.live = f"reaches more than {_MAX_LOOKED_AT:,} objects"
            return
        if isinstance(value, torch.optim.Optimizer | LRScheduler):
            self.held.live = f"reads an object of {type(value).__name__}"
        elif isinstance(value, FunctionType):
            self._function(value, name=name)
        elif isinstance(value, MethodType):
            self._object(value.__self__, name=name, names=_names_in(value.__func__), is_restored=is_restored)
            self.look(value.__func__, name=name, names=None, is_restored=is_restored)
        elif (entries := _entries_of(value)) is None:
            self._object(value, name=name, names=names, is_restored=is_restored)
        else:
            for key, entry in entries:
                self.look(entry, name=_inside(name, key), names=names, is_restored=is_restored)

    def _number(self, value: Any, *, name: str, is_restored: bool) -> None:
        if name.rpartition(".")[2] == _END and value == 0:
            self.held.ends_at_zero = True
        # Steps and epochs are counted in whole numbers, and a rate of 1 is more often 1.0.
        if not isinstance(value, float | np.floating) or not math.isfinite(value) or not value:
            return
        name = name or "a number"
        self.held.numbers[name] = float(value)
        if is_restored:
            self.held.restored.add(name)

    def _function(self, function: FunctionType, *, name: str) -> None:
        package = _package(function)
        if package in _LEFT_OUT:
            return
        names = _names_in(function)
        code = function.__code__
        given: dict[str, Any] = dict(function.__kwdefaults__ or {})
        if function.__defaults__:
            arguments = code.co_varnames[: code.co_argcount]
            given |= zip(arguments[-len(function.__defaults__) :], function.__defaults__, strict=True)
        for variable, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            try:
                given[variable] = cell.cell_contents
            except ValueError:  # not set as yet
                continue
        for loaded in _globals_in(code):
            value = function.__globals__.get(loaded)
            if not isinstance(value, FunctionType) or _package(value) == package:
                given[loaded] = value
        given |= {key: value for key, value in vars(function).items() if key in names}
        for key, value in given.items():
            self.look(value, name=_inside(name, key), names=names, is_restored=False)

    def _object(self, value: Any, *, name: str, names: frozenset[str] | None, is_restored: bool) -> None:
        kind = type(value)
        own = getattr_static(kind, "__call__", None)
        wanted = set(names or ()) | (_names_in(own) if isinstance(own, FunctionType) else set())
        of_class = {key: getattr_static(kind, key, None) for key in sorted(wanted)}
        of_class["__call__"] = own
        while True:  # a method that a method calls reads more
            more = {
                key for method in of_class.values() if isinstance(method, FunctionType) for key in _names_in(method)
            }
            if more <= wanted:
                break
            of_class |= {key: getattr_static(kind, key, None) for key in sorted(more - wanted)}
            wanted |= more
        attributes = dict(getattr(value, "__dict__", {}))
        for slot, member in of_class.items():
            if slot not in attributes and type(member).__name__ == "member_descriptor":
                attributes[slot] = getattr(value, slot, None)
        for key, attribute in attributes.items():
            if names is None or key in wanted:
                reach = None if names is None else frozenset(wanted)
                self.look(attribute, name=_inside(name, key), names=reach, is_restored=is_restored)
        for key, member in of_class.items():
            member = member.fget if isinstance(member, property) else member
            if key not in attributes and isinstance(member, numbers.Number | FunctionType):
                self.look(member, name=name if callable(member) else _inside(name, key), names=None, is_restored=False)


def _entries_of(value: Any) -> list[tuple[str, Any]] | None:
    """What a collection or a partial holds, by name or place; None of what is neither."""
    if isinstance(value, partial):
        return [("", value.func), *(_entries_of(value.args) or ()), *value.keywords.items()]
    if isinstance(value, torch.Tensor):
        value = value.flatten().tolist() if value.numel() <= _MAX_ENTRIES else ()
    if isinstance(value, np.ndarray):
        value = value.ravel().tolist() if value.size <= _MAX_ENTRIES else ()
    if isinstance(value, Mapping):
        entries = list(itertools.islice(value.items(), _MAX_ENTRIES))
        return [(key if isinstance(key, str) else f"[{key!r}]", entry) for key, entry in entries]
    if isinstance(value, list | tuple | set | frozenset):
        return [(f"[{place}]", entry) for place, entry in enumerate(itertools.islice(value, _MAX_ENTRIES))]
    return None


def _inside(name: str, key: str) -> str:
    is_place = not key or key.startswith("[")
    return f"{name}{key}" if is_place or not name else f"{name}.{key}"


def _codes(code: CodeType) -> list[CodeType]:
    """The code of a function, and of those that stand in it."""
    return [code, *(one for entry in code.co_consts if isinstance(entry, CodeType) for one in _codes(entry))]


def _names_in(function: Any) -> frozenset[str]:
    """The attributes, and perhaps globals, that a function names."""
    code = getattr(function, "__code__", None)
    return frozenset(name for one in _codes(code) for name in one.co_names) if code is not None else frozenset()


def _globals_in(code: CodeType) -> list[str]:
    found = (
        entry.argval for one in _codes(code) for entry in dis.get_instructions(one) if entry.opname in _BY_GLOBAL_NAME
    )
    return sorted(set(found))


def _package(function: Any) -> str:
    """The package that a function comes from."""
    while isinstance(function, partial):
        function = function.func
    return str(getattr(function, "__module__", None) or "").partition(".")[0]
