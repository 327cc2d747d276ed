"""Steps from epochs: of a log that counts nothing else, and of one that counts the steps of each epoch anew.

Enters: step and epoch of each entry of a log, in its order. Leaves: the steps to go by, and what to say of it.
Invariant: steps are counted through only where every single step back comes with a later epoch; a run that was started
again begins its epochs anew too, and stays a run of its own.

Shapes: N entries.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trimtab.log.foreign.steps.cells import INT64


def epoch_as_step(epoch: NDArray[np.float64]) -> NDArray[np.int64] | None:
    """The epochs as steps, (N,), where each entry has its own whole one; None otherwise."""
    if not epoch.size or not np.isfinite(epoch).all() or np.any(epoch != np.floor(epoch)):
        return None
    if np.any(epoch[1:] == epoch[:-1]) or np.abs(epoch).max() > INT64.stop / 2:
        return None
    return epoch.astype(np.int64)


def counted_through(step: NDArray[np.int64], epoch: NDArray[np.float64]) -> tuple[NDArray[np.int64], list[str]]:
    """Counts the steps of all epochs in one row, if the log counts those of each.

    Args:
        step: (N,) as logged.
        epoch: (N,) of each; NaN where an entry does not say: then that of the one before.

    Returns:
        The steps, counted through where that is needed, and a notice if so.
    """
    back = np.flatnonzero(step[1:] < step[:-1]) + 1
    if not back.size:
        return step, []
    known = np.maximum.accumulate(np.where(np.isnan(epoch), 0, np.arange(epoch.size)))
    whole = np.floor(epoch[known])
    rises = np.diff(whole)
    if not (np.all(rises >= 0) and np.all(rises[back - 1] > 0)):
        return step, []
    starts = np.concatenate(([0], back))
    lasts = step[np.append(back, step.size) - 1]
    # An epoch of one entry has no spacing of its own.
    spacing = max(1, int(step[1] - step[0])) if back[0] > 1 else 1
    spans = lasts[:-1] - step[starts[1:]] + spacing
    through = step + np.repeat(np.concatenate(([0], np.cumsum(spans))), np.diff(np.append(starts, step.size)))
    at = int(back[0])
    notice = (
        f"the log counts the steps of each epoch anew: they are counted through here, so that step {step[at]} of epoch "
        f"{whole[at]:.0f} is step {through[at]}"
    )
    return through, [notice]
