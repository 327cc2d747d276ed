"""The lines that a person reads while it trains.

In go rows of the history and facts of a run, out come lines of plain ASCII. Invariant: telling a line raises nothing,
whatever the console is: in another encoding, full, closed, or a pipe that nobody reads any more.
"""

from __future__ import annotations

import contextlib
import math
import os
import sys
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import trimtab
from trimtab.checkpoint import RoundTrip

_Result = TypeVar("_Result")

Tell = Callable[[str], None]
"""What to do with a line."""


_WIDTH: Final = 120

_MOST_BYTES: Final = 3
"""Bytes that a line names of those that a model expects next."""

_MOST_IN_FULL: Final = 1e5
"""A figure of this size or more is told by its first digits."""


def plain(text: str) -> str:
    """The text in printable ASCII on one line, which every console and every encoding can show; all else escaped."""
    return "".join(char if " " <= char <= "~" else ascii(char)[1:-1] for char in text)


def wrapped(text: str) -> str:
    """The text in printable ASCII, in lines of at most 120 columns; a longer word, as a path, is not broken."""
    return textwrap.fill(
        plain(text),
        _WIDTH,
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def say(line: str) -> None:
    """Prints a line on standard output, and shows it at once; where that cannot be, nothing happens."""
    try:
        sys.stdout.write(f"{wrapped(line)}\n")
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


class Contained:
    """Does what must not cost a save; a failure is told, once for each `what`.

    Args:
        tell: What to do with a line.
        step: Gives the steps that are behind the training.
    """

    def __init__(self, *, tell: Tell, step: Callable[[], int]) -> None:
        self._tell = tell
        self._step = step
        self._failed: set[str] = set()

    def __call__(self, what: str, action: Callable[[], _Result]) -> _Result | None:
        """Gives what the action gives; None where it failed.

        Args:
            what: What is done, in a word.
            action: Does it.

        Raises:
            GuardLockupError: A guard that is set to raise is a decision, and no telemetry.
        """
        try:
            return action()
        except trimtab.GuardLockupError:
            raise
        except Exception as error:  # noqa: BLE001 - telemetry never costs a save
            if what not in self._failed:
                self._failed.add(what)
                self._tell(
                    f"{what} failed at step {self._step()}: {reason(error)}. Training and saves go on; this is not "
                    "said again"
                )
            return None


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
        f"{_pace(row['tokens_per_s'])}{skipped}{became}"
    )


def eval_line(row: Mapping[str, Any]) -> str:
    """An evaluation, of a row of the history."""
    shares = " ".join(_number(share, ".2f") for share in row["population_shares"] or ()) or "-"
    return (
        f"eval step {row['step']}  ce {_number(row['eval_loss'], '.4f')} "
        f"(best {_number(row['best_eval'], '.4f')} at {_number(row['best_eval_step'], 'd')}, "
        f"streak {_number(row['regress_streak'], 'd')})  z {_number(row['z'], '.2f')}  shares {shares}  "
        f"dead_fraction {_number(row['dead_fraction'], '.2f')}  clipped {_number(row['clip_fraction'], '.2f')}"
    )


def best_in_words(best: Mapping[str, Any] | None) -> str:
    """The best evaluation of a checkpoint, and the streak of worse ones up to it."""
    if not best or best.get("best") is None:
        return "no evaluation yet"
    return (
        f"best eval loss {_number(best['best'], '.4f')} at step {_number(best['best_step'], 'd')}, "
        f"streak {_number(best['num_worse'], 'd')}"
    )


def round_trip_line(result: RoundTrip) -> str:
    """A checkpoint that was loaded again and is the training to the last bit; and the bytes that it expects next."""
    line = f"round trip: {result.name} loads to the last bit"
    probe = result.probe
    if probe is None:
        return line
    if not probe.top_ids:
        return f"{line}; {probe.num_nonfinite} of its logits are not finite"
    likeliest = [
        f"{chr(byte)!a} {share:.0%}" for byte, share in zip(probe.top_ids, probe.top_probabilities, strict=True)
    ]
    of = f"entropy {probe.entropy:.2f} of {math.log(probe.vocabulary_size):.2f} nats"
    return f"{line}; it expects {', '.join(likeliest[:_MOST_BYTES])} next ({of})"


def _number(value: Any, form: str) -> str:
    """A number; what is no finite one stands in the history as text, or is not known."""
    if isinstance(value, str):
        return value
    if value is None:
        return "-"
    return format(value, ".3g" if abs(value) >= _MOST_IN_FULL and form.endswith("f") else form)


def _pace(tokens_per_s: float | None) -> str:
    return "- tok/s" if tokens_per_s is None else f"{tokens_per_s:,.0f} tok/s"


def _leave_standard_output() -> None:
    """Lets standard output go nowhere: what is still in its buffer would fail once more when the process ends."""
    with contextlib.suppress(Exception):
        there = sys.stdout.fileno()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, there)
        os.close(nowhere)
