"""`trimtab rewind --row ROW`: one row through a run, and all of it that is at hand."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console

from trimtab.analysis.previews import HOW_TO_PART, SEVERAL_DATASETS, find_rows, preview, row_repetition
from trimtab.analysis.row_history import find_row, row_history
from trimtab.cli.output import answer
from trimtab.dataset.data import Data
from trimtab.dataset.lookup import FoundRows
from trimtab.dataset.row_text import read_row
from trimtab.errors import LogError
from trimtab.log.reader import Log
from trimtab.report.lines import say
from trimtab.report.row import render_row
from trimtab.report.written import say_written


def show_row(name: str, *, log: Log, data: Sequence[Data] | None, with_text: bool, json_file: str | None) -> None:
    """Tells where a row occurred and what it says, on standard output and as JSON.

    Args:
        name: Its number, or the user's own id of it.
        log: The run.
        data: Rows at hand; None: the files that the log names, if they are still there.
        with_text: False: the row is not looked up.
        json_file: Where to write it as JSON; None: nowhere.

    Raises:
        LogError: The log holds no rows, or this one is neither in it nor in the data.
    """
    if not log.has_rows:
        raise LogError(
            f"{log.path}: this log holds no rows, only steps: no row can be shown. Leave --row away, or attach Trimtab "
            "to a run to record its rows."
        )
    row = find_row(log, name)
    history = row_history(log, row=row)
    if log.restarts():
        raise LogError(f"{log.path}: {SEVERAL_DATASETS}. First {HOW_TO_PART}, then name one of them.")
    found = find_rows([row], log=log, data=data) if with_text else FoundRows()
    if not history.count and row not in found.rows:
        raise LogError(f"{log.path}: row {row} occurs nowhere in this log.")
    text = read_row(found.rows[row]) if row in found.rows else None
    repeated = row_repetition(text) if text is not None else None
    repetition = repeated.score if repeated is not None else None
    document = {
        "version": 1,
        "run_id": log.header.run_id,
        "source": log.path,
        **history.to_dict(),
        "repetition": repetition,
        "preview": preview(text, repeated=repeated) if text is not None and repeated is not None else None,
        "preview_withheld": found.withheld,
    }

    def draw(console: Console) -> None:
        render_row(
            history, text=text, repetition=repetition, source=found.source, withheld=found.withheld, console=console
        )
        if json_file:
            say(console, "")
            say_written(console, json_file)

    answer(lambda: document, json_file=json_file, draw=draw)
