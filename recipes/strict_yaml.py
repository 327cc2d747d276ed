"""A recipe's settings, read strictly from a YAML file.

In goes a file, out comes a frozen dataclass. Nothing in the file is without effect: an unknown key, a key given twice,
a value of another type or out of its range is an error that names the file, the key and what was expected, before
anything is built.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

_Section = TypeVar("_Section")


class ConfigError(ValueError):
    """A configuration that cannot be what its writer meant; the message names the file and the key."""


def names_in(folder: Path) -> list[str]:
    """Names of the settings that a folder has a file for."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def read_named(section: type[_Section], folder: Path, name: str, *, named_in: str) -> _Section:
    """Settings by their name: those of `folder/name.yaml`, which says that name itself.

    Args:
        section: The dataclass of the whole file.
        folder: Where the files are.
        name: Which of them.
        named_in: The key whose value must be the name; what such a file is called in errors, too.

    Returns:
        The settings, checked.

    Raises:
        ConfigError: There is no such file, it cannot be read, or does not say what the dataclass needs, or says more,
            or another name.
    """
    if name not in names_in(folder):
        raise ConfigError(f"There is no {named_in} {name!r} in {folder}: use one of {', '.join(names_in(folder))}.")
    path = folder / f"{name}.yaml"
    try:
        config = section_of(section, _read_yaml(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    found = getattr(config, named_in)
    if found != name:
        raise ConfigError(f"{path}: {named_in}: found {found!r}, expected the file's own name, {name!r}.")
    return config


def section_of(section: type[_Section], found: object, *, where: str = "") -> _Section:
    """A dataclass from a mapping of plain values, every key and type checked.

    Args:
        section: The dataclass.
        found: What was read.
        where: Dotted name of the mapping inside its file; empty at the top.

    Raises:
        ConfigError: An unknown or missing key, or a value of another type.
    """
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where or 'the file'}: found {_shown(found)}, expected keys and values.")
    known = {field.name: field for field in fields(section)}  # type: ignore[arg-type]
    for key in found:
        if key not in known:
            raise ConfigError(f"{_under(where, key)}: no such key; expected some of {', '.join(known)}.")
    for name, field in known.items():
        if name not in found and _is_required(field):
            raise ConfigError(f"{_under(where, name)}: is missing, and has no default.")
    expected = get_type_hints(section)
    values = {name: _value(expected[name], value, where=_under(where, name)) for name, value in found.items()}
    try:
        return section(**values)
    except ConfigError as error:
        raise ConfigError(_under(where, str(error))) from error


def at_least(least: int, **values: float) -> None:
    """Refuses values below the least that makes sense; the keys are the settings' names.

    Raises:
        ConfigError: One is smaller.
    """
    for name, value in values.items():
        if value < least:
            raise ConfigError(f"{name}: found {value}, expected {least} or more.")


def _read_yaml(path: Path) -> object:
    """The plain values of a YAML file.

    Raises:
        ConfigError: It cannot be read, holds more than plain values or a key twice, or there is no PyYAML.
    """
    try:
        import yaml  # here, so that what needs no file needs no PyYAML
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: settings are YAML files. From a clone: pip install '.[recipes]'") from error

    class Loader(yaml.SafeLoader):
        """Plain values only, and no key twice: YAML itself would let the second win without a word."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            twice = {f"{key}" for key in keys if keys.count(key) > 1}
            if twice:
                line = node.start_mark.line + 1
                raise ConfigError(
                    f"{', '.join(sorted(twice))}: given twice, in the mapping that begins in line {line}."
                )
            return super().construct_mapping(node, deep=deep)

    try:
        with path.open(encoding="utf-8") as file:
            return yaml.load(file, Loader)  # derived from SafeLoader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"cannot be read as YAML: {error}") from error


def _value(expected: Any, found: object, *, where: str) -> Any:
    """One value as its field wants it; a whole number will do where a fraction is expected, and no other will."""
    if is_dataclass(expected):
        return section_of(expected, found, where=where)  # type: ignore[arg-type]
    if get_origin(expected) is types.UnionType:
        if found is None:
            return None
        (expected,) = (choice for choice in get_args(expected) if choice is not types.NoneType)
    if get_origin(expected) is Literal:
        if found in get_args(expected):
            return found
        raise ConfigError(f"{where}: found {_shown(found)}, expected {' or '.join(map(repr, get_args(expected)))}.")
    is_number = isinstance(found, int | float) and not isinstance(found, bool)  # True is an int to Python
    if expected is float and is_number and math.isfinite(found):  # type: ignore[arg-type]
        return float(found)  # type: ignore[arg-type]
    if expected in (int, str) and type(found) is expected:
        return found
    words = {float: "a finite number", int: "a whole number", str: "text"}[expected]
    raise ConfigError(f"{where}: found {_shown(found)}, expected {words}.{_remark(expected, found)}")


def _remark(expected: type, found: object) -> str:
    """What has gone wrong where YAML took a number for text."""
    if expected is float and isinstance(found, str):
        try:
            float(found)
        except ValueError:
            return ""
        return " YAML takes an exponent without a point for text: write 3.0e-3, not 3e-3, and no quotes."
    return ""


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _under(where: str, key: object) -> str:
    return f"{where}.{key}" if where else f"{key}"


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)
