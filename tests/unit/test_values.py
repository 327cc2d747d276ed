"""Values spell themselves: strict JSON, and a notebook's tables that hold nothing but text."""

import json
import math

from trimtab.values import Findings, RowShare, Spike, json_number

SPIKE = Spike(
    step=9,
    first=9,
    last=9,
    num_steps=1,
    kind="nonfinite",
    signal="loss",
    severity="critical",
    rule="median",
    value=math.inf,
    loss=math.inf,
    baseline=0.0,
    score=None,
)
ROW = RowShare(row=17, count=1, loss=-math.inf, tokens=300, share=0.0, excess=None)
FINDINGS = Findings(
    run_id="<script>alert(1)</script>\u202e",
    source="somewhere",
    rule="median",
    num_steps=9,
    step=9,
    step_reason="worst",
    spikes=(SPIKE,),
    spikes_left_out=0,
    rows=(ROW,),
    rows_left_out=0,
    notices=("a <b>bold</b> notice",),
)


def test_numbers_that_json_lacks_are_told_apart_as_strings():
    assert [json_number(x) for x in (math.nan, math.inf, -math.inf, None, 1.5)] == ["nan", "inf", "-inf", None, 1.5]


def test_a_ratio_needs_a_positive_baseline():
    assert SPIKE.ratio is None


def test_findings_are_strict_json():
    document = json.loads(json.dumps(FINDINGS.to_dict(), allow_nan=False))

    assert document["spikes"][0]["value"] == "inf"
    assert document["rows"][0]["loss"] == "-inf"


def test_a_notebook_shows_findings_as_text_only():
    page = FINDINGS._repr_html_()

    assert "<script" not in page
    assert "&lt;b&gt;bold" in page
    assert "\u202e" not in page
    assert "<td>17</td>" in page
