"""`trimtab compare`: whether two runs are the same to the last bit, and where they part."""

from __future__ import annotations

import click
from rich.console import Console

from trimtab.analysis.same_bits import compare_logs_bits, open_named
from trimtab.cli.output import answer, json_option, refuse_logs
from trimtab.cli.progress import stage_progress
from trimtab.report.differences import render
from trimtab.report.lines import say
from trimtab.report.written import say_written

EXIT_DIFFERENT = 3


@click.command("compare")
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@json_option("Write what differs, and where first, as strict JSON; - for standard output.")
def command(a: str, b: str, *, json_file: str | None) -> int:
    """Compares two runs bit by bit, and names the first step and column at which they part.

    A and B are runs as for rewind: a run id or its beginning, a run folder, a folder that holds runs, or a log of
    another tool. Of each step: ranks, loss, tokens, gradient norm, learning rate, outcome, what was skipped; of each
    row: rank, micro-batch, row, loss, tokens, verdict. NaN equals NaN; wall times and attempts are left out; what was
    trained twice counts as it was trained last. Exit codes: 0 the same, 3 different, 1 nothing readable, 2 usage.

    \b
    Example:
        trimtab compare runs/uninterrupted runs/resumed
        trimtab compare runs/a runs/b --json - | jq .first
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    pair = [open_named(name) for name in (a, b)]
    refuse_logs({"--json": json_file}, places=[named.log.path for named in pair])
    with stage_progress(sum(named.log.size_bytes for named in pair)) as show:
        found = compare_logs_bits(
            *pair,
            progress=(lambda num_bytes, num_all: show("comparing", num_bytes, num_all)) if show else None,
        )

    def draw(console: Console) -> None:
        render(found, console=console)
        if json_file:
            say(console, "")
            say_written(console, json_file)

    answer(found.to_dict, json_file=json_file, draw=draw)
    return 0 if found.same else EXIT_DIFFERENT
