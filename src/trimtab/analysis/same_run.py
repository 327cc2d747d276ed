"""Whether two logs tell of one run: its own log, say, and the metrics that its trainer wrote beside it.

Enters: what each log is of, and its steps. Leaves: a name a log, alike for those of one run. Invariant: two logs with
rows were recorded each by itself, and are told apart by what they name alone; losses are compared only where one holds
steps alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from trimtab.analysis.series import StepSeries, is_finite
from trimtab.findings import Findings

MIN_STEPS: Final = 20
"""Steps that two logs must have in common: fewer may agree by chance."""

MIN_LOSSES: Final = 10
"""Different losses among them: a loss that hardly moves agrees with any that hardly moves."""

AGREEING: Final = 0.95
"""Share of these steps that must agree: a trainer may write something else where a loss is not finite."""

RELATIVE: Final = 1e-3
"""How far two losses that agree may be apart; with `ABSOLUTE` it spans bfloat16 and four decimals."""

ABSOLUTE: Final = 1e-4


def run_names(
    runs: Sequence[Findings], *, series: Sequence[Sequence[StepSeries]], have_rows: Sequence[bool]
) -> list[str]:
    """What each log's run is called: its id, else the path of the log; of a log that tells a run again, as before.

    Args:
        runs: The findings of each log.
        series: The runs of each log, step by step; of a log that holds several none is compared.
        have_rows: Whether each log holds rows.
    """
    names: list[str] = []
    for place, findings in enumerate(runs):
        told = (
            names[other]
            for other in range(place)
            if not (have_rows[place] and have_rows[other])
            and len(series[place]) == len(series[other]) == 1
            and _agree(series[place][0], series[other][0])
        )
        names.append(next(told, findings.run_id or findings.source))
    return names


def _agree(one: StepSeries, other: StepSeries) -> bool:
    """Whether two series have the same losses at the steps that both have measured."""
    _, mine, theirs = np.intersect1d(one.step, other.step, assume_unique=True, return_indices=True)
    both = one.measured[mine] & other.measured[theirs]
    first, second = one.loss[mine[both]], other.loss[theirs[both]]
    if first.size < MIN_STEPS or np.unique(first).size < MIN_LOSSES:
        return False
    finite = is_finite(first) & is_finite(second)
    alike = ~is_finite(first) & ~is_finite(second)
    alike[finite] = np.isclose(first[finite], second[finite], rtol=RELATIVE, atol=ABSOLUTE)
    return bool(np.count_nonzero(alike) >= AGREEING * alike.size)
