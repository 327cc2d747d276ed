"""Which settings a training goes on with: the checkpoint's, where nobody asks for others.

In go a preset, what the command line asks for, and what a checkpoint was trained with; out come the settings to train
with, and sentences. Invariant: what decides what is trained on or what the model is cannot change in the middle of a
run; what `ASKABLE` lists can, by name alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from recipes.strict_yaml import ConfigError, section_of
from recipes.twin_moe.config import OptimConfig, TwinConfig

ASKABLE: Final[Mapping[str, str]] = {"lr": "peak learning rate", "z_weight": "weight of the router z"}
"""Settings of `optim` that change on a resume where a call asks for it, each with what it is."""

_MAY_DIFFER: Final = frozenset({"eval_every", "save_every", "keep", "report_every", "log_every"})
"""When something is looked at or kept, which decides nothing of what is trained."""

_MOST_KEYS: Final = 6


class Settings(NamedTuple):
    """What to train with.

    Attributes:
        config: The settings.
        new_lr: The peak rate to go on with, where it is another than the checkpoint's; None: it is kept.
        remarks: What is to be said, a sentence each.
    """

    config: TwinConfig
    new_lr: float | None = None
    remarks: tuple[str, ...] = ()


def option(name: str) -> str:
    """The option that asks for a setting."""
    return f"--{name.replace('_', '-')}"


def asked_for(config: TwinConfig, asked: Mapping[str, float]) -> TwinConfig:
    """A preset with what is asked for, some of `ASKABLE`.

    Raises:
        ConfigError: One of them makes no sense.
    """
    for name, value in asked.items():
        if not (math.isfinite(value) and value >= 0):
            raise ConfigError(f"{option(name)}: found {value}, expected a finite number of 0 or more.")
    return replace(config, optim=replace(config.optim, **asked))


def going_on(config: TwinConfig, saved: object, *, asked: Mapping[str, float], where: str) -> Settings:
    """The settings with which a checkpoint's training goes on.

    Args:
        config: The preset.
        saved: What the checkpoint holds as its settings.
        asked: Those of `ASKABLE` that are asked for; the others are the checkpoint's.
        where: The checkpoint, as text.

    Raises:
        ConfigError: They are none, or of another training; names the keys.
    """
    try:
        trained = section_of(TwinConfig, saved)
    except ConfigError as error:
        raise ConfigError(f"{where}: was not saved by this trainer, or by another version of it ({error}).") from error
    there, here = dict(_flat(asdict(trained))), dict(_flat(asdict(config)))
    may_differ = _MAY_DIFFER.union(f"optim.{name}" for name in ASKABLE)
    differ = [
        f"{key} ({there[key]!r} there, {here[key]!r} here)"
        for key in here
        if here[key] != there[key] and key not in may_differ
    ]
    if differ:
        more = f" and {len(differ) - _MOST_KEYS} more" if len(differ) > _MOST_KEYS else ""
        raise ConfigError(
            f"{where}: was trained with other settings: {', '.join(differ[:_MOST_KEYS])}{more}. Go on with the preset "
            "that it was trained with, give another --out, or begin the next segment with --fresh."
        )
    result = asked_for(config, {name: getattr(trained.optim, name) for name in ASKABLE} | dict(asked))
    return Settings(
        config=result,
        new_lr=result.optim.lr if result.optim.lr != trained.optim.lr else None,
        remarks=tuple(_remarks(trained.optim, config.optim, asked)),
    )


def _remarks(trained: OptimConfig, preset: OptimConfig, asked: Mapping[str, float]) -> Iterator[str]:
    for name in ASKABLE:
        there, here = getattr(trained, name), getattr(preset, name)
        if name not in asked and there != here:
            yield (
                f"optim.{name} stays {there:g}, as the checkpoint was trained with; the preset has {here:g}: "
                f"{option(name)} {here:g} goes on with that"
            )
        elif asked.get(name, there) != there:
            yield f"optim.{name} is {asked[name]:g} from here on; up to the checkpoint it was {there:g}"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted names."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
