"""The last line of a training: how many findings its log holds, and how to read them."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from trimtab.analysis.findings import rewind_log
from trimtab.log.journal import ranks_writing
from trimtab.log.reader import open_log
from trimtab.notices import say, warn

_MOST_BYTES: Final = 200 << 20
"""A larger log takes more than a few seconds to read, and a training that has ended is not to be kept waiting."""

_PATIENCE_S: Final = 3.0
"""Seconds for the other ranks to write what they hold, a flush interval and its sync: they end at the same step."""

_LOOK_INTERVAL_S: Final = 0.05


def tell_findings(folder: Path, *, ended_by: str) -> None:
    """Says in one line what the log of a training that just ended holds. Never raises.

    Among several ranks this is for rank 0 to say. It gives the others some seconds to write their last rows; of one
    that writes still it says so, and what it tells is of the rows that are there.

    Args:
        folder: The run folder, closed.
        ended_by: "closed", or the name of the exception that ended the training.
    """
    run_id = folder.name
    if ended_by == "KeyboardInterrupt":  # who interrupts wants the prompt back
        say("run", f"Interrupted: trimtab rewind {run_id}")
        return
    try:
        still = _ranks_still_writing(folder)
        log = open_log(folder)
        if log.size_bytes > _MOST_BYTES:
            say("run", f"Recorded {log.size_bytes >> 20} MB: trimtab rewind {run_id}")
            return
        findings = rewind_log(log, num_leading=0)
    except Exception as error:  # noqa: BLE001 - a fault in reading the log is no fault of the training
        warn("run", f"Trimtab could not read its own log {folder}: {error}")
        return
    num_findings = findings.num_findings
    without = f", without the last of {_ranks(still)}, still writing" if still else ""
    say("run", f"{num_findings} finding{'' if num_findings == 1 else 's'}{without}: trimtab rewind {run_id}")


def _ranks_still_writing(folder: Path) -> list[int]:
    """Ranks that have not closed their journal after some seconds; returns as soon as all have."""
    deadline = time.monotonic() + _PATIENCE_S
    while (still := ranks_writing(folder)) and time.monotonic() < deadline:
        time.sleep(_LOOK_INTERVAL_S)
    return still


def _ranks(ranks: list[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"{len(ranks)} ranks"
