"""The weight study: the same training with z weights over four decades, and what the watch says of each.

    python -m recipes.twin_moe.study --preset tiny --out study/
    python -m recipes.twin_moe.study --preset local140a50 --out study/ --device cuda --minutes 5

Enters: a command line. Leaves: a study in its folder, and an exit status. Invariant: what cannot be meant is refused
before anything is trained.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
from pathlib import Path
from typing import TypeVar

import trimtab
from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import presets, read_preset
from recipes.twin_moe.console import say
from recipes.twin_moe.study.plan import defaults_of, plan
from recipes.twin_moe.study.sweep import device_name, study

Number = TypeVar("Number", int, float)


def main(arguments: list[str] | None = None) -> int:
    """Reads the command line and makes the study.

    Returns:
        0: done; 1: an arm ended early, or its log cannot be read; 2: usage; 130: interrupted.
    """
    parser = argparse.ArgumentParser(prog="python -m recipes.twin_moe.study", description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=presets(), default="tiny")
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
    defaults = defaults_of(options.preset)
    on_cpu = device_name(options.device) == "CPU"
    if on_cpu and options.device is None and defaults.minutes is not None:
        parser.error(f"--preset {options.preset} is for a GPU, and there is none; --device cpu trains it all the same")
    try:
        config = read_preset(options.preset)
        found = study(
            config,
            out=options.out,
            arms=plan(
                options.weights or defaults.weights,
                options.extra,
                seeds=range(config.seed, config.seed + (options.seeds or defaults.num_seeds)),
            ),
            num_steps=options.steps,
            minutes=options.minutes if options.minutes is not None else defaults.minutes,
            device=options.device,
            num_processes=options.processes or (min(2, os.cpu_count() or 1) if on_cpu else 1),
        )
    except KeyboardInterrupt:
        say("interrupted: the same command goes on from the checkpoints")
        return 130
    except (ConfigError, trimtab.TrimtabError) as error:
        sys.stderr.write(f"{error}\n")
        return 2 if isinstance(error, ConfigError) else 1
    return 1 if found.ended_early else 0


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
