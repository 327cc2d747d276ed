"""The weight study: the same training with z weights over four decades, and what the watch says of each.

    python -m recipes.twin_moe.study --preset tiny --out study/
    python -m recipes.twin_moe.study --preset local140a50 --out study/ --device cuda --minutes 5

Enters: a preset, weights, seeds. Leaves, in the study's folder: `arms/`, a training each; `study.json`, what their logs
say; `study.png`; `study.md`. Invariant: arms differ in the z weight and the seed alone, and all of them end at the same
step; an interrupted study goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

import trimtab
from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import TwinConfig, read_preset
from recipes.twin_moe.console import say
from recipes.twin_moe.study_arm import Arm, steps_done, train_arms
from recipes.twin_moe.study_figure import draw_study
from recipes.twin_moe.study_plan import MINUTES, NUM_SEEDS, WEIGHTS, plan, stops
from recipes.twin_moe.study_reading import ArmResult, read_arm
from recipes.twin_moe.study_table import LEGEND, spread_lines, table_lines

Number = TypeVar("Number", int, float)


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
    for line in (*table_lines(found.arms, is_markdown=False), *spread_lines(found.arms), *_ended_early(found)):
        tell(line)
    tell(f"written: {out / 'study.json'}, study.md and study.png beside it")
    return found


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
        device=_device_name(device),
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
        *(f"* {line}" for line in (*spread_lines(found.arms), *_ended_early(found))),
        "",
        "![What each weight did](study.png)",
        "",
        ", ".join(f"{name} {version}" for name, version in found.versions.items()),
    ]
    (out / "study.md").write_text("\n".join(page) + "\n", encoding="ascii", errors="backslashreplace")


def _ended_early(found: Study) -> list[str]:
    return [f"{arm.folder} ended early: {arm.ended_by}" for arm in found.arms if arm.ended_by is not None]


def _device_name(device: str | None) -> str:
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return torch.cuda.get_device_name() if kind.startswith("cuda") else "CPU"


def main(arguments: list[str] | None = None) -> int:
    """Reads the command line and makes the study.

    Returns:
        0: done; 1: an arm ended early, or its log cannot be read; 2: usage; 130: interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m recipes.twin_moe.study", description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=sorted(WEIGHTS), default="tiny")
    parser.add_argument("--out", type=Path, metavar="DIR", default=Path("study"), help="folder; the same one goes on")
    parser.add_argument("--weights", type=_weight, nargs="+", metavar="W", help="z weights; by default the preset's")
    parser.add_argument(
        "--extra", type=_weight, nargs="+", metavar="W", default=[], help="weights outside of the sweep"
    )
    parser.add_argument("--seeds", type=_count, metavar="N", help="trainings of each weight")
    parser.add_argument("--steps", type=_count, metavar="N", help="end at this step of the preset's schedule")
    parser.add_argument(
        "--minutes", type=_minutes, metavar="M", help="all arms end at the same step when they are over"
    )
    parser.add_argument("--device", help="where to train; by default a GPU where there is one")
    parser.add_argument("--processes", type=_count, metavar="N", help="arms side by side; by default 2 on a CPU")
    options = parser.parse_args(arguments)
    weights = options.weights or WEIGHTS[options.preset]
    config = read_preset(options.preset)
    num_seeds = options.seeds or NUM_SEEDS[options.preset]
    on_cpu = _device_name(options.device) == "CPU"
    if on_cpu and options.device is None and MINUTES[options.preset] is not None:
        parser.error(f"--preset {options.preset} is for a GPU, and there is none; --device cpu trains it all the same")
    try:
        found = study(
            config,
            out=options.out,
            arms=plan(weights, options.extra, seeds=range(config.seed, config.seed + num_seeds)),
            num_steps=options.steps,
            minutes=options.minutes if options.minutes is not None else MINUTES[options.preset],
            device=options.device,
            num_processes=options.processes or (min(2, os.cpu_count() or 1) if on_cpu else 1),
        )
    except KeyboardInterrupt:
        say("interrupted: the same command goes on from the checkpoints")
        return 130
    except (ConfigError, trimtab.TrimtabError) as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 1 if _ended_early(found) else 0


def _count(text: str) -> int:
    return _number(int(text), text, expected="a whole number of 1 or more", least=1)


def _weight(text: str) -> float:
    return _number(float(text), text, expected="a finite number of 0 or more", least=0)


def _minutes(text: str) -> float:
    return _number(float(text), text, expected="minutes, a hundredth or more", least=0.01)


def _number(value: Number, text: str, *, expected: str, least: float) -> Number:
    if not least <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text}: expected {expected}")
    return value


if __name__ == "__main__":
    sys.exit(main())
