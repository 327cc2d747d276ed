"""What a watch measures and finds, spelled and read back; and facts that nobody spelled like this."""

import json
import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimtab.log.records import event_blocks
from trimtab.values import Event
from trimtab.watched import LayerFigures, RouterReport, Vitals, WatchFinding
from trimtab.watched_json import (
    MAX_EXPERTS,
    finding_from_facts,
    report_from_facts,
    report_to_facts,
    vitals_from_facts,
    vitals_to_facts,
)

WHOLE = st.none() | st.integers(0, 2**63 - 1)
REAL = st.none() | st.floats(allow_nan=False)
LAYERS = st.builds(
    LayerFigures,
    name=st.text(max_size=20),
    num_experts=WHOLE,
    top_k=WHOLE,
    num_tokens=WHOLE,
    z=REAL,
    lse=REAL,
    load_balance=REAL,
    counts=st.none() | st.lists(st.integers(0, 2**63 - 1), max_size=8).map(tuple),
    token_entropy=REAL,
    spread=REAL,
    population_cosine=REAL,
)
REPORTS = st.integers(0, 10**9).flatmap(
    lambda step: st.builds(
        RouterReport,
        step=st.just(step),
        first_step=st.integers(0, step),
        layers=st.lists(LAYERS, max_size=4).map(tuple),
        num_populations=st.integers(1, 8),
        z=REAL,
        z_scale=st.sampled_from(["layer", "sum", "mean"]),
        z_factor=st.floats(allow_nan=False),
        expected_tokens=WHOLE,
        num_ranks=st.integers(1, 64),
        notes=st.lists(st.text(max_size=20), max_size=3).map(tuple),
    )
)
HOSTILE = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**400), 10**400) | st.floats() | st.text(max_size=5) | st.just("nan"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


def through_json(facts: Any) -> Any:
    return json.loads(json.dumps(facts, allow_nan=False))


@given(REPORTS)
def test_a_report_comes_back_equal(report: RouterReport) -> None:
    assert report_from_facts(through_json(report_to_facts(report)), step=-1) == report


def test_numbers_that_are_not_finite_come_back_as_they_were() -> None:
    layer = LayerFigures(name="moe", z=math.nan, lse=-math.inf, spread=math.inf)

    (back,) = report_from_facts(
        through_json(report_to_facts(RouterReport(step=5, first_step=1, layers=(layer,)))), step=0
    ).layers

    assert back.z is not None
    assert math.isnan(back.z)
    assert (back.lse, back.spread) == (-math.inf, math.inf)


def test_a_report_names_each_figure_once_and_leaves_out_what_nobody_knows() -> None:
    layers = tuple(LayerFigures(name=f"moe.{n}", num_experts=2, z=4.5, counts=(3, 5)) for n in range(2))

    facts = report_to_facts(RouterReport(step=50, first_step=1, layers=layers))

    assert facts["layers"] == {
        "name": ["moe.0", "moe.1"],
        "num_experts": [2, 2],
        "z": [4.5, 4.5],
        "counts": [[3, 5], [3, 5]],
    }
    assert "z" not in facts
    assert "notes" not in facts


def test_a_report_of_a_large_model_fits_into_an_event() -> None:
    layer = LayerFigures(
        name="model.layers.60.mlp.gate", num_experts=384, top_k=8, num_tokens=10**9, z=1 / 3, counts=(10**8,) * 384
    )
    report = RouterReport(step=50, first_step=1, layers=(layer,) * 60)

    blocks, num_refused = event_blocks([Event("router", 50, 0.0, report_to_facts(report))])[:2]

    assert blocks
    assert not num_refused


def test_counts_of_more_experts_than_there_can_be_are_not_read() -> None:
    def read(num_experts: int) -> Any:
        [layer] = report_from_facts({"layers": {"name": ["gate"], "counts": [[1] * num_experts]}}, step=50).layers
        return layer.counts

    assert read(MAX_EXPERTS) == (1,) * MAX_EXPERTS
    assert read(MAX_EXPERTS + 1) is None


@pytest.mark.parametrize("part", [one.name for one in fields(RouterReport)])
@given(found=HOSTILE)
def test_a_report_of_hostile_facts_is_a_report(part: str, found: Any) -> None:
    report = RouterReport(step=50, first_step=1, layers=(LayerFigures(name="moe", z=4.5),))

    back = report_from_facts(report_to_facts(report) | {part: found}, step=50)

    assert isinstance(back, RouterReport)
    assert type(back.step) is int
    json.dumps(report_to_facts(back), allow_nan=False)


@given(columns=st.dictionaries(st.sampled_from([one.name for one in fields(LayerFigures)]), HOSTILE))
def test_layers_of_hostile_columns_have_figures_or_none(columns: dict[str, Any]) -> None:
    back = report_from_facts({"layers": {"name": ["a", 5, None, "b"]} | columns}, step=50)

    for layer in back.layers:
        assert isinstance(layer.name, str)
        assert layer.z is None or type(layer.z) is float
        assert layer.counts is None or all(type(count) is int and count >= 0 for count in layer.counts)


@pytest.mark.parametrize("facts", [None, [], "facts", 5, {"layers": {"name": "abc"}}], ids=str)
def test_facts_that_are_none_are_an_empty_report_of_the_events_step(facts: Any) -> None:
    assert report_from_facts(facts, step=70) == RouterReport(step=70, first_step=70)


def test_a_factor_that_is_none_does_not_pass_for_1() -> None:
    assert math.isnan(report_from_facts({"z_factor": "a tenth"}, step=1).z_factor)
    assert report_from_facts({}, step=1).z_factor == 1.0


def test_vitals_come_back_equal_and_hostile_ones_without_what_they_are_not() -> None:
    vitals = Vitals(step=7, host_available_bytes=10, update_ratio={"w": 1e-3, "v": math.inf}, attention_logit=88.5)

    assert vitals_from_facts(through_json(vitals_to_facts(vitals)), step=0) == vitals
    hostile = {"step": True, "host_available_bytes": -1, "update_ratio": {"w": "much", "v": 2}, "attention_logit": []}
    assert vitals_from_facts(hostile, step=3) == Vitals(step=3, update_ratio={"v": 2.0})


@given(facts=HOSTILE)
def test_any_facts_at_all_are_vitals_and_a_finding_or_none(facts: Any) -> None:
    assert isinstance(vitals_from_facts(facts, step=1), Vitals)
    assert finding_from_facts(facts, step=1) is None


def test_a_finding_comes_back_equal() -> None:
    finding = WatchFinding(
        kind="z_band",
        severity="warning",
        step=3000,
        text="router z is 0.082",
        layers=("a", "b"),
        figures={"z": 0.082, "layers": {"a": {"z": "nan"}}},
        marks_unhealthy=True,
    )

    assert finding_from_facts(through_json(finding.to_dict()), step=0) == finding


@pytest.mark.parametrize(
    "change",
    [{"kind": "made_up"}, {"kind": ["z_band"]}, {"text": None}],
    ids=["unknown_kind", "kind_is_a_list", "no_text"],
)
def test_a_finding_without_a_kind_or_a_text_is_none(change: dict[str, Any]) -> None:
    assert finding_from_facts({"kind": "z_band", "text": "low"} | change, step=0) is None
    assert finding_from_facts({"kind": "z_band", "text": "low", "marks_unhealthy": 1}, step=9) == WatchFinding(
        kind="z_band", severity="warning", step=9, text="low"
    )


def test_figures_of_a_finding_are_read_as_deep_as_ours_are():
    # given figures nested deeper than any reader can follow, as one line of a log may have them
    nested = 1
    for _ in range(900):
        nested = {"a": nested}
    ours = {"from": 1.5, "weights": {"w": 0.25}, "counts": [[1, 2]], "way": "one_hot", "all": None, "is": True}
    # when
    facts = {"kind": "collapse", "text": "t", "figures": {**ours, "deep": nested, "x" * 5_000: [0] * 5_000}}
    found = finding_from_facts(facts, step=7)
    # then
    assert {name: found.figures[name] for name in ours} == ours
    assert found.figures["deep"] == {"a": {"a": {"a": None}}}
    assert max(map(len, found.figures)) == 1_000
    assert len(found.figures["x" * 1_000]) == 1_000
    assert json.loads(json.dumps(found.to_dict()))


def test_a_text_and_a_step_of_a_finding_act_on_nothing():
    found = finding_from_facts({"kind": "collapse", "text": "\x1b[31m\u202e evil\r\n", "step": -3}, step=-8)
    assert (found.text, found.step) == ("\\x1b[31m\\u202e evil\\r\\n", 0)
