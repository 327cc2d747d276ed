"""A stage's settings, read strictly from its YAML file.

In goes `configs/<stage>.yaml`, out comes a frozen `StageConfig`. Nothing in the file is without effect: an unknown key,
a key given twice, a value of another type or out of its range is an error that names the file, the key and what was
expected, before anything is built.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

CONFIGS: Final = Path(__file__).with_name("configs")
"""One file a stage."""

_Section = TypeVar("_Section")


class ConfigError(ValueError):
    """A configuration that cannot be what its writer meant; the message names the file and the key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """Which text is trained on, and how it is batched.

    Attributes:
        package: A package of Python's standard library whose docstrings are the rows ("email"); None: all of it.
        supervise: "answer": the docstring alone; "all": the definition before it, too.
        batch_size: Rows of one micro-batch on one rank.
    """

    package: str | None = None
    supervise: Literal["answer", "all"]
    batch_size: int

    def __post_init__(self) -> None:
        _at_least(1, batch_size=self.batch_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    """The size of the model; all stages of one run need the same.

    Attributes:
        dim: Width; a multiple of `num_heads`.
        num_layers: Blocks.
        num_heads: Attention heads.
        max_tokens: Bytes of a row that are looked at; the rest is cut off.
    """

    dim: int
    num_layers: int
    num_heads: int
    max_tokens: int

    def __post_init__(self) -> None:
        _at_least(1, dim=self.dim, num_layers=self.num_layers, num_heads=self.num_heads)
        _at_least(2, max_tokens=self.max_tokens)
        if self.dim % self.num_heads:
            raise ConfigError(
                f"dim: {self.dim} cannot be shared among {self.num_heads} heads; give a multiple of num_heads."
            )


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimConfig:
    """Optimizer, schedule, clipping and, in the stage where skipping is meant, the guard.

    Attributes:
        lr: Peak learning rate.
        weight_decay: Of AdamW.
        warmup_steps: Steps over which the rate rises to `lr`; from there it falls to zero along a cosine.
        max_grad_norm: Gradients are clipped to this total 2-norm.
        loss_spike_skip_multiplier: A micro-batch whose loss is above this many means of the last kept ones is left out
            of the update. None: the guard is off.
        loss_spike_skip_window_size: Kept losses that the mean is taken over; None: 8.
        loss_spike_skip_min_history: Kept losses before anything is compared; None: 3.
    """

    lr: float
    weight_decay: float = 0.1
    warmup_steps: int = 0
    max_grad_norm: float = 1.0
    loss_spike_skip_multiplier: float | None = None
    loss_spike_skip_window_size: int | None = None
    loss_spike_skip_min_history: int | None = None

    def __post_init__(self) -> None:
        _at_least(0, lr=self.lr, weight_decay=self.weight_decay, warmup_steps=self.warmup_steps)
        _at_least(0, max_grad_norm=self.max_grad_norm)


@dataclass(frozen=True, kw_only=True, slots=True)
class StageConfig:
    """Everything that decides one stage of training.

    Attributes:
        stage: Its name, that of its file.
        seed: Decides the initial weights, where the stage begins from none, and the order of the rows.
        num_steps: Optimizer steps.
        accumulation: Micro-batches of one step, on one rank.
        data: The text.
        model: The size of the model.
        optim: Optimizer, schedule, clipping, guard.
    """

    stage: str
    seed: int = 0
    num_steps: int
    accumulation: int
    data: DataConfig
    model: ModelConfig
    optim: OptimConfig

    def __post_init__(self) -> None:
        _at_least(1, num_steps=self.num_steps, accumulation=self.accumulation)


def stages() -> list[str]:
    """Names of the stages that there is a file for."""
    return sorted(path.stem for path in CONFIGS.glob("*.yaml"))


def read_stage(stage: str) -> StageConfig:
    """Settings of a stage by its name.

    Raises:
        ConfigError: There is no such stage, or `read_config` says so.
    """
    if stage not in stages():
        raise ConfigError(f"There is no stage {stage!r} in {CONFIGS}: use one of {', '.join(stages())}.")
    return read_config(CONFIGS / f"{stage}.yaml")


def read_config(path: Path) -> StageConfig:
    """Settings of a stage from a file of any name.

    Args:
        path: A YAML file; its `stage` must be the file's own name.

    Returns:
        The settings, checked.

    Raises:
        ConfigError: The file cannot be read, or does not say what a `StageConfig` needs, or says more.
    """
    try:
        config = section_of(StageConfig, _read_yaml(path))
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error
    if config.stage != path.stem:
        raise ConfigError(f"{path}: stage: found {config.stage!r}, expected the file's own name, {path.stem!r}.")
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


def _at_least(least: int, **values: float) -> None:
    for name, value in values.items():
        if value < least:
            raise ConfigError(f"{name}: found {value}, expected {least} or more.")


def _is_required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _under(where: str, key: object) -> str:
    return f"{where}.{key}" if where else f"{key}"


def _shown(value: object) -> str:
    return "nothing" if value is None else repr(value)


def _read_yaml(path: Path) -> object:
    try:
        import yaml  # here, so that what needs no file needs no PyYAML
    except ModuleNotFoundError as error:
        raise ConfigError(f"{error}: stages are YAML files. From a clone: pip install '.[recipes]'") from error

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
