"""The command line: `trimtab VERB`, one module a verb, imported only when its verb runs.

Enters: arguments. Leaves: an exit code: 0 done, 1 nothing readable, 2 usage, 3 findings where a verdict was asked for.
Invariant: what goes wrong is one line on standard error that begins with "Error:", never a traceback.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from typing import Any, NamedTuple, NoReturn, TextIO

import click

from trimtab import __version__
from trimtab.errors import TrimtabError, UsageError

EXIT_NOTHING_READABLE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class _Verb(NamedTuple):
    module: str
    short_help: str


VERBS = {
    "calibrate": _Verb("trimtab.cli.calibrate", "Replay a log under many settings of the guard, and choose one."),
    "compare": _Verb(
        "trimtab.cli.compare", "Compare two runs bit by bit: the first step and column at which they part."
    ),
    "ckpt": _Verb("trimtab.cli.ckpt", "List checkpoints, check them byte by byte, pick the one to go on from."),
    "convert": _Verb("trimtab.cli.convert", "Turn a log into a rewind.jsonl, or another tool's log into a run folder."),
    "demo": _Verb("trimtab.cli.demo", "Fine-tune a small model, poison a few rows, and see them named."),
    "gate": _Verb("trimtab.cli.gate", "Judge the chunk that a run ended with: may the next one start?"),
    "prove": _Verb("trimtab.cli.prove", "Run your own training loop under planted faults: does the guard work?"),
    "rewind": _Verb("trimtab.cli.rewind", "Name the dataset rows behind a loss spike, from the log alone."),
    "runs": _Verb("trimtab.cli.runs", "List the runs recorded on this machine."),
    "skills": _Verb("trimtab.cli.skills", "List the tasks written for coding agents, and install them."),
}
"""Every verb; its module holds the click command as `command`. The help page is written from here, without imports."""


class _Trimtab(click.Group):
    """Imports a verb's module when the verb is used, and turns what goes wrong into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = VERBS.get(cmd_name)
        if verb is None:
            return None
        command = importlib.import_module(verb.module).command
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in VERBS and not args[0].startswith("-"):
            ctx.fail(_no_such_verb(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, verb.short_help) for name, verb in VERBS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the verb; a reader of its output that has seen enough, `head` for one, changes no exit code."""
        code: Any = 0
        with contextlib.suppress(BrokenPipeError):
            code = super().invoke(ctx)
            # Here, and not when Python exits: an error can still be told.
            sys.stdout.flush()
        return code

    def main(self, *args: Any, **settings: Any) -> NoReturn:
        """Runs a verb and exits; arguments as click's own `main` takes them."""
        _open_closed_streams()
        settings["standalone_mode"] = False
        code = self._run(*args, **settings)
        for stream in (sys.stdout, sys.stderr):
            _let_go(stream)
        sys.exit(code)

    def _run(self, *args: Any, **settings: Any) -> int:
        try:
            code = super().main(*args, **settings)
        except SystemExit:
            # Click's way out where the reader of a help page has seen enough; nothing else comes this way.
            return 0
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return EXIT_USAGE
        except click.ClickException as error:
            return _fail(error.format_message(), code=error.exit_code)
        except UsageError as error:
            return _fail(str(error), code=EXIT_USAGE)
        except TrimtabError as error:
            return _fail(str(error), code=EXIT_NOTHING_READABLE)
        except (click.Abort, KeyboardInterrupt):
            return _fail("interrupted.", code=EXIT_INTERRUPTED)
        except OSError as error:
            return _fail(f"{error}. Check the path, its permissions and the room left on the disk.", code=1)
        return code if isinstance(code, int) else 0


def _no_such_verb(name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, VERBS, n=1)
    advice = f"Did you mean {close[0]}?" if close else f"Use one of {', '.join(VERBS)}. A log is for trimtab rewind."
    return f"there is no verb {name!r}. {advice}"


def _fail(message: str, *, code: int) -> int:
    from trimtab.text import plain

    # Nobody may be there to be told: the exit code still says it.
    with contextlib.suppress(OSError):
        click.echo(f"Error: {plain(' '.join(message.split()))}", err=True)
    return code


def _open_closed_streams() -> None:
    """Leads streams that the caller closed (`>&-`) to the null device.

    Else Python has None in their place, and the next file that is opened, a log for one, gets their number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free, and that is this one
    if sys.stdout is None:
        sys.stdout = _on_number(1)
    if sys.stderr is None:
        sys.stderr = _on_number(2)


def _on_number(number: int) -> TextIO:
    return open(number, "w", encoding="utf-8", closefd=False)


def _let_go(stream: TextIO) -> None:
    """Hands over what a stream still holds; what nobody takes is dropped, else Python would complain when it exits."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@click.group(cls=_Trimtab, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="trimtab", message="%(prog)s %(version)s")
def main() -> None:
    """Keeps a training run on course, and explains it when it leaves it.

    \b
    Example:
        trimtab rewind runs/a          which rows were behind the spike?

    \b
    Exit codes: 0 done, 1 nothing readable, 2 usage, 3 findings where a verdict was asked for.
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
