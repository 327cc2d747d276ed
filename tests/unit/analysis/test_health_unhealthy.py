"""From where to where a finding speaks against what was saved, out of the log of a run alone."""

import pytest

from trimtab.analysis.trouble import find_in_log
from trimtab.log.folder import continue_run, create_run
from trimtab.recorder import Recorder
from trimtab.values import Event, RunHeader, StepRow
from trimtab.watched import LayerFigures, RouterReport
from trimtab.watched_json import report_to_facts

BALANCED = (160, 155, 165, 160)
DEAD = (640, 0, 0, 0)


def evaluations(losses, *, every=40):
    return [Event("evaluation", every * place, 0.0, {"loss": loss}) for place, loss in enumerate(losses, start=1)]


def report(step, counts, *, every=50):
    """A router that chooses, its load balanced, or one that is sure of expert 0."""
    is_dead = counts == DEAD
    layer = LayerFigures(
        name="gate",
        num_experts=4,
        top_k=1,
        num_tokens=sum(counts),
        counts=counts,
        token_entropy=0.0 if is_dead else 0.9,
        spread=50.0 if is_dead else 3.0,
    )
    made = RouterReport(step=step, first_step=step - every + 1, layers=(layer,))
    return Event("router", step, 0.0, report_to_facts(made))


@pytest.fixture
def write(tmp_path):
    """`write(attempt, ...)`: a log of attempts, each the range of its steps and the events behind them."""

    def make(*attempts):
        header = RunHeader(run_id="r", backend="torch", created=1.0)
        for number, (steps, events) in enumerate(attempts):
            folder = continue_run(tmp_path, "r", header) if number else create_run(tmp_path, header)
            recorder = Recorder(folder)
            if number:
                recorder.put(Event("resume", steps[0], 0.0, {"attempt": number + 1}))
            for step in steps:
                recorder.put(StepRow(step, 2.0 + 0.01 * (step % 7), 1.0, 1e-3))
                for event in events:
                    if event.step == step:
                        recorder.put(event)
            recorder.close(timeout_s=30)
        return folder.path

    return make


def stretches(path):
    return [(one.name, one.since_step, one.over_at) for one in find_in_log(path).unhealthy]


def test_worse_evaluations_speak_against_what_was_saved_since_the_best(write):
    path = write((range(1, 171), evaluations([3.57, 3.94, 4.54, 4.99])))
    assert stretches(path) == [("eval_regression, found at step 160", 40, None)]
    (found,) = find_in_log(path).unhealthy
    assert [step for step in range(20, 200, 20) if found.holds(step)] == [60, 80, 100, 120, 140, 160, 180]


def test_a_dead_router_speaks_against_what_was_saved_within_the_last_report_that_looks_well(write):
    # the router is dead from step 120 on: a mean over 101 to 150 shows it, one over 51 to 100 that it was well at 50
    counts = [BALANCED, BALANCED, DEAD, DEAD]
    reports = [report(50 * place, one) for place, one in enumerate(counts, start=1)]
    found = stretches(write((range(1, 211), reports)))
    assert ("collapse in gate, found at step 150", 50, None) in found
    assert {since for _, since, _ in found} == {50}


def test_what_was_over_speaks_against_nothing_that_was_saved_afterwards(write):
    counts = [BALANCED, BALANCED, DEAD, *[BALANCED] * 3]
    reports = [report(50 * place, one) for place, one in enumerate(counts, start=1)]
    (found,) = [one for one in find_in_log(write((range(1, 311), reports))).unhealthy if one.finding.kind == "collapse"]
    assert (found.since_step, found.over_at) == (50, 200)
    assert [step for step in range(50, 301, 50) if found.holds(step)] == [100, 150]


def test_a_router_that_was_dead_in_its_first_report_was_never_known_to_be_well(write):
    found = stretches(write((range(1, 160), [report(50, DEAD), report(100, DEAD), report(150, DEAD)])))
    assert {since for _, since, _ in found} == {0}


def test_what_an_attempt_found_that_the_run_was_taken_back_from_says_nothing(write):
    worse = (range(1, 171), evaluations([3.57, 3.94, 4.54, 4.99]))
    assert stretches(write(worse, (range(41, 61), []))) == []


def test_a_run_that_is_well_has_none(write):
    assert stretches(write((range(1, 171), evaluations([3.5, 3.6, 3.5, 3.4])))) == []
