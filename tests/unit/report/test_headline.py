"""The answer in words."""

import math

from trimtab.report.headline import headline, is_cause


def test_the_row_behind_a_finding_is_named_with_its_share(make_findings):
    assert headline(make_findings()) == [
        "row 17: 98% of step 9's loss, 300 tokens",
        "Inspect or drop this row, then retrain.",
    ]


def test_a_row_that_is_not_finite_is_named_and_the_others_counted(make_findings, make_spike, make_row):
    dead = make_row(loss=math.nan, share=0.0, tokens=80)
    spikes = (make_spike(kind="nonfinite", value=math.nan),)
    for num, more in (
        (1, ""),
        (2, "; 1 more row of the step is not finite"),
        (13, "; 12 more rows of the step are not finite"),
    ):
        lines = headline(make_findings(spikes=spikes, rows=(dead, make_row(row=3)), num_nonfinite_rows=num))
        assert lines == [
            f"row 17: its loss is not finite (nan) in step 9, 80 tokens{more}",
            "Inspect or drop this row, then retrain.",
        ]


def test_a_step_that_is_no_finding_is_not_called_one(make_findings, make_row):
    lines = headline(make_findings(step=3, step_reason="asked", rows=(make_row(share=0.7), make_row(row=2, share=0.3))))
    assert lines == ["Step 3 is not a spike; its largest row is row 17: 70% of step 3's loss, 300 tokens"]


def test_a_step_inside_a_stretch_is_a_finding(make_findings, make_spike):
    spikes = (make_spike(step=12, first=8, last=20),)
    assert headline(make_findings(spikes=spikes))[-1] == "Inspect or drop this row, then retrain."


def test_a_finding_without_a_leading_row_blames_none(make_findings, make_row):
    lines = headline(make_findings(rows=(make_row(share=0.4), make_row(row=2, share=0.3))))
    assert lines[-1] == "No single row made step 9: look at its rows together."


def test_half_of_the_loss_is_enough(make_findings, make_row):
    lines = headline(make_findings(rows=(make_row(share=0.5), make_row(row=2, share=0.5))))
    assert lines[-1] == "Inspect or drop this row, then retrain."


def test_the_share_of_the_only_row_says_nothing(make_findings, make_row):
    only = (make_row(share=1.0),)
    assert headline(make_findings(rows=only)) == [
        "row 17: 100% of step 9's loss, 300 tokens; the only row in its step: its share says nothing"
    ]
    assert headline(make_findings(rows=only, step=3, spikes=()))[-1] == "Step 3 is not a spike."
    # then: a row alone in the list is not alone in the step
    assert "only row" not in " ".join(headline(make_findings(rows=only, rows_left_out=5)))


def test_the_share_of_the_only_row_with_a_loss_says_nothing_either(make_findings, make_row):
    rows = (make_row(share=1.0), make_row(row=2, loss=None, share=0.0, tokens=0))
    lines = headline(make_findings(rows=rows, rows_left_out=3))
    assert lines == [
        "row 17: 100% of step 9's loss, 300 tokens; the only row with a loss in its step: its share says nothing"
    ]


def test_an_only_row_that_is_not_finite_is_the_cause(make_findings, make_row, make_spike):
    only = (make_row(loss=math.inf, share=0.0),)
    lines = headline(make_findings(rows=only, spikes=(make_spike(kind="nonfinite"),), num_nonfinite_rows=1))
    assert lines[-1] == "Inspect or drop this row, then retrain."


def test_a_row_without_tokens_is_neither_share_nor_cause(make_findings, make_row):
    empty = (make_row(loss=None, share=0.0, tokens=0), make_row(row=2, loss=None, share=0.0, tokens=0))
    lines = headline(make_findings(rows=empty, step=3))
    assert lines == ["Step 3 is not a spike; its largest row is row 17: no supervised tokens in step 3"]


def test_a_step_without_shares_is_told_by_losses(make_findings, make_row):
    lines = headline(make_findings(rows=(make_row(share=None, loss=-1.5), make_row(row=2, share=None))))
    assert lines[0] == "row 17: loss -1.5 in step 9, 300 tokens"


def test_a_norm_that_jumped_first_is_explained(make_findings):
    lines = headline(make_findings(step_reason="grad_norm_before"))
    assert lines[0] == "The gradient norm jumped at step 9: its rows come first, the loss shows the harm later."


def test_a_norm_that_jumped_while_no_loss_is_out_of_line_makes_suspects(make_findings, make_spike):
    norm = make_spike(kind="grad_norm", signal="grad_norm", severity="notice")
    lines = headline(make_findings(step_reason="grad_norm_before", spikes=(norm,)))
    assert lines[0] == "The gradient norm jumped at step 9, but no loss is out of line: its rows are only suspects."


def test_a_loss_beyond_float32_is_called_not_finite_and_why(make_findings, make_spike, make_row):
    rows = (make_row(loss=1e300, share=0.0), make_row(row=2))
    lines = headline(make_findings(spikes=(make_spike(kind="nonfinite"),), rows=rows, num_nonfinite_rows=1))
    assert lines[0] == "row 17: its loss is not finite (1e+300, beyond float32) in step 9, 300 tokens"
    assert lines[1] == "Inspect or drop this row, then retrain."


def test_without_rows_nothing_is_said(make_findings):
    assert headline(make_findings(rows=())) == []
    assert headline(make_findings(step=None, step_reason=None, rows=(), spikes=())) == []


def test_a_cause_has_half_of_the_loss_or_is_not_finite(make_spike):
    assert is_cause(make_spike(row_share=0.5))
    assert is_cause(make_spike(row_share=0.0))
    assert not is_cause(make_spike(row_share=0.49))
    assert not is_cause(make_spike(row_share=1.0, is_only_row=True))
    assert is_cause(make_spike(row_share=0.0, is_only_row=True))
    # then: a norm that is out of line accuses nobody, one that is not finite does
    norm = dict(kind="grad_norm", signal="grad_norm", severity="notice", row_share=0.9)
    assert not is_cause(make_spike(**norm))
    assert is_cause(make_spike(**{**norm, "kind": "nonfinite", "severity": "critical"}))
    assert not is_cause(make_spike(row_share=None))
    assert not is_cause(make_spike(row=None, row_share=None))
