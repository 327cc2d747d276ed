"""A state that is saved and loaded goes on as if nothing had been; one that nobody saved like this is refused."""

import copy
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trimtab.errors import UsageError
from trimtab.rules.router import RouterRules
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import LayerFigures, RouterReport, WatchFinding

ANY_NUMBER = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from([0.0, 0.01, 0.3, 1.0, 2.14, 14.0, 26.2, 214.0, 300.0, 1e300, math.log(4)]),
)
COUNTS = st.one_of(
    st.none(),
    st.lists(st.sampled_from([0, 0, 1, 90, 100, 110, 5_000]), min_size=0, max_size=6).map(tuple),
    st.just((2**62, 0, 0, -1)),
)
LAYERS = st.builds(
    LayerFigures,
    name=st.sampled_from(["a", "b", "", "moe.\udc80"]),
    num_experts=st.sampled_from([None, 0, 1, 4, 6, 2**60]),
    top_k=st.sampled_from([None, 0, 1, 2, 4, 9]),
    num_tokens=st.sampled_from([None, 0, 100, 400, 2**62]),
    z=ANY_NUMBER,
    lse=ANY_NUMBER,
    load_balance=ANY_NUMBER,
    counts=COUNTS,
    token_entropy=ANY_NUMBER,
    spread=ANY_NUMBER,
)
REPORTS = st.lists(
    st.builds(
        RouterReport,
        step=st.just(0),
        first_step=st.just(0),
        layers=st.lists(LAYERS, max_size=3).map(tuple),
        z=ANY_NUMBER,
        z_scale=st.sampled_from(["layer", "sum", "mean"]),
        z_factor=st.sampled_from([1.0, 1.0, 1.0, 0.01, math.nan, 0.0]),
        expected_tokens=st.sampled_from([None, 0, 100]),
    ),
    max_size=14,
)
CONFIGS = st.sampled_from([WatchConfig(), WatchConfig(z_band_of="sum")])


def numbered(reports: list[RouterReport]) -> list[RouterReport]:
    fields = ("layers", "z", "z_scale", "z_factor", "expected_tokens")
    return [
        RouterReport(step=50 * n + 50, first_step=50 * n + 1, **{name: getattr(report, name) for name in fields})
        for n, report in enumerate(reports)
    ]


def told(findings: tuple[WatchFinding, ...]) -> str:
    return json.dumps([finding.to_dict() for finding in findings], allow_nan=False)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(reports=REPORTS, config=CONFIGS, cut=st.integers(0, 14))
def test_going_on_from_a_saved_state_is_going_on(reports: list[RouterReport], config: WatchConfig, cut: int) -> None:
    # given rules that judge whatever comes, and others that stop on the way
    series = numbered(reports)
    through, before = RouterRules(config), RouterRules(config)
    expected = [told(through.judge(report)) for report in series]
    found = [told(before.judge(report)) for report in series[:cut]]

    # when the state goes through JSON into new rules
    after = RouterRules(config)
    after.load_state_dict(json.loads(json.dumps(before.state_dict(), allow_nan=False)))
    found += [told(after.judge(report)) for report in series[cut:]]

    assert found == expected
    assert after.standing() == through.standing()
    assert after.state_dict() == through.state_dict()


def full_state() -> dict[str, Any]:
    rules = RouterRules(WatchConfig())
    for place, z in enumerate((14.0, 16.0, 19.0, 24.0, math.nan)):
        layer = LayerFigures(
            name="moe", num_experts=4, top_k=1, z=z, load_balance=5.0, counts=(400, 0, 0, 0), token_entropy=1.0
        )
        rules.judge(RouterReport(step=2_000 + place, first_step=2_000 + place, layers=(layer,)))
    return rules.state_dict()


def broken_states() -> dict[str, Any]:
    """The state with one entry at a time replaced by something else, by its path."""
    states: dict[str, Any] = {"text": "state", "none": None, "empty": {}}

    def walk(part: Any, path: tuple[Any, ...]) -> None:
        places = part.keys() if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ()
        for place in places:
            if "figures" in path or place in ("figures", "finding"):
                continue
            state = copy.deepcopy(full_state())
            inner = state
            for step in path:
                inner = inner[step]
            inner[place] = object
            states[".".join(map(str, (*path, place)))] = state
            walk(part[place], (*path, place))

    walk(full_state(), ())
    return states


@pytest.mark.parametrize(("state"), [pytest.param(one, id=name) for name, one in broken_states().items()])
def test_a_state_with_anything_else_in_a_place_is_refused_and_changes_nothing(state: Any) -> None:
    rules = RouterRules(WatchConfig())
    before = rules.state_dict()

    with pytest.raises(UsageError, match="state"):
        rules.load_state_dict(state)

    assert rules.state_dict() == before


@pytest.mark.parametrize("kind", sorted(full_state()["judgements"]))
def test_a_judgement_that_a_state_does_not_know_starts_empty(kind: str) -> None:
    state = full_state()
    del state["judgements"][kind]
    rules, fresh = RouterRules(WatchConfig()), RouterRules(WatchConfig())

    rules.load_state_dict(state | {"judgements": state["judgements"] | {"tides": 3}})

    assert rules.state_dict()["judgements"] == state["judgements"] | {kind: fresh.state_dict()["judgements"][kind]}


def test_a_state_of_another_version_says_so() -> None:
    with pytest.raises(UsageError, match="version 2; here version is 1"):
        RouterRules(WatchConfig()).load_state_dict(full_state() | {"version": 2})


def test_what_a_state_holds_does_not_grow_with_the_run() -> None:
    def size_after(num_reports: int) -> int:
        rules = RouterRules(WatchConfig())
        for place in range(num_reports):
            layer = LayerFigures(
                name="moe", num_experts=4, top_k=1, z=9.0 + place % 3, load_balance=1.0, counts=(9, 9, 0, 9)
            )
            rules.judge(RouterReport(step=place, first_step=place, layers=(layer,)))
        return len(json.dumps(rules.state_dict()))

    assert size_after(3_000) < 1.3 * size_after(1_500)


def test_names_of_strangers_are_bounded() -> None:
    rules = RouterRules(WatchConfig())
    for place in range(12):
        layers = tuple(LayerFigures(name=f"{place}.{n}", num_experts=4, top_k=1, z=9.0) for n in range(1_000))
        rules.judge(RouterReport(step=place, first_step=place, layers=layers))

    assert len(rules.state_dict()["courses"]["courses"]) == 4_096
