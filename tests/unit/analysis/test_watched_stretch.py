"""What a watch left of a stretch: figures worked out by hand, and nothing of the steps around it."""

import math

import pytest

from trimtab.analysis.watched_stretch import Course, WatchedStretch
from trimtab.values import Event
from trimtab.watched import LayerFigures, RouterReport


def report(step, **z_by_layer):
    layers = tuple(LayerFigures(name=name, z=z) for name, z in z_by_layer.items())
    return RouterReport(step=step, first_step=step - 9, layers=layers)


def test_a_course_holds_the_bounds_of_all_reports_and_of_the_last_one():
    course = Course()
    for figures in ([6.0, 8.0], [3.0, 4.0], [5.0, 7.0]):
        course.absorb(figures)
    assert (course.whole, course.last, course.is_known) == ((3.0, 8.0), (5.0, 7.0), True)


@pytest.mark.parametrize("lacks", [None, math.nan, math.inf], ids=["none", "nan", "inf"])
def test_a_figure_that_one_layer_once_lacked_is_not_known_whatever_came_behind_it(lacks):
    course = Course()
    course.absorb([6.0, lacks])
    course.absorb([7.0, 8.0])
    assert (course.whole, course.is_known) == ((6.0, 8.0), False)


def test_of_no_figure_there_are_no_bounds():
    course = Course()
    course.absorb([])
    course.absorb([None])
    assert not course.whole.is_known
    assert not course.last.is_known
    assert not course.is_known


def test_only_what_took_place_in_the_stretch_is_kept():
    seen = WatchedStretch(11, 20)
    for step in (10, 11, 20, 21):
        seen.take(Event("evaluation", step, 0.0, {"loss": 1.0}))
        seen.take(Event("vitals", step, 0.0, {}))
        seen.take_report(report(step, a=float(step), b=2.0 * step))
    assert [event.step for event in seen.evaluations] == [11, 20]
    assert (seen.steps, seen.looks, seen.names, seen.num_layers) == ({11, 20}, {11, 20}, {"a", "b"}, 4)
    assert seen.report is not None
    assert (seen.report.step, seen.z.whole, seen.z.last) == (20, (11.0, 40.0), (20.0, 40.0))
    assert [one.step for one in seen.recent] == [10, 11, 20], "the last reports, also from before it"


def test_a_stretch_without_a_step_keeps_nothing():
    seen = WatchedStretch()
    for step in (0, 1):
        seen.take(Event("evaluation", step, 0.0, {"loss": 1.0}))
        seen.take_report(report(step, a=1.0))
    assert seen == WatchedStretch()


def test_the_z_of_the_model_stands_for_that_of_its_layers_and_says_what_it_is_of():
    seen = WatchedStretch(1, 20)
    layers = (LayerFigures(name="a", load_balance=1.5),)
    seen.take_report(RouterReport(step=10, first_step=1, layers=layers, z=20.0, z_scale="sum"))
    assert (seen.z.whole, seen.z_scale, seen.z.is_known, seen.load_balance.last) == (
        (20.0, 20.0),
        "sum",
        True,
        (1.5, 1.5),
    )
