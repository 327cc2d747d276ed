"""Evaluations of a log become events, as many as there is room for."""

import math

import numpy as np

from trimtab.log.foreign.steps.evaluations import Evaluations
from trimtab.values import Event


def test_an_evaluation_stands_at_its_step_or_at_that_of_its_entry():
    # given: losses that are finite and one that is not, a time and none
    evaluations = Evaluations()
    evaluations.add(1, {"val/loss": 2.5, "test/loss": math.inf}, time=3.0)
    evaluations.add(0, {"val/loss": 2.0})
    # then: the first loss is the one that counts
    first, second = {"loss": 2.5, "val/loss": 2.5, "test/loss": "inf"}, {"loss": 2.0, "val/loss": 2.0}
    assert evaluations.events() == [Event("evaluation", 1, 3.0, first), Event("evaluation", 0, 0.0, second)]
    assert [event.step for event in evaluations.events(np.array([70, 80]))] == [80, 70]
    assert evaluations.notices() == []


def test_events_beyond_the_bound_are_counted_whatever_their_kind(monkeypatch):
    # given
    monkeypatch.setattr("trimtab.log.foreign.steps.evaluations.MAX_EVENTS", 2)
    events = Evaluations("events")
    events.add(1, {"val_loss": 2.0})
    events.add_event(Event("skipped_iterations", 2, 0.0, {}))
    # when
    events.add(3, {"val_loss": 1.0})
    events.add_event(Event("skipped_iterations", 4, 0.0, {}))
    # then
    assert [(event.kind, event.step) for event in events.events()] == [("evaluation", 1), ("skipped_iterations", 2)]
    assert events.notices() == ["2 events after the first 2 were left out"]
