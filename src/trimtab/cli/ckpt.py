"""`trimtab ckpt`: which checkpoints a folder holds, whether they are whole, and which one to go on from."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shlex
import sys
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from rich.console import Console

from trimtab.cli.checkpoint_places import checkpoints_at, find_places, one_folder
from trimtab.cli.output import answer, json_option, print_path
from trimtab.cli.progress import with_progress
from trimtab.errors import CheckpointError
from trimtab.log.folder import HEADER_NAME, RUNS_NAME
from trimtab.report.checkpoints import (
    ListedFolder,
    draw_folders,
    draw_passed_over,
    draw_remarks,
    draw_reports,
    reasons_to_json,
)
from trimtab.report.console import make_console
from trimtab.report.written import say_written
from trimtab.resume.checksum import Progress
from trimtab.resume.info import CheckpointInfo
from trimtab.resume.listing import list_checkpoints
from trimtab.resume.names import Entries
from trimtab.resume.select import pick
from trimtab.resume.verify import verify

EXIT_DAMAGE: Final = 3

EXIT_NEEDS_PICKLE: Final = 1
"""Nothing is damaged as far as it can be read, and something cannot be loaded without pickle."""

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
    places = find_places(Path(path))
    folders = [_listed(folder, entries) for folder, entries in places.folders.items()]

    def draw(console: Console) -> None:
        draw_folders(folders, passed_over=places.passed_over, console=console)
        _say_json(json_file, console=console)

    answer(
        lambda: {
            "version": 1,
            "folders": [folder.to_dict() for folder in folders],
            "ignored": reasons_to_json(places.passed_over),
        },
        json_file=json_file,
        draw=draw,
    )
    return 0


@command.command("verify", short_help="Read every byte, and say what is wrong.")
@click.argument("path", metavar="PATH")
@json_option(f"Write what was found as strict JSON{_JSON_TAKEN}")
def verify_command(path: str, *, json_file: str | None) -> int:
    """Reads every byte of a checkpoint, or of all that a folder holds, and says what is wrong.

    Exits with 3 if anything is damaged. What a resume lacks is told too; that is no damage, and nor is a file of
    somebody's own that nothing but pickle would load: those exit with 1, as there is no saying what is in them.

    \b
    Example:
        trimtab ckpt verify runs/a/step_500
        trimtab ckpt verify runs/a
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    places, passed_over = checkpoints_at(Path(path))
    reports = with_progress(places, lambda progress: [verify(place, progress=progress) for place in places])

    def draw(console: Console) -> None:
        draw_reports(reports, console=console)
        draw_passed_over(passed_over, console=console)
        _say_json(json_file, console=console)

    ok = all(report.ok for report in reports)
    answer(
        lambda: {
            "version": 1,
            "ok": ok,
            "checkpoints": [report.to_dict() for report in reports],
            "ignored": reasons_to_json(passed_over),
        },
        json_file=json_file,
        draw=draw,
    )
    if ok:
        return 0
    return EXIT_NEEDS_PICKLE if all(report.ok or report.needs_pickle for report in reports) else EXIT_DAMAGE


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

    PATH is the folder that holds them, or a run, by its folder or its id, whose output folder is then looked into;
    also runs/a/trimtab, the folder of the runs. The path alone is on standard output, byte for byte; why newer ones
    were refused is on standard error, and a warning where the one that is printed is not healthy. In the JSON
    "path_hex" has the bytes of a path that is not UTF-8, and "last_healthy" what --healthy prints.

    \b
    Example:
        trimtab ckpt pick runs/a
        trimtab ckpt pick --healthy --json - runs/a
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    place, of_run = _place_to_pick_from(path)
    folder, entries, notices = one_folder(place)
    run_id = run_id if run_id is not None else of_run
    newest = [name.path for name in entries.found[:1]]

    def choose(progress: Progress | None) -> CheckpointInfo:
        if healthy:
            return _pick_healthy(folder, run_id=run_id, entries=entries, progress=progress)
        return pick(folder, run_id=run_id, entries=entries, progress=progress)

    info = with_progress(newest, choose)
    info = dataclasses.replace(info, notices=(*notices, *info.notices))
    last_healthy = _last_healthy(info, folder, run_id=run_id, entries=entries)

    def draw(_: Console) -> None:
        print_path(info.path)
        remarks = make_console(sys.stderr)
        warning = _warning(last_healthy, folder, run_id=run_id) if info.healthy is False else None
        draw_remarks(info, last_healthy=warning, console=remarks)
        _say_json(json_file, console=remarks)

    answer(lambda: _picked_to_json(info, last_healthy), json_file=json_file, draw=draw)
    return 0


def _place_to_pick_from(path: str) -> tuple[Path, str | None]:
    """The folder of checkpoints that is meant, and the run where it is named by that."""
    place = Path(path)
    is_runs = place.is_dir() and place.absolute().name == RUNS_NAME
    if place.is_dir() and not is_runs and not os.path.lexists(place / HEADER_NAME):
        return place, None
    # Imported here, as below.
    from trimtab.cli.checkpoints_of_run import place_of_run, place_of_runs

    found = (place_of_runs(place) if is_runs else None) or place_of_run(path)
    if isinstance(found, Path):
        return found, None
    return (place, None) if found is None else (found.folder, found.run_id)


def _pick_healthy(
    folder: Path, *, run_id: str | None, entries: Entries, progress: Progress | None = None
) -> CheckpointInfo:
    # Imported here: the readers of logs are a fifth of the time that a pick without them takes.
    from trimtab.gates.pick_healthy import pick_healthy

    return pick_healthy(folder, run_id=run_id, entries=entries, progress=progress)


def _last_healthy(info: CheckpointInfo, folder: Path, *, run_id: str | None, entries: Entries) -> Path | None:
    """The one that `--healthy` prints, where the one that was picked is not healthy; else that one itself, if it is."""
    if info.healthy is False:
        with contextlib.suppress(CheckpointError):
            return _pick_healthy(folder, run_id=run_id, entries=entries).path
    return info.path if info.healthy else None


def _warning(last_healthy: Path | None, folder: Path, *, run_id: str | None) -> str:
    """What a user should do about a choice that is not healthy."""
    if last_healthy is None:
        return "this one is not healthy, a load of it is refused, and no other one is known to be healthy"
    of_run = ["--run-id", run_id] if run_id is not None else []
    command = shlex.join(["trimtab", "ckpt", "pick", "--healthy", *of_run, str(folder)])
    return (
        f"this one is not healthy, and a load of it is refused. The last healthy one is {last_healthy.name}; for its "
        f"path: {command}"
    )


def _picked_to_json(info: CheckpointInfo, last_healthy: Path | None) -> dict[str, Any]:
    document = info.to_dict()
    document["last_healthy"] = None if last_healthy is None else str(last_healthy)
    # JSON has no spelling for bytes that are no text: in "path" they are escaped, and no program could undo that.
    raw = os.fsencode(info.path)
    document["path_hex"] = raw.hex() if raw.decode("utf-8", "replace").encode() != raw else None
    return document


def _say_json(json_file: str | None, *, console: Console) -> None:
    if json_file:
        say_written(console, json_file)


def _listed(folder: Path, entries: Entries) -> ListedFolder:
    return ListedFolder(folder, list_checkpoints(folder, entries=entries), entries.ignored, entries.num_ignored)
