"""Several runs in one log: each is judged by itself, and what was found in them is listed together.

    read_runs -> find_spikes for each -> `JudgedRun`s -> one list of findings, one of notices

Enters: the readings of one log. Leaves: findings and notices of all its runs. Invariant: no run's history judges
another's steps; a log of one run gives what `find_spikes` gives, with nothing added.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trimtab.analysis.attempts import StepReading
from trimtab.analysis.spikes import MAX_SPIKES, SpikeSearch, find_spikes, order
from trimtab.findings import Spike


class JudgedRun(NamedTuple):
    """One run of a log and what was found in it.

    Attributes:
        number: Which run of its log, from 1; None where the log holds no other.
        reading: Its steps.
        search: Its findings; each names the run in `segment`.
    """

    number: int | None
    reading: StepReading
    search: SpikeSearch


class Merged(NamedTuple):
    """The findings of all runs of a log.

    Attributes:
        spikes: Worst first, at most `MAX_SPIKES`.
        num_left_out: How many were cut.
    """

    spikes: tuple[Spike, ...]
    num_left_out: int


def judge_runs(readings: Sequence[StepReading], *, rule: str) -> list[JudgedRun]:
    """Judges each run from a history of its own.

    Args:
        readings: The runs of one log, at least one.
        rule: "robust" or "median".

    Raises:
        UsageError: There is no such rule.
    """
    if len(readings) == 1:
        return [JudgedRun(None, readings[0], find_spikes(readings[0].series, rule=rule))]
    judged = []
    for number, reading in enumerate(readings, start=1):
        search = find_spikes(reading.series, rule=rule)
        spikes = tuple(dataclasses.replace(spike, segment=number) for spike in search.spikes)
        judged.append(JudgedRun(number, reading, dataclasses.replace(search, spikes=spikes)))
    return judged


def merged(runs: Sequence[JudgedRun], *, rule: str) -> Merged:
    """The findings of all runs in one list, in the order in which those of one run stand."""
    if len(runs) == 1:
        search = runs[0].search
        return Merged(search.spikes, search.num_left_out)
    spikes = sorted((spike for run in runs for spike in run.search.spikes), key=lambda spike: order(spike, rule=rule))
    num_left_out = sum(run.search.num_left_out for run in runs) + max(0, len(spikes) - MAX_SPIKES)
    return Merged(tuple(spikes[:MAX_SPIKES]), num_left_out)


def run_of_step(runs: Sequence[JudgedRun], step: int) -> JudgedRun | None:
    """The run that a step is looked for in: the last that holds it, as of attempts the last counts; None if none."""
    return next((run for run in reversed(runs) if run.reading.series.place(step) is not None), None)


def on_runs(runs: Sequence[JudgedRun], say: Callable[[JudgedRun], list[str]]) -> list[str]:
    """Notices on each run; where all of them give the same it is said once, else with the number of the run."""
    by_run = [(run.number, say(run)) for run in runs]
    first = by_run[0][1]
    if all(notices == first for _, notices in by_run):
        return first if len(runs) == 1 else [f"in each run: {notice}" for notice in first]
    return [f"run {number}: {notice}" for number, notices in by_run for notice in notices]


def on_asked(runs: Sequence[JudgedRun], *, asked: int | None) -> list[str]:
    """In which of several runs a step was looked for that stands in more than one."""
    if asked is None:
        return []
    holding = [run.number for run in runs if run.reading.series.place(asked) is not None]
    if len(holding) < 2:
        return []
    return [f"step {asked} stands in {len(holding)} of {len(runs)} runs: that of run {holding[-1]} is shown"]
