"""`trimtab prove`: whether the guard works in a training loop as the user has wired it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console

from trimtab.cli.output import STANDARD_OUTPUT, answer, json_option, output_folder
from trimtab.errors import MissingExtraError
from trimtab.proven import CaseResult
from trimtab.report.console import make_console
from trimtab.report.lines import say, tell
from trimtab.report.proof import case_line, render
from trimtab.report.written import say_written
from trimtab.text import plain

EXIT_NOT_PROVEN = 3

_PROCESSES = {"1": (1,), "2": (2,), "both": (1, 2)}


@click.command("prove")
@click.argument("factory", metavar="MODULE:FACTORY")
@click.option(
    "--processes",
    type=click.Choice(tuple(_PROCESSES)),
    default="both",
    show_default=True,
    help="In one process, in two gloo ranks, or in both.",
)
@click.option(
    "--write-tests",
    "tests_folder",
    metavar="DIR",
    help="Leave the proof in DIR as pytest files, with tests of structure and smoke where it lacks them.",
)
@json_option("Write every case as strict JSON; - for standard output, where nothing else is then printed.")
def command(factory: str, *, processes: str, tests_folder: str | None, json_file: str | None) -> int:
    """Runs your own training loop under planted faults, and says of each whether it was kept out of the update.

    FACTORY builds the loop at small size: build(guard) gives a trimtab.proof.Loop, without a guard, with one that is
    off, or with one that is on. The current folder is on the import path. Exit codes: 0 all proven, 3 a case failed
    (named, with the two numbers and the mistake), 1 the factory cannot be loaded or built, 2 usage.

    \b
    Example:
        trimtab prove recipes.sft.engine:build --json proof.json
        trimtab prove my_loop:build --processes 1 --write-tests tests
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    folder = output_folder(tests_folder) if tests_folder is not None else None
    try:
        # Imported here: it imports torch, which a page of help can do without.
        from trimtab.proof.factory import check_name
        from trimtab.proof.proving import case_names, prove
        from trimtab.proof.written_tests import write_tests
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("trimtab prove trains, and needs torch: pip install 'trimtab[torch]'") from error

    told = make_console(sys.stderr)
    num_cases, judged = len(case_names(processes=_PROCESSES[processes])), 0

    def progress(case: CaseResult) -> None:
        nonlocal judged
        judged += 1
        # A loop with an audit of its weights has one case more, which is known once it is built.
        say(told, case_line(case, judged=judged, num_cases=max(num_cases, judged)))

    check_name(factory)
    say(told, f"{num_cases} cases of {plain(factory)}")
    proof = prove(factory, processes=_PROCESSES[processes], progress=progress)
    written = write_tests(folder, factory=factory, processes=_PROCESSES[processes]) if folder is not None else None
    if written is not None and json_file == STANDARD_OUTPUT:
        _say_tests(told, written=written.written, left=written.left)

    def draw(console: Console) -> None:
        render(proof, console=console)
        if json_file or written is not None:
            say(console, "")
        if json_file:
            say_written(console, json_file)
        if written is not None:
            _say_tests(console, written=written.written, left=written.left)

    answer(proof.to_dict, json_file=json_file, draw=draw)
    return 0 if proof.proven else EXIT_NOT_PROVEN


def _say_tests(console: Console, *, written: Sequence[Path], left: Sequence[Path]) -> None:
    for path in written:
        say_written(console, str(path))
    for path in left:
        tell(console, f"Left {plain(str(path))} as it was: it is there already")
