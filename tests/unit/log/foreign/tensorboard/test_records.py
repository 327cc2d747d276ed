"""Scalars of tags become records and evaluations."""

import math

from trimtab.log.foreign.tensorboard.records import ScalarRecords


def test_evaluations_of_several_tags_stand_in_the_order_of_time_and_a_bad_time_is_none():
    # given: one tag after the other, as writers flush them
    scalars = ScalarRecords()
    for tag, time, step in ((b"eval/loss", 10.0, 1), (b"eval/loss", 30.0, 3), (b"test/loss", 20.0, 2)):
        scalars.add(tag, file=0, step=step, time=time, value=float(step))
    scalars.add(b"test/loss", file=0, step=4, time=math.nan, value=4.0)
    # when
    events = scalars.metrics().events
    # then
    assert [(event.step, event.time) for event in events] == [(4, 0.0), (1, 10.0), (2, 20.0), (3, 30.0)]
    assert events[2].facts == {"loss": 2.0, "test/loss": 2.0}
