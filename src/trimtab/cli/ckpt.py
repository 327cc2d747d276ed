"""`trimtab ckpt`: which checkpoints a folder holds, whether they are whole, and which one to go on from."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, TypeVar

import click
from rich.console import Console

from trimtab.cli.output import answer, json_option
from trimtab.cli.progress import stage_progress
from trimtab.errors import CheckpointError
from trimtab.report.checkpoints import ListedFolder, draw_folders, draw_picked, draw_remarks, draw_reports
from trimtab.report.console import make_console
from trimtab.report.written import say_written
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.names import scan
from trimtab.resume.select import pick
from trimtab.resume.verify import Progress, has_manifest, named, verify
from trimtab.text import plain

EXIT_DAMAGE: Final = 3

MAX_FOLDERS: Final = 1_000
"""Folders below the one that was named in which checkpoints are looked for."""

_Found = TypeVar("_Found")

_JSON_TAKEN: Final = "; - for standard output, where nothing else is then printed."


@click.group("ckpt")
def command() -> None:
    """Lists checkpoints, checks them byte by byte, and picks the one to go on from.

    Checkpoints of Trimtab's Checkpointer, of a Hugging Face Trainer (checkpoint-500), and single files (step_500.pt).
    No code in them is run, whoever they are from.

    \b
    Example:
        trimtab ckpt ls runs/a
        trimtab ckpt verify runs/a/step_500
        trimtab ckpt pick --healthy --json - runs/a
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace


@command.command("ls", short_help="List the checkpoints of a folder, and what else stands there.")
@click.argument("path", metavar="PATH")
@json_option(f"Write the list as strict JSON{_JSON_TAKEN}")
def ls(path: str, *, json_file: str | None) -> int:
    """Lists the checkpoints of a folder, newest first, and what else stands there; no payload is read.

    Of a folder that holds none itself those one level below are listed, folder by folder.

    \b
    Example:
        trimtab ckpt ls runs/a
        trimtab ckpt ls runs --json checkpoints.json
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    folders = [_listed(place) for place in _folders(Path(path))]

    def draw(console: Console) -> None:
        draw_folders(folders, console=console)
        _say_json(json_file, console=console)

    answer(lambda: {"version": 1, "folders": [folder.to_dict() for folder in folders]}, json_file=json_file, draw=draw)
    return 0


@command.command("verify", short_help="Read every byte, and say what is wrong.")
@click.argument("path", metavar="PATH")
@json_option(f"Write what was found as strict JSON{_JSON_TAKEN}")
def verify_command(path: str, *, json_file: str | None) -> int:
    """Reads every byte of a checkpoint, or of all that a folder holds, and says what is wrong.

    Exits with 3 if anything is. What a resume lacks is told too; that is no damage.

    \b
    Example:
        trimtab ckpt verify runs/a/step_500
        trimtab ckpt verify runs/a
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    places = _checkpoints(Path(path))
    reports = _with_progress(places, lambda progress: [verify(place, progress=progress) for place in places])

    def draw(console: Console) -> None:
        draw_reports(reports, console=console)
        _say_json(json_file, console=console)

    ok = all(report.ok for report in reports)
    answer(
        lambda: {"version": 1, "ok": ok, "checkpoints": [report.to_dict() for report in reports]},
        json_file=json_file,
        draw=draw,
    )
    return 0 if ok else EXIT_DAMAGE


@command.command("pick", short_help="Print the checkpoint to go on from.")
@click.argument("path", metavar="PATH")
@click.option(
    "--healthy",
    is_flag=True,
    help="The last one before the trouble: saved healthy, and before the first sign in the run's log, if one is there.",
)
@click.option("--run-id", metavar="ID", help="The run, where several saved into the folder. [default: that saved last]")
@json_option(f"Write the checkpoint, and why others were refused, as strict JSON{_JSON_TAKEN}")
def pick_command(path: str, *, healthy: bool, run_id: str | None, json_file: str | None) -> int:
    """Prints the checkpoint to go on from: the newest that is complete and byte for byte what was saved.

    The path alone is on standard output; why newer ones were refused is on standard error.

    \b
    Example:
        trimtab ckpt pick runs/a
        trimtab ckpt pick --healthy --json - runs/a
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    folder, notices = _one_folder(Path(path))
    newest = [name.path for name in scan(folder).found[:1]]
    info = _with_progress(newest, lambda progress: _pick(folder, healthy=healthy, run_id=run_id, progress=progress))
    info = dataclasses.replace(info, notices=(*notices, *info.notices))

    def draw(console: Console) -> None:
        draw_picked(info, console=console)
        remarks = make_console(sys.stderr)
        draw_remarks(info, console=remarks)
        _say_json(json_file, console=remarks)

    answer(info.to_dict, json_file=json_file, draw=draw)
    return 0


def _pick(folder: Path, *, healthy: bool, run_id: str | None, progress: Progress | None) -> CheckpointInfo:
    if not healthy:
        return pick(folder, run_id=run_id, progress=progress)
    # Imported here: the readers of logs are a fifth of the time that a pick without them takes.
    from trimtab.cli.healthy_checkpoint import pick_healthy

    return pick_healthy(folder, run_id=run_id, progress=progress)


def _say_json(json_file: str | None, *, console: Console) -> None:
    if json_file:
        say_written(console, json_file)


def _folders(place: Path) -> list[Path]:
    """The folders to look in: the one that was named, or those below it that hold checkpoints where it holds none.

    Raises:
        CheckpointError: It is none, or a checkpoint itself.
    """
    if _is_checkpoint(place):
        raise CheckpointError(
            f"{place} is a checkpoint itself. List the folder that holds it, or check it with: trimtab ckpt verify PATH"
        )
    if scan(place).found:
        return [place]
    with os.scandir(place) as entries:
        below = [place / entry.name for entry in itertools.islice(entries, MAX_FOLDERS) if entry.is_dir()]
    return sorted(filter(_holds_checkpoints, below)) or [place]


def _holds_checkpoints(folder: Path) -> bool:
    # One that may not be listed is somebody else's, and no reason to list none.
    with contextlib.suppress(CheckpointError):
        return bool(scan(folder).found)
    return False


def _listed(folder: Path) -> ListedFolder:
    return ListedFolder(folder, list_checkpoints(folder), scan(folder).ignored)


def _one_folder(place: Path) -> tuple[Path, list[str]]:
    """The folder to pick from, and what to say of it.

    Raises:
        CheckpointError: Several below the one that was named hold checkpoints, and it holds none itself.
    """
    if _is_checkpoint(place):
        return place, []  # said well by `pick`
    folders = _folders(place)
    if len(folders) > 1:
        names = ", ".join(plain(str(folder)) for folder in folders[:5]) + (", ..." if len(folders) > 5 else "")
        raise CheckpointError(
            f"{place} holds no checkpoint itself, and {len(folders)} folders in it do. Name one: {names}"
        )
    folder = folders[0]
    return folder, [
        f"{plain(str(place))} holds no checkpoint itself: {plain(str(folder))} does"
    ] if folder != place else []


def _checkpoints(place: Path) -> list[Path]:
    """The checkpoints behind a path: itself, or those in it.

    Raises:
        CheckpointError: There is none.
    """
    if _is_checkpoint(place) or not place.is_dir():
        return [place]
    found = [info.path for folder in _folders(place) for info in list_checkpoints(folder)]
    if not found:
        raise CheckpointError(
            f"{place} holds no checkpoint, expected step_500, checkpoint-500 or a file step_500.pt. Name another "
            "folder; trimtab ckpt ls PATH says what stands in one"
        )
    return found


def _is_checkpoint(place: Path) -> bool:
    return has_manifest(place) or (named(place) is not None and os.path.lexists(place))


def _with_progress(places: Sequence[Path], work: Callable[[Progress | None], _Found]) -> _Found:
    """Does a piece of work that reads checkpoints, with figures on a terminal where they are large."""
    size_bytes = sum(map(_size, places))
    with stage_progress(size_bytes) as show:
        if show is None:
            return work(None)
        say = show
        num_done = 0

        def read(num_bytes: int) -> None:
            nonlocal num_done
            num_done += num_bytes
            say("reading", min(num_done, size_bytes), size_bytes)

        return work(read)


def _size(place: Path) -> int:
    """Bytes of a file, or of all files below a folder; those that vanish meanwhile count nothing."""
    if place.is_file():
        return place.stat().st_size
    num_bytes = 0
    for base, _, files in os.walk(place):
        for file in files:
            with contextlib.suppress(OSError):
                num_bytes += Path(base, file).lstat().st_size
    return num_bytes
