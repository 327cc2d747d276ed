"""Findings spell themselves: strict JSON, and a notebook's tables that hold nothing but text."""

import dataclasses
import json
import math

from trimtab.findings import Blame, Findings, RowShare, Spike

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


def test_a_leading_row_is_a_cause_only_where_the_blame_names_it():
    findings = dataclasses.replace(FINDINGS, blame=Blame(step=9, rows=(17, 3), reason="nonfinite"))
    assert findings.first_row_is_cause
    # then: not without a blame, and not by one that names others or none
    assert not FINDINGS.first_row_is_cause
    other = Blame(step=9, rows=(3,), reason="nonfinite")
    assert not dataclasses.replace(findings, blame=other).first_row_is_cause
    assert not dataclasses.replace(findings, rows=()).first_row_is_cause
