"""The lines that a person reads while it trains.

In go rows of the history and facts of a run, out come lines of plain ASCII. Invariant: telling a line raises nothing,
whatever the console is: in another encoding, full, closed, or a pipe that nobody reads any more.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

Tell = Callable[[str], None]
"""What to do with a line."""


def plain(text: str) -> str:
    """The text in printable ASCII on one line, which every console and every encoding can show; all else escaped."""
    return "".join(char if " " <= char <= "~" else ascii(char)[1:-1] for char in text)


def say(line: str) -> None:
    """Prints a line on standard output, and shows it at once; where that cannot be, nothing happens."""
    try:
        sys.stdout.write(f"{plain(line)}\n")
        sys.stdout.flush()
    except OSError:
        _leave_standard_output()
    except Exception:  # noqa: BLE001 - closed, or none at all: a line never costs a save
        return


def telling(tell: Tell) -> Tell:
    """Tells lines by a function of the caller's, which may raise: that is said on standard error, once."""
    failures: list[str] = []

    def told(line: str) -> None:
        try:
            tell(plain(line))
        except Exception as error:  # noqa: BLE001 - a line never costs a save
            if not failures:
                failures.append(reason(error))
                with contextlib.suppress(Exception):
                    sys.stderr.write(f"A line could not be told ({failures[0]}): training goes on.\n")

    return told


def reason(error: BaseException) -> str:
    """An error in one line."""
    text = plain(str(error))
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def step_line(row: Mapping[str, Any]) -> str:
    """A step, of a row of the history."""
    skipped = f"  left out {row['num_skipped_micros']}" if row["num_skipped_micros"] else ""
    became = f"  {row['reason']}" if row["reason"] != "stepped" else ""
    return (
        f"step {row['step']:5d}  loss {_number(row['loss'], '.4f')}  ce {_number(row['ce'], '.4f')}  "
        f"lbl {_number(row['lbl'], '.3f')}  z {_number(row['z'], '.2f')}  xpop {_number(row['xpop'], '.4f')}  "
        f"lr {_number(row['lr'], '.2e')}  norm {_number(row['grad_norm'], '.2f')}  "
        f"{_number(row['tokens_per_s'], ',.0f')} tok/s{skipped}{became}"
    )


def eval_line(row: Mapping[str, Any]) -> str:
    """An evaluation, of a row of the history."""
    shares = " ".join(_number(share, ".2f") for share in row["population_shares"] or ()) or "-"
    return (
        f"eval step {row['step']}  ce {_number(row['eval_loss'], '.4f')} "
        f"(best {_number(row['best_eval'], '.4f')} at {_number(row['best_eval_step'], 'd')}, "
        f"streak {_number(row['regress_streak'], 'd')})  z {_number(row['z'], '.2f')}  populations {shares}  "
        f"dead {_number(row['dead_fraction'], '.2f')}  clipped {_number(row['clip_fraction'], '.2f')}  "
        f"{_number(row['tokens_per_s'], ',.0f')} tok/s"
    )


def best_in_words(best: Mapping[str, Any] | None) -> str:
    """The best evaluation of a checkpoint, and the streak of worse ones up to it."""
    if not best or best.get("best") is None:
        return "no evaluation yet"
    return (
        f"best eval loss {_number(best['best'], '.4f')} at step {_number(best['best_step'], 'd')}, "
        f"streak {_number(best['num_worse'], 'd')}"
    )


def _number(value: Any, form: str) -> str:
    """A number; what is no finite one stands in the history as text, or is not known."""
    if isinstance(value, str):
        return value
    return "-" if value is None else format(value, form)


def _leave_standard_output() -> None:
    """Lets standard output go nowhere: what is still in its buffer would fail once more when the process ends."""
    with contextlib.suppress(Exception):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
