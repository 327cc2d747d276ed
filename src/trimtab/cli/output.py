"""How a verb answers a program and a person, and where it may write: a file, or standard output.

Invariant: a file is there whole or not at all, it lies below the current folder, and nothing that a run left behind is
written over: no log, no link, no folder, no binary file. An older report, or any other text, is replaced, because a
command that is run again must give its answer again.
"""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console

from trimtab.disk import write_file
from trimtab.errors import UsageError
from trimtab.log import foreign
from trimtab.log.folder import HEADER_NAME, RUNS_NAME, is_run_folder
from trimtab.report import as_json
from trimtab.report.console import make_console
from trimtab.text import plain

STANDARD_OUTPUT = "-"

_Command = TypeVar("_Command", bound=Callable[..., Any])


class OutputFile(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.3 on, for checkers only
    """A file that a verb may write: `-`, or a path below the current folder at which nothing would be lost.

    Args:
        allow_standard_output: Whether `-` means standard output.
    """

    name = "file"

    def __init__(self, *, allow_standard_output: bool) -> None:
        self._allow_standard_output = allow_standard_output

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Checks a path before any work is done for it."""
        if value == STANDARD_OUTPUT:
            if not self._allow_standard_output:
                self.fail("- is standard output, which this option does not write to. Name a file.", param, ctx)
            if sys.__stdout__ is None:
                self.fail("- is standard output, which is closed. Name a file, or open it.", param, ctx)
            return value
        if "\0" in value:
            self.fail(f"{value!r} cannot be a file name.", param, ctx)
        try:
            wrong = _wrong_with(Path(value))
        except (OSError, ValueError) as error:
            wrong = f"cannot be a file name here ({error})."
        if wrong is not None:
            self.fail(f"{value} {wrong}", param, ctx)
        return value


def json_option(help_text: str) -> Callable[[_Command], _Command]:
    """The option `--json FILE` of a verb that answers, its value in `json_file`.

    Args:
        help_text: What is written.
    """
    return click.option(
        "--json", "json_file", type=OutputFile(allow_standard_output=True), metavar="FILE", help=help_text
    )


def answer(document: Callable[[], dict[str, Any]], *, json_file: str | None, draw: Callable[[Console], None]) -> None:
    """Gives an answer to a program, where one asked for it, and to a person, unless only the program is to have it.

    Args:
        document: Makes what a program gets, JSON-ready.
        json_file: What `--json` was given.
        draw: Draws what a person gets, on a console on standard output.

    Raises:
        OSError: The file cannot be written; what stood there before still does.
    """
    if json_file:
        write_output(json_file, as_json.dumps_document(document()))
    if json_file != STANDARD_OUTPUT:
        # Last: whoever reads this may stop in the middle, and still gets the file and the verdict.
        with contextlib.suppress(BrokenPipeError):
            draw(make_console(sys.stdout))


def refuse_one_file_for_two(destinations: Mapping[str, str | None]) -> None:
    """Refuses two options that write the same file with `UsageError`: the later one would win, and say nothing.

    Args:
        destinations: What each option of a call was given; None, and standard output, clash with nothing.
    """
    taken: dict[Path, str] = {}
    for option, value in destinations.items():
        if value is None or value == STANDARD_OUTPUT:
            continue
        place = Path(value)
        other = next((option for known, option in taken.items() if _is_same_file(known, place)), None)
        if other is not None:
            raise UsageError(f"{other} and {option} would both write {value}. Give each a file of its own.")
        taken[place] = option


def refuse_logs(destinations: Mapping[str, str | None], *, places: Sequence[str]) -> None:
    """Refuses to write what is being read with `UsageError`: a log itself, or anything in a run folder.

    Args:
        destinations: What each option of a call was given.
        places: The logs being read: run folders, journals, other files.
    """
    for option, value in destinations.items():
        if value is None or value == STANDARD_OUTPUT:
            continue
        path = Path(value)
        for place in map(Path, places):
            folder = place if place.is_dir() else place.parent
            is_run = is_run_folder(folder)
            files = [place] if place.is_file() else []
            if is_run and path.resolve().is_relative_to(folder.resolve()):
                raise UsageError(
                    f"{option} {value} lies in the run folder that is being read, {folder}; nothing was written. "
                    "Change to a folder of your own, and name a file there."
                )
            if is_run:
                files += sorted(folder.rglob("*"))
            read = next((file for file in files if _is_same_file(file, path)), None)
            if read is not None:
                raise UsageError(
                    f"{option} {value} is {read}, which is being read; nothing was written. Name another file."
                )


def write_output(destination: str, text: str) -> None:
    """Writes a text to a checked destination: to standard output, or to a file, whole or not at all.

    Raises:
        OSError: The file cannot be written; what stood there before still does.
    """
    if destination == STANDARD_OUTPUT:
        # Who reads it may have seen enough: the verdict stands all the same.
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.write(text)
        return
    with write_file(Path(destination)) as file:
        file.write(text.encode("utf-8"))


def print_path(path: Path) -> None:
    """Prints a path alone on a line: its own bytes for a program, as `$(trimtab ckpt pick runs/a)` needs them.

    On a terminal it is escaped where a character in it would act, or has no place in the terminal's encoding.
    """
    text = os.fspath(path)
    if sys.stdout.isatty():
        shown = text.isprintable() and text.encode(sys.stdout.encoding, "ignore").decode(sys.stdout.encoding) == text
        sys.stdout.write(f"{text if shown else plain(text)}\n")
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(text) + b"\n")
    sys.stdout.buffer.flush()


def log_file(value: str) -> Path:
    """A path at which a log may be written if nothing stands there: below the current folder, in no run folder.

    Raises:
        UsageError: It is none; says why.
    """
    path = _as_path(value)
    wrong = _wrong_with_place(path)
    if wrong is not None:
        raise UsageError(f"{value} {wrong}")
    return path


def output_folder(value: str) -> Path:
    """A folder, there or not, in which run folders may be written: below the current folder, and no run itself.

    Raises:
        UsageError: It is none; says why.
    """
    path = _as_path(value)
    wrong = _wrong_with_folder(path)
    if wrong is not None:
        raise UsageError(f"{value} {wrong}")
    return path


def _as_path(value: str) -> Path:
    if not value or "\0" in value:
        raise UsageError(f"{value!r} cannot be the name of a file or folder here.")
    return Path(value)


def _wrong_with(path: Path) -> str | None:
    """Why a path is not written to, as the end of a sentence that begins with it; None if it may be."""
    wrong = _wrong_with_place(path)
    if wrong is not None:
        return wrong
    if _has_the_name_of_a_log(path):
        return "has the name of a log, and would be taken for one. Choose another name."
    return _wrong_with_what_stands_at(path) if path.exists() else None


def _wrong_with_place(path: Path) -> str | None:
    """Why no file is written at a path, whatever it is called and whatever stands there; None if it may be."""
    folder = path.parent.resolve()
    if path.is_symlink():
        return "is a symbolic link, and would be written through. Name a plain file."
    if path.is_dir():
        return "is a folder. Name a file in it."
    if not folder.is_relative_to(Path.cwd().resolve()):
        return f"is outside the current folder {Path.cwd().resolve()}. Name a file below it."
    if not folder.is_dir():
        return f"lies in the folder {path.parent}, which does not exist. Make it first."
    if _is_in_run_folder(folder):
        return "lies in a run folder, where nothing but the run itself is written. Name a file elsewhere."
    return None


def _wrong_with_folder(path: Path) -> str | None:
    """Why no run folders are written below a path, as the end of a sentence; None if they may be."""
    runs = path / RUNS_NAME
    if path.is_symlink() or runs.is_symlink():
        return "is a symbolic link, or holds one for its runs, and would be written through. Name a plain folder."
    if not path.resolve().is_relative_to(Path.cwd().resolve()):
        return f"is outside the current folder {Path.cwd().resolve()}. Name a folder below it."
    if path.exists() and not path.is_dir():
        return "is a file. Name a folder: the run gets a folder of its own in it."
    if not path.parent.is_dir():
        return f"lies in the folder {path.parent}, which does not exist. Make it first."
    if _is_in_run_folder(path.resolve()):
        return "is, or lies in, a run folder, where nothing but the run itself is written. Name another folder."
    return None


def _is_in_run_folder(folder: Path) -> bool:
    return any(place.parent.name == RUNS_NAME and is_run_folder(place) for place in (folder, *folder.parents))


def _has_the_name_of_a_log(path: Path) -> bool:
    # Some file systems take RUN.JSON for run.json.
    name = path.name.casefold()
    return name.startswith((HEADER_NAME, *foreign.file_names())) or name.endswith(".journal")


def _wrong_with_what_stands_at(path: Path) -> str | None:
    if not stat.S_ISREG(path.stat().st_mode):
        return "is no plain file. Name one."
    head = foreign.read_head(path)
    # Tensors, tables and databases all hold a 0 byte by the end of a head, and no text does.
    if b"\0" in head:
        return "exists and is a binary file, no report; nothing was overwritten. Name another file, or remove it."
    if foreign.format_of(path, head) is not None:
        return "exists and is the log of a run; nothing was overwritten. Name another file."
    return None


def _is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file, by links of either kind, or would if it were there."""
    if one.resolve() == other.resolve():
        return True
    return one.exists() and other.exists() and one.samefile(other)
