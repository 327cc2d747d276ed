"""What an event `round_trip` of a log says, there and back; one of somebody else's making is none."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.resume.round_trip import MAX_DIFFERENCES, ProbeFacts, RoundTripFacts, round_trip_in

FACTS = {
    "step": 500,
    "name": "step_500",
    "manifest_crc32": 0xFFFFFFFF,
    "same": False,
    "differences": ["w is 1.0 in the training and 2.0 as loaded"],
    "num_differences": 1,
    "parts": ["model", "optimizer", "step"],
    "probe": {"shape": "nonfinite", "entropy": "nan", "cv": "nan", "num_nonfinite": 3, "vocabulary_size": 256},
    "probe_problem": None,
}


def test_the_facts_of_an_event_come_back() -> None:
    said = round_trip_in(json.loads(json.dumps(FACTS)))
    assert said is not None
    assert said.to_facts() == FACTS
    assert said.probe is not None
    assert math.isnan(said.probe.entropy)
    assert said.probe.num_nonfinite == 3


def test_one_that_could_not_be_loaded_has_little_to_say() -> None:
    said = round_trip_in({"name": "step_7", "same": False})
    assert said == RoundTripFacts(step=None, name="step_7", manifest_crc32=None, same=False)


def test_no_more_differences_are_taken_than_an_event_may_name() -> None:
    said = round_trip_in({**FACTS, "differences": ["x"] * 1000, "num_differences": 1000})
    assert said is not None
    assert (len(said.differences), said.num_differences) == (MAX_DIFFERENCES, 1000)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("step", "500"),
        ("step", True),
        ("step", -1),
        ("name", None),
        ("name", 3),
        ("manifest_crc32", 1 << 32),
        ("manifest_crc32", 1.0),
        ("same", 1),
        ("same", None),
        ("differences", "x"),
        ("differences", [1]),
        ("num_differences", -1),
        ("parts", [None]),
        ("probe", []),
        ("probe", {}),
        ("probe", {**FACTS["probe"], "shape": 3}),
        ("probe", {**FACTS["probe"], "entropy": "low"}),
        ("probe", {**FACTS["probe"], "num_nonfinite": -3}),
        ("probe_problem", 0),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_a_field_that_is_not_what_it_should_be_makes_it_none(field: str, value: object) -> None:
    assert round_trip_in({**FACTS, field: value}) is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(sorted(FACTS)), inner, max_size=5),
    max_leaves=10,
)


@given(JSON)
def test_no_facts_bring_it_down(facts: object) -> None:
    said = round_trip_in(facts)
    assert said is None or isinstance(said.same, bool)


def test_a_probe_of_finite_numbers_is_told_as_it_is() -> None:
    probe = ProbeFacts(shape="peaked", entropy=1.5, cv=2.0, num_nonfinite=0, vocabulary_size=256)
    assert probe.to_facts() == {
        "shape": "peaked",
        "entropy": 1.5,
        "cv": 2.0,
        "num_nonfinite": 0,
        "vocabulary_size": 256,
    }
