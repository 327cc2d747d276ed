"""Which rows of a step are named as the cause of a finding. The one place that decides it.

Enters: the row table of a step and the findings of its run. Leaves: a `Blame`. Invariant: a row is named only if a
finding of the loss is at its step or follows soon, and it stands out in its step: it is not finite, or carries half of
the loss beside others. Where several rows are not finite, half of the step or more, and the run is not finite again
behind them, none is named: a broken model makes every row so, and whoever dropped them would drop good rows. Such a
model does not recover, so where the run does, or a guard left them out, it is the rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trimtab.analysis.rows import StepRows
from trimtab.analysis.series import StepSeries, is_finite
from trimtab.findings import Blame, BlameReason, Spike

CAUSE_SHARE = 0.5
"""Share of a step's loss from which its first row is named as the cause."""

NORM_LEAD = 10
"""Steps within which a finding of the loss must follow a jump of the gradient norm for the jump's rows to be what did
the harm: the batch that breaks the model comes before the loss that shows it."""


def blame(table: StepRows, *, spikes: Sequence[Spike], series: StepSeries) -> Blame:
    """The rows of a step that are named as the cause of a finding; none, with the reason, where nothing says so.

    Args:
        table: The step's rows, those that are not finite because of another one marked.
        spikes: All findings of the run.
        series: The run.
    """
    reason, num_named = _by_losses(table, series=series)
    if num_named and not _did_harm(table.step, spikes):
        reason, num_named = "suspect", 0
    return Blame(step=table.step, rows=tuple(table.row[:num_named].tolist()), reason=reason)


def blamed_step(spike: Spike) -> int:
    """The step whose rows may have made a finding: of a norm that jumped the first, because the harm begins there."""
    return spike.first if spike.severity == "notice" else spike.step


def leads_to(step: int, finding: Spike) -> bool:
    """Whether a finding follows a step soon enough to be what a jump of the gradient norm at that step did."""
    return 1 <= finding.first - step <= NORM_LEAD


def _is_finite_again(table: StepRows, series: StepSeries) -> bool:
    """Whether the run is finite behind the steps from this one on that are not, or a guard left this one's rows out.

    A later attempt is none: it begins with weights that were saved before. What a guard left out counts only at the
    very end of a run: of a stretch of such steps nobody knows whether the model was sound when it began.
    """
    place = series.place(table.step)
    assert place is not None, "its rows were looked up"
    behind = slice(place + 1, None)
    counts = series.measured[behind] & ~series.is_artefact[behind]
    is_sound = is_finite(series.loss[behind][counts])
    if not is_sound.size:
        return bool(table.left_out[~table.finite].all()) and _is_finite_before(place, series)
    at = int(np.argmax(is_sound))
    return bool(is_sound[at]) and bool(series.attempt[behind][counts][at] == series.attempt[place])


def _is_finite_before(place: int, series: StepSeries) -> bool:
    before = series.loss[:place][series.measured[:place]]
    return bool(before.size) and bool(is_finite(before[-1:])[0])


def _by_losses(table: StepRows, *, series: StepSeries) -> tuple[BlameReason, int]:
    """What the losses of a step say, and how many of its first rows they name."""
    num_nonfinite, num_with_tokens = table.num_nonfinite, table.row.size - table.num_empty
    if not num_with_tokens:
        return "no_losses", 0
    if num_nonfinite > 1 and 2 * num_nonfinite >= num_with_tokens and not _is_finite_again(table, series):
        return "mostly_nonfinite", 0
    num_neighbours = int(np.count_nonzero(table.is_neighbour))
    if num_neighbours:
        return "never_finite", num_nonfinite - num_neighbours
    if num_nonfinite:
        return "nonfinite", num_nonfinite
    if num_with_tokens == 1:
        return "only_row", 0
    share = table.share(0)
    if share is None:
        return "no_shares", 0
    return ("share", 1) if share >= CAUSE_SHARE else ("spread", 0)


def _did_harm(step: int, spikes: Sequence[Spike]) -> bool:
    """Whether a finding of the loss is at the step, or a gradient norm jumped there and such a finding follows soon."""
    at_step = [spike for spike in spikes if spike.first <= step <= spike.last]
    if any(spike.severity != "notice" for spike in at_step):
        return True
    return bool(at_step) and any(spike.severity != "notice" and leads_to(step, spike) for spike in spikes)
