"""Which settings a training goes on with: the checkpoint's, where nobody asks for others.

In go a preset, what the command line asks for, and what a checkpoint was trained with; out come the settings to train
with, and sentences. Invariant: what decides what is trained on or what the model is cannot change in the middle of a
run; the rate and the z weight can, by name alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any, Final, NamedTuple

from recipes.strict_yaml import ConfigError, section_of
from recipes.twin_moe.config import TwinConfig
from trimtab.text import listed, plain

_MAY_DIFFER: Final = frozenset({"eval_every", "save_every", "keep", "report_every", "log_every"})
"""When something is looked at or kept, which decides nothing of what is trained."""

_BY_NAME: Final[Mapping[str, str]] = {"optim.lr": "--lr", "optim.z_weight": "--z-weight"}
"""What changes on a resume where it is asked for, with the option that asks."""


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


def asked_for(config: TwinConfig, *, lr: float | None, z_weight: float | None) -> TwinConfig:
    """A preset with what the command line asks for.

    Raises:
        ConfigError: One of them makes no sense.
    """
    if lr is not None and not (math.isfinite(lr) and lr > 0):
        raise ConfigError(f"--lr: found {lr}, expected a finite number above 0.")
    if z_weight is not None and not (math.isfinite(z_weight) and z_weight >= 0):
        raise ConfigError(f"--z-weight: found {z_weight}, expected a finite number of 0 or more.")
    optim = config.optim
    return replace(
        config,
        optim=replace(
            optim, lr=optim.lr if lr is None else lr, z_weight=optim.z_weight if z_weight is None else z_weight
        ),
    )


def going_on(config: TwinConfig, saved: object, *, lr: float | None, z_weight: float | None, where: str) -> Settings:
    """The settings with which a checkpoint's training goes on.

    Args:
        config: The preset.
        saved: What the checkpoint holds as its settings.
        lr: The peak rate that was asked for; None: the checkpoint's.
        z_weight: Likewise.
        where: The checkpoint, as text.

    Raises:
        ConfigError: They are none, or of another training; names the keys.
    """
    try:
        trained = section_of(TwinConfig, saved)
    except ConfigError as error:
        raise ConfigError(f"{where}: was not saved by this trainer, or by another version of it ({error}).") from error
    there, here = dict(_flat(asdict(trained))), dict(_flat(asdict(config)))
    differ = [key for key in here if here[key] != there[key] and key not in _MAY_DIFFER and key not in _BY_NAME]
    if differ:
        told = listed([f"{key} ({plain(repr(there[key]))} there, {here[key]!r} here)" for key in differ], most=6)
        raise ConfigError(
            f"{where}: was trained with other settings: {told}. Go on with the preset that it was trained with, give "
            "another --out, or begin the next segment with --fresh."
        )
    kept = replace(config, optim=replace(config.optim, lr=trained.optim.lr, z_weight=trained.optim.z_weight))
    result = asked_for(kept, lr=lr, z_weight=z_weight)
    return Settings(
        config=result,
        new_lr=result.optim.lr if result.optim.lr != trained.optim.lr else None,
        remarks=tuple(_remarks(there, here, asked={"optim.lr": lr, "optim.z_weight": z_weight})),
    )


def _remarks(there: Mapping[str, Any], here: Mapping[str, Any], *, asked: Mapping[str, float | None]) -> Iterator[str]:
    for key, option in _BY_NAME.items():
        value = asked[key]
        if value is None and there[key] != here[key]:
            yield (
                f"{key} stays {there[key]:g}, as the checkpoint was trained with; the preset has {here[key]:g}: "
                f"{option} {here[key]:g} goes on with that"
            )
        elif value is not None and value != there[key]:
            yield f"{key} is {value:g} from here on; up to the checkpoint it was {there[key]:g}"


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Settings by their dotted names."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
