"""From a log to the setting of the guard that fits it.

    find_logs -> open_log -> read_losses -> replay each setting -> Outcome -> choose -> Calibration

Enters: a path or run id. Leaves: a `Calibration`, a plain value that a report draws. Invariant: every setting is judged
by the decision machine that runs live (`replay.py`), each run of the log from an empty history.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import SupportsIndex

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis import remarks
from trimtab.analysis.findings import check_top
from trimtab.analysis.lookup import RecordedRun, find_logs
from trimtab.analysis.series import is_finite
from trimtab.analysis.several_runs import on_runs
from trimtab.calibration.choice import choose, on_evidence
from trimtab.calibration.losses import LogLosses, RunLosses, read_losses
from trimtab.calibration.replay import HOPELESS_FROM, HOPELESS_SHARE, Skips, replay
from trimtab.calibration.settings import SETTINGS, arguments, is_default
from trimtab.calibration.values import Calibration, Outcome
from trimtab.errors import LogError
from trimtab.findings import Spike
from trimtab.guard import GuardConfig
from trimtab.log.reader import Log, open_log

Progress = Callable[[str, int, int], None]


def calibrate(
    path_or_run: str | os.PathLike[str] | RecordedRun | None = None,
    *,
    top: SupportsIndex = 3,
    progress: Progress | None = None,
) -> Calibration:
    """Replays a log under many settings of the guard, and recommends one.

    Of a log with rows its micro-batches are judged, as the guard of a run would have; of a log that holds steps alone
    their losses, which scatter less. A million losses take 5 to 20 seconds, the more of them are out of line the
    longer; a setting that skipped more than 1 % of the first 100,000 is too tight whatever comes, and is not replayed
    any further.

    Args:
        path_or_run: As for `rewind`: a run folder, a log file, a run id or its unique beginning; a run of this process;
            None: the newest run on this machine.
        top: Steps named at most of those that a setting would have skipped something of.
        progress: Called now and then with what is being done in words, how much of it is done, and the whole of it.

    Returns:
        What each setting would have skipped, and the one to choose; `to_dict()` is the JSON document of
        `trimtab calibrate --json`.

    Raises:
        LogError: There is no log, it cannot be read, or it holds no loss.
        UsageError: `top` makes no sense, or `path_or_run` is none of the above.

    Example:
        calibration = trimtab.calibrate("runs/a")
        if calibration.recommended:
            guard = trimtab.GuardConfig(**calibration.recommended.settings)
    """
    num_named = check_top(top)
    newest, notices = find_logs(path_or_run).newest()
    return calibrate_log(open_log(newest), top=num_named, notices=notices, progress=progress)


def calibrate_log(
    log: Log, *, top: int = 3, notices: Sequence[str] = (), progress: Progress | None = None
) -> Calibration:
    """`calibrate` for a log that is open already.

    Args:
        log: The log.
        top: As for `calibrate`, and likewise `progress`.
        notices: What is to be said first, about the choice of the log.
        progress: See there.

    Returns:
        What each setting would have skipped, and the one to choose.

    Raises:
        LogError: The log cannot be read, or it holds no loss.
    """
    read_so_far = (lambda done: progress("reading the log", done, 2 * log.size_bytes)) if progress else None
    found = read_losses(log, progress=read_so_far)
    num_losses = sum(run.loss.size for run in found.runs)
    if not num_losses:
        raise LogError(
            f"{log.path}: no loss was recorded. The run may have stopped before its first step, or recording was off."
        )
    outcomes = []
    for place, config in enumerate(SETTINGS):
        if progress:
            progress("replaying", place, len(SETTINGS))
        outcomes.append(_outcome(config, found.runs, top=top))

    spikes = [spike for run in found.runs for spike in run.spikes]
    evidence = {
        "num_spikes": sum(spike.kind != "nonfinite" for spike in spikes),
        "num_finite": sum(int(np.count_nonzero(is_finite(run.loss))) for run in found.runs),
    }
    recommended, reason = choose(outcomes, unit=found.unit, **evidence)
    return Calibration(
        run_id=log.header.run_id,
        source=log.path,
        unit=found.unit,
        num_losses=num_losses,
        num_findings=len(spikes),
        outcomes=tuple(outcomes),
        recommended=recommended,
        reason=reason,
        notices=(
            *notices,
            *on_evidence(unit=found.unit, **evidence),
            *_on_what_was_judged(found),
            *_on_outcomes(outcomes),
            *on_runs(found.judged, lambda run: remarks.on_reading(run.reading)),
            *log.notices(),
        ),
    )


def _outcome(config: GuardConfig, runs: Sequence[RunLosses], *, top: int) -> Outcome:
    """What a setting does to the runs of a log, each from an empty history."""
    pairs = [(run, replay(run.loss, config)) for run in runs]
    counted = [_count(run.step[skips.place], skips.nonfinite, run.spikes) for run, skips in pairs]
    steps = np.concatenate([np.unique(run.step[skips.place[~skips.nonfinite]]) for run, skips in pairs])
    return Outcome(
        settings=arguments(config),
        is_default=is_default(config),
        num_judged=sum(skips.num_judged for _, skips in pairs),
        num_spikes=sum(int(np.count_nonzero(~skips.nonfinite)) for _, skips in pairs),
        num_nonfinite=sum(int(np.count_nonzero(skips.nonfinite)) for _, skips in pairs),
        num_rebaselined=sum(skips.num_rebaselined for _, skips in pairs),
        longest_run=max(_longest_run(run.loss, skips) for run, skips in pairs),
        num_caught=sum(caught for caught, _ in counted),
        num_others=sum(others for _, others in counted),
        num_steps=steps.size,
        first_steps=tuple(steps[:top].tolist()),
        gave_up=any(skips.num_judged < run.loss.size for run, skips in pairs),
    )


def _count(steps: NDArray[np.int64], nonfinite: NDArray[np.bool_], spikes: Sequence[Spike]) -> tuple[int, int]:
    """How many of `spikes` one of the skipped `steps` (ascending) is in, and how many finite ones are in none."""
    is_other = ~nonfinite
    num_caught = 0
    for spike in spikes:
        inside = slice(np.searchsorted(steps, spike.first), np.searchsorted(steps, spike.last, side="right"))
        num_caught += int(inside.stop > inside.start)
        is_other[inside] = False
    return num_caught, int(np.count_nonzero(is_other))


def _longest_run(losses: NDArray[np.float64], skips: Skips) -> int:
    """Most spikes that follow each other, losses that are not finite left aside."""
    place = np.cumsum(is_finite(losses))[skips.place[~skips.nonfinite]]
    if not place.size:
        return 0
    ends = np.flatnonzero(np.diff(place) != 1)
    return int(np.diff(np.concatenate([[-1], ends, [place.size - 1]])).max())


def _on_what_was_judged(found: LogLosses) -> list[str]:
    """What the losses are, where one would not expect it."""
    notices = []
    if found.num_left_out:
        which, held = "1 micro-batch was", "its loss, and it was"
        if found.num_left_out > 1:
            which, held = f"{found.num_left_out} micro-batches were", "their losses, and they were"
        notices.append(f"{which} left out by the run's own guard: the log holds {held} judged like any other")
    if found.num_no_tokens and found.unit == "micro":
        had = "1 micro-batch has" if found.num_no_tokens == 1 else f"{found.num_no_tokens} micro-batches have"
        notices.append(f"{had} no supervised tokens: a guard keeps what it has no loss of, and so nothing was judged")
    if found.num_unknown:
        which = "1 micro-batch" if found.num_unknown == 1 else f"{found.num_unknown} micro-batches"
        notices.append(f"the losses of {which} were not recorded: not judged")
    num_cut = sum(run.num_spikes_left_out for run in found.runs)
    if num_cut:
        notices.append(f"{num_cut} more findings are not among those counted: skips in them stand under others")
    return notices


def _on_outcomes(outcomes: Sequence[Outcome]) -> list[str]:
    given_up = sum(outcome.gave_up for outcome in outcomes)
    if not given_up:
        return []
    which = "1 setting was" if given_up == 1 else f"{given_up} settings were"
    return [
        f"{which} replayed in part only: more than {HOPELESS_SHARE:.0%} of the first {HOPELESS_FROM:,} losses skipped, "
        "or of more"
    ]
