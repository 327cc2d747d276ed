"""Strict JSON, whatever was found."""

import json
import math

import pytest

from trimtab.findings import Comparison, SharedSpike
from trimtab.report import as_json


def strict(text):
    def refuse(constant):
        raise ValueError(f"bare {constant}")

    return json.loads(text, parse_constant=refuse)


def test_the_document_has_the_keys_of_the_schema(make_findings):
    document = strict(as_json.dumps(make_findings()))
    assert list(document) == [
        "version",
        "run_id",
        "source",
        "rule",
        "num_steps",
        "step",
        "step_reason",
        "spikes",
        "spikes_left_out",
        "rows",
        "rows_left_out",
        "preview_withheld",
        "health",
        "health_left_out",
        "router",
        "router_at_finding",
        "notices",
    ]
    assert {"step", "first", "last", "num_steps", "kind", "signal", "severity", "rule", "value", "loss"} <= set(
        document["spikes"][0]
    )
    assert list(document["rows"][0]) == [
        "row",
        "count",
        "loss",
        "tokens",
        "share",
        "excess",
        "repetition",
        "rank",
        "preview",
        "name",
        "table_row",
    ]


@pytest.mark.parametrize(("value", "spelled"), [(math.nan, "nan"), (math.inf, "inf"), (-math.inf, "-inf")])
def test_numbers_that_are_not_finite_are_texts(make_findings, make_spike, make_row, value, spelled):
    spike = make_spike(value=value, loss=value, baseline=1.0)
    document = strict(as_json.dumps(make_findings(spikes=(spike,), rows=(make_row(loss=value),))))
    assert document["spikes"][0]["value"] == document["spikes"][0]["loss"] == spelled
    assert document["spikes"][0]["ratio"] == spelled
    assert document["rows"][0]["loss"] == spelled


def test_a_null_and_the_three_other_values_are_told_apart(make_findings, make_row):
    rows = tuple(make_row(loss=loss) for loss in (None, math.nan, math.inf, -math.inf))
    document = strict(as_json.dumps(make_findings(rows=rows)))
    assert [row["loss"] for row in document["rows"]] == [None, "nan", "inf", "-inf"]


def test_lone_surrogates_never_reach_a_reader(make_findings):
    text = as_json.dumps(make_findings(source="a\udc80b", notices=("\ud800",)))
    assert strict(text)["source"] == "a\\udc80b"
    strict(text)["notices"][0].encode("utf-8")


def test_several_runs_are_one_document(make_findings):
    shared = SharedSpike(step=9, rows=(17,), runs=("a", "b"), rows_known=True)
    found = Comparison(runs=(make_findings(), make_findings()), shared=(shared,), num_different=2)
    document = strict(as_json.dumps(found))
    assert (document["version"], len(document["runs"])) == (1, 2)
    assert document["shared"] == [{"step": 9, "rows": [17], "runs": ["a", "b"]}]


def test_a_bare_nan_cannot_be_written():
    with pytest.raises(ValueError, match="JSON"):
        as_json.dumps_document({"value": math.nan})
