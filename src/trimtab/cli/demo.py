"""`trimtab demo`: a training run with poisoned rows, and what the log says of them."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from trimtab.cli.output import STANDARD_OUTPUT, json_option, write_output
from trimtab.demo.console import Console
from trimtab.demo.main import run_demo
from trimtab.report import as_json

EXIT_NOT_AS_IT_MUST = 1
EXIT_INTERRUPTED = 130


@click.command("demo")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("trimtab-demo"),
    show_default=True,
    metavar="DIR",
    help="Folder to leave the log in: absent, empty, or a former demo's.",
)
@click.option(
    "--seed",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    metavar="N",
    help="Decides which rows are poisoned, and the model's start.",
)
@click.option("--no-guard", is_flag=True, help="Leave the guard off and see the run die.")
@json_option("Write what came of it as strict JSON; - for standard output, where nothing else is then printed.")
def command(*, out: Path, seed: int, no_guard: bool, json_file: str | None) -> int:
    """Fine-tunes a small language model on poisoned data, and names the rows from the log.

    Takes about a minute on one CPU core, needs no network, and leaves in DIR the log (trimtab/RUN_ID/), planted.json
    (which rows were poisoned), rows.jsonl (all rows, for rewind --data) and report.json (what rewind says). The data
    are Python's own docstrings, the trainer is Hugging Face's. Needs: pip install 'trimtab[demo]'

    \b
    Example:
        trimtab demo --seed 3
        trimtab demo --seed 3 --no-guard --out died
    """  # noqa: D301 - click keeps the lines of a paragraph that begins with a real backspace
    # The story goes to standard error where standard output is for the document alone.
    console = Console(sys.stderr if json_file == STANDARD_OUTPUT else sys.stdout)
    try:
        result = run_demo(out, seed=seed, guard=not no_guard, console=console)
    except KeyboardInterrupt:
        console.close_progress()
        click.echo("Interrupted: what this demo had made was removed again.", err=True)
        return EXIT_INTERRUPTED
    if json_file:
        write_output(json_file, as_json.dumps_document(result.to_dict()))
        if json_file != STANDARD_OUTPUT:
            click.echo(f"Wrote {json_file}")
    for complaint in result.complaints:
        click.echo(f"Error: {complaint}", err=True)
    return 0 if result.passed else EXIT_NOT_AS_IT_MUST
