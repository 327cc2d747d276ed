"""The last line of a training: how many findings its log holds, and how to read them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trimtab.analysis.findings import rewind_log
from trimtab.log.reader import open_log
from trimtab.notices import say, warn

_MOST_BYTES: Final = 200 << 20
"""A larger log takes more than a few seconds to read, and a training that has ended is not to be kept waiting."""


def tell_findings(folder: Path, *, ended_by: str) -> None:
    """Says in one line what the log of a training that just ended holds. Never raises.

    Args:
        folder: The run folder, closed.
        ended_by: "closed", or the name of the exception that ended the training.
    """
    run_id = folder.name
    if ended_by == "KeyboardInterrupt":  # who interrupts wants the prompt back
        say("run", f"Interrupted: trimtab rewind {run_id}")
        return
    try:
        log = open_log(folder)
        if log.size_bytes > _MOST_BYTES:
            say("run", f"Recorded {log.size_bytes >> 20} MB: trimtab rewind {run_id}")
            return
        findings = rewind_log(log, num_leading=0)
    except Exception as error:  # noqa: BLE001 - a fault in reading the log is no fault of the training
        warn("run", f"Trimtab could not read its own log {folder}: {error}")
        return
    num_findings = len(findings.spikes) + findings.spikes_left_out
    say("run", f"{num_findings} finding{'' if num_findings == 1 else 's'}: trimtab rewind {run_id}")
