"""A whole study: its arms trained, read back, and written down.

Enters: a preset's settings, and arms. Leaves, in the study's folder: `arms/`, a training each; `study.json`, what their
logs say; `study.png`; `study.md`. Invariant: arms differ in the z weight and the seed alone, and all of them end at the
same step; an interrupted study goes on where it was.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import trimtab
from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import TwinConfig
from recipes.twin_moe.console import say
from recipes.twin_moe.study.arm import Arm, steps_done, train_arms
from recipes.twin_moe.study.figure import draw_study
from recipes.twin_moe.study.plan import stops
from recipes.twin_moe.study.reading import ArmResult, read_arm
from recipes.twin_moe.study.table import LEGEND, spread_lines, table_lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A study that has ended.

    Attributes:
        preset: The preset.
        num_steps: The step at which all arms ended.
        stopped_by: Why that is not the step that was asked for; None where it is.
        device: Where it was trained.
        settings: What the arms have in common; their own weight and seed stand in the arms.
        arms: Read back from their logs, by weight and seed.
        versions: Of Python, torch and Trimtab, and the machine.
        time: When it ended, seconds since the epoch.
    """

    preset: str
    num_steps: int
    stopped_by: str | None
    device: str
    settings: dict[str, Any]
    arms: tuple[ArmResult, ...]
    versions: dict[str, str]
    time: float

    @property
    def ended_early(self) -> list[str]:
        """Of each arm that an error ended before its last step a line that says so."""
        return [f"{arm.folder} ended early: {arm.ended_by}" for arm in self.arms if arm.ended_by is not None]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document `study.json`; strict JSON."""
        return {
            "version": 1,
            "preset": self.preset,
            "num_steps": self.num_steps,
            "stopped_by": self.stopped_by,
            "device": self.device,
            "settings": self.settings,
            "versions": self.versions,
            "time": self.time,
            "arms": [arm.to_dict() for arm in self.arms],
        }


def study(
    config: TwinConfig,
    *,
    out: Path,
    arms: Sequence[Arm],
    num_steps: int | None = None,
    minutes: float | None = None,
    device: str | None = None,
    num_processes: int = 1,
    tell: Callable[[str], None] = say,
    clock: Callable[[], float] = time.monotonic,
) -> Study:
    """Trains the arms of a study, reads them back, and writes what they show.

    Args:
        config: What the arms have in common.
        out: Folder of the study.
        arms: Which weights and seeds.
        num_steps: Step at which all of them end, without changing the schedule; None: at the end of the schedule.
        minutes: What the training may take in this call; where that is not enough, all arms end at the same evaluation
            before that step. None: as long as it takes.
        device: Where; None: as the trainer chooses.
        num_processes: Arms that are trained side by side.
        tell: What to do with a line for the person who waits; called in the processes of the arms, too.
        clock: Seconds, of which differences count.

    Returns:
        What is in `study.json`.

    Raises:
        ConfigError: The folder holds another study under these names.
        LogError: A log of an arm cannot be read.
        OSError: A file cannot be written.
    """
    out.mkdir(parents=True, exist_ok=True)
    last = config.num_steps if num_steps is None else min(num_steps, config.num_steps)
    _refuse_behind(arms, out=out, num_steps=last)
    reached, errors = 0, dict[str, str]()
    begun = clock()
    for stop in stops(
        lambda: [steps_done(arm, out=out) for arm in arms],
        num_steps=last,
        eval_every=config.eval_every,
        minutes=minutes,
        clock=clock,
    ):
        tell(f"{len(arms)} trainings to step {stop}, {num_processes} at a time")
        errors |= train_arms(
            [arm for arm in arms if arm.name not in errors],
            config,
            out=out,
            stop_at=stop,
            device=device,
            num_processes=num_processes,
            tell=tell,
        )
        reached = stop
    spent = (clock() - begun) / 60
    stopped_by = None
    if reached < last:
        stopped_by = f"{spent:.1f} of {minutes:g} minutes were used up at step {reached} of {last}, where all arms end"
        tell(stopped_by)
    found = _read(arms, config, out=out, num_steps=reached, stopped_by=stopped_by, device=device, errors=errors)
    _write(found, out)
    for line in (*table_lines(found.arms, is_markdown=False), *spread_lines(found.arms), *found.ended_early):
        tell(line)
    tell(f"written: {out / 'study.json'}, study.md and study.png beside it")
    return found


def device_name(device: str | None) -> str:
    """What a study is trained on.

    Args:
        device: As torch names it; None: a GPU where there is one.

    Returns:
        The name of a GPU, or `CPU`.
    """
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.cuda.get_device_name() if kind.startswith("cuda") else "CPU"


def _refuse_behind(arms: Sequence[Arm], *, out: Path, num_steps: int) -> None:
    """Arms that are further than the study goes would be compared with those that are not."""
    for arm in arms:
        done = steps_done(arm, out=out)
        if done > num_steps:
            raise ConfigError(
                f"{arm.folder(out)} has been trained to step {done}, and this study ends at step {num_steps}: give "
                f"--steps {done} or more, or another --out."
            )


def _read(
    arms: Sequence[Arm],
    config: TwinConfig,
    *,
    out: Path,
    num_steps: int,
    stopped_by: str | None,
    device: str | None,
    errors: dict[str, str],
) -> Study:
    """Reads all arms back."""
    results = [
        read_arm(
            out,
            arm.folder(out),
            z_weight=arm.z_weight,
            seed=arm.seed,
            in_sweep=arm.in_sweep,
            ended_by=errors.get(arm.name),
        )
        for arm in arms
    ]
    settings = asdict(config)
    del settings["seed"], settings["optim"]["z_weight"]
    return Study(
        preset=config.preset,
        num_steps=num_steps,
        stopped_by=stopped_by,
        device=device_name(device),
        settings=settings,
        arms=tuple(sorted(results, key=lambda arm: (arm.z_weight, arm.seed))),
        versions={
            "python": platform.python_version(),
            "torch": torch.__version__,
            "trimtab": trimtab.__version__,
            "machine": f"{platform.machine()}, {os.cpu_count()} CPUs",
        },
        time=time.time(),
    )


def _write(found: Study, out: Path) -> None:
    document = json.dumps(found.to_dict(), indent=1, allow_nan=False)
    (out / "study.json").write_text(document + "\n", encoding="ascii")
    title = f"{found.preset}, {found.num_steps} steps, {found.device}: the z weight"
    draw_study(found.arms, out / "study.png", title=title)
    page = [
        f"# {title}",
        "",
        *([found.stopped_by, ""] if found.stopped_by is not None else []),
        *table_lines(found.arms, is_markdown=True),
        "",
        LEGEND,
        "",
        *(f"* {line}" for line in (*spread_lines(found.arms), *found.ended_early)),
        "",
        "![What each weight did](study.png)",
        "",
        ", ".join(f"{name} {version}" for name, version in found.versions.items()),
    ]
    (out / "study.md").write_text("\n".join(page) + "\n", encoding="ascii", errors="backslashreplace")
