"""Trains a twin-population mixture of experts, in chunks, offline.

    python -m recipes.twin_moe.train --preset tiny --stop-at 200
    python -m recipes.twin_moe.train --preset tiny                  # goes on where that stopped

In goes a preset's name, out come in OUT the checkpoints, the log of the run, and a history that is only ever written
on. The same call again goes on from the newest verified checkpoint; `--fresh` begins the next segment.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

import trimtab
from recipes.strict_yaml import ConfigError
from recipes.twin_moe.config import TwinConfig, presets, read_preset
from recipes.twin_moe.console import Contained, Tell, best_in_words, reason, say, telling, wrapped
from recipes.twin_moe.engine import Engine
from recipes.twin_moe.folder import Hold
from recipes.twin_moe.history import NAME, History, newest_call
from recipes.twin_moe.segments import Start, after_interrupt, choose_start, left_behind, path_of
from recipes.twin_moe.settings import ASKABLE, Settings, asked_for, going_on, option
from recipes.twin_moe.telemetry import Telemetry
from trimtab.checkpoint import Checkpointer, CheckpointInfo, RoundTrip, saved_config

_SMALL_DIM: Final = 256
"""A model of less width is faster on one core of a CPU than on several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """What a call of `train` came to.

    Attributes:
        step: Steps that are behind.
        num_steps: Steps of this call; 0: there was nothing to train.
        segment: The number of the segment.
        checkpoint: What was saved at the end; None where that failed, or there was nothing to train.
        round_trip: What the round trip of that checkpoint came to; None where there was none.
    """

    step: int
    num_steps: int
    segment: int
    checkpoint: CheckpointInfo | None = None
    round_trip: RoundTrip | None = None


def train(
    config: TwinConfig,
    *,
    out: Path,
    stop_at: int | None = None,
    asked: Mapping[str, float] | None = None,
    resume_from: Path | None = None,
    base_checkpoint: Path | None = None,
    fresh: bool = False,
    device: str | torch.device | None = None,
    tell: Tell = say,
    make_engine: Callable[..., Engine] = Engine,
) -> Trained:
    """Trains a chunk: from the newest checkpoint, or from the beginning, up to a step.

    Args:
        config: The preset.
        out: The folder of checkpoints, log and history.
        stop_at: The last step; it is evaluated and saved, and the schedule is the same. None: the schedule's end.
        asked: Settings of `optim` that are asked for, some of `settings.ASKABLE`; the others are those of the
            checkpoint that is gone on from, or the preset's.
        resume_from: The checkpoint to go on from; None: the newest.
        base_checkpoint: A checkpoint whose weights to begin from, with the schedule anew.
        fresh: Whether to begin the next segment.
        device: Where to train; None: on the GPU where there is one.
        tell: What to do with a line for the person who waits; what it raises costs nothing.
        make_engine: What makes the engine: `Engine`, or a class that derives from it.

    Returns:
        What it came to.

    Raises:
        ConfigError: What was asked for makes no sense, or is not what the folder was trained with; or nothing can be
            saved there, or another process trains there.
        CheckpointError: The checkpoint to go on from is unhealthy and was not named, or none is whole.
    """
    tell = telling(tell)
    last = _last_step(config, stop_at)
    with Hold(out, tell=tell) as hold:
        start = choose_start(out, resume_from=resume_from, base_checkpoint=base_checkpoint, fresh=fresh)
        settings = _settings(config, start, asked or {})
        contained = Contained(tell=tell, step=lambda: start.step)
        for remark in start.remarks:
            tell(remark)
        if resume_from is None and not fresh:
            behind = contained(
                "reading of the history",
                lambda: left_behind(start, newest_call(out / NAME, segment=start.segment.number)),
            )
            if behind is not None:
                tell(behind)
        if start.resume is not None and start.step >= last:
            end = "the last" if stop_at is None else "--stop-at"
            tell(f"nothing to train: {path_of(start.resume)} is behind step {start.step}, and {end} is {last}")
            return Trained(step=start.step, num_steps=0, segment=start.segment.number)
        place = _device(device)
        hold.make_ready(start.segment.folder)
        with History(out / NAME, tell=tell) as history, make_engine(settings.config, out=out, device=place) as engine:
            for remark in settings.remarks:
                tell(remark)
            checkpointer = _begin(engine, start, settings, contained=contained, tell=tell)
            start.segment.folder.mkdir(exist_ok=True)  # before its first save: a call after a kill begins it again
            telemetry = Telemetry(engine, history, start=start, tell=tell)
            return _train(engine, checkpointer, telemetry, start=start, last=last, tell=tell)


def _last_step(config: TwinConfig, stop_at: int | None) -> int:
    if stop_at is None:
        return config.num_steps
    if not 1 <= stop_at <= config.num_steps:
        raise ConfigError(f"--stop-at: found {stop_at}, expected a step of the schedule, 1 to {config.num_steps}.")
    return stop_at


def _settings(config: TwinConfig, start: Start, asked: Mapping[str, float]) -> Settings:
    if start.resume is None:
        return Settings(asked_for(config, asked))
    path = path_of(start.resume)
    return going_on(config, saved_config(path), asked=asked, where=str(path))


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.empty(0, device=device).device
    except (RuntimeError, AssertionError) as error:  # the second where torch was built without CUDA
        raise ConfigError(f"--device {device}: torch cannot train there ({reason(error)}).") from error


def _begin(engine: Engine, start: Start, settings: Settings, *, contained: Contained, tell: Tell) -> Checkpointer:
    """Puts the engine to where the training starts; gives what saves the steps to come."""
    checkpointer = Checkpointer(start.segment.folder, keep=engine.config.keep)
    if start.resume is not None:
        path = path_of(start.resume)
        is_branch = path.resolve().parent != start.segment.folder.resolve()
        # The checkpoints of a branch are its own run's, which the checkpointer that has loaded would not know.
        loader = Checkpointer(path.parent) if is_branch else checkpointer
        resumed = engine.resume(loader, start.resume, lr=settings.new_lr)
        best = contained("telling of the best evaluation", lambda: best_in_words(resumed.best_eval))
        tell(f"resumes {path}: step {resumed.step}, {best or 'best eval loss unknown'}")
    elif start.weights is not None:
        path = path_of(start.weights)
        engine.load_weights(Checkpointer(path.parent), start.weights)
        tell(f"begins segment {start.segment.number} from the weights of {path}: the schedule begins anew")
    else:
        tell(f"begins segment {start.segment.number} in {start.segment.folder}")
    return checkpointer


def _train(
    engine: Engine, checkpointer: Checkpointer, telemetry: Telemetry, *, start: Start, last: int, tell: Tell
) -> Trained:
    config, first = engine.config, engine.step + 1
    saved: CheckpointInfo | None = None
    engine.model.train()
    telemetry.resume_clock()
    try:
        while engine.step < last:
            telemetry.take(engine.train_step())
            step, is_end = engine.step, engine.step == last
            evaluates, saves = is_end or step % config.eval_every == 0, is_end or step % config.save_every == 0
            tells = is_end or step == first or step % config.log_every == 0
            if evaluates or saves or tells:
                telemetry.flush(tells=tells)
            if evaluates:
                telemetry.evaluate()
            if saves:
                saved = engine.save(checkpointer, best_eval=telemetry.best_eval())
                telemetry.resume_clock()
    except KeyboardInterrupt:
        telemetry.flush(tells=True)
        raise
    checked = None if saved is None else telemetry.checked(saved)
    engine.close()
    where = "was not saved" if saved is None else f"is {start.segment.folder / saved.path.name}"
    tell(f"step {last} of {config.num_steps} is done; its checkpoint {where}")
    return Trained(
        step=engine.step,
        num_steps=last - first + 1,
        segment=start.segment.number,
        checkpoint=saved,
        round_trip=checked,
    )


def main(arguments: list[str] | None = None) -> int:
    """Reads the command line and trains.

    Returns:
        0: done; 1: the checkpoint at the end could not be saved, or none could be gone on from; 2: usage, or a folder
        that cannot be saved to; 130: interrupted.
    """
    options = _options(arguments)
    out = options.out or Path("runs") / f"twin-{options.preset}"
    try:
        config = read_preset(options.preset)
        if config.model.dim < _SMALL_DIM:
            torch.set_num_threads(1)
        if options.probe:
            from recipes.twin_moe.probe import probe  # here, so that a training does not load it

            probe(config, device=_device(options.device))
            return 0
        trained = train(
            config,
            out=out,
            stop_at=options.stop_at,
            asked={name: value for name in ASKABLE if (value := getattr(options, name)) is not None},
            resume_from=options.resume_from,
            base_checkpoint=options.base_ckpt,
            fresh=options.fresh,
            device=options.device,
        )
    except (ConfigError, trimtab.UsageError) as error:
        _complain(error)
        return 2
    except trimtab.TrimtabError as error:
        _complain(error)
        return 1
    except KeyboardInterrupt:
        say("interrupted" if options.probe else _after_interrupt(options, out))
        return 130
    return 1 if trained.num_steps and trained.checkpoint is None else 0


def _after_interrupt(options: argparse.Namespace, out: Path) -> str:
    """What to call next: it looks at the folder as the next call will."""
    given = [option(name) for name in ("resume_from", "base_ckpt", "fresh") if getattr(options, name)]
    same = f"without {' and '.join(given)}, the same call" if given else "the same call"
    try:
        start = choose_start(out)
        call = newest_call(out / NAME, segment=start.segment.number)
        last = _last_step(read_preset(options.preset), options.stop_at)
        return after_interrupt(start, call, last=last, same=same)
    except trimtab.TrimtabError as error:
        return f"interrupted: {same} is refused: {error}"
    except (Exception, KeyboardInterrupt):  # noqa: BLE001 - the folder cannot be read, or somebody does not wait for it
        return "interrupted"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m recipes.twin_moe.train", description=__doc__.partition("\n")[0])
    parser.add_argument("--preset", choices=presets(), required=True)
    parser.add_argument("--out", type=Path, metavar="DIR", help="default: runs/twin-PRESET")
    for name, meaning in ASKABLE.items():
        parser.add_argument(option(name), type=float, help=f"{meaning}; default: the checkpoint's, or the preset's")
    parser.add_argument("--stop-at", type=int, metavar="STEP", help="end here; the schedule stays what it is")
    parser.add_argument("--resume-from", type=Path, metavar="PATH", help="the checkpoint to go on from")
    parser.add_argument("--base-ckpt", type=Path, metavar="PATH", help="begin from its weights, with the schedule anew")
    parser.add_argument("--fresh", action="store_true", help="begin the next segment; nothing of older ones is touched")
    parser.add_argument(
        "--probe", action="store_true", help="measure tokens a second and peak memory, and leave no trace"
    )
    parser.add_argument("--device", help="as torch names it; default: cuda where there is one, else cpu")
    options = parser.parse_args(arguments)
    of_probe = {"preset", "probe", "device"}
    unused = [name for name, value in vars(options).items() if name not in of_probe and value not in (None, False)]
    if options.probe and unused:
        named = ", ".join(f"--{name.replace('_', '-')}" for name in unused)
        parser.error(f"--probe trains nothing that is kept, and takes no {named}: leave it out.")
    return options


def _complain(error: Exception) -> None:
    """Tells an error on standard error, where that is there to be written to."""
    try:
        sys.stderr.write(f"{wrapped(str(error))}\n")
    except Exception:  # noqa: BLE001 - the exit status says it too
        return


if __name__ == "__main__":
    sys.exit(main())
