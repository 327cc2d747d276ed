"""The answer in words."""

import math

import pytest

from trimtab.findings import Blame
from trimtab.report.headline import headline
from trimtab.watched import WatchFinding


def test_the_row_behind_a_finding_is_named_with_its_share(make_findings):
    assert headline(make_findings()) == [
        "row 17: 98% of step 9's loss, 300 tokens",
        "Inspect or drop this row, then retrain.",
    ]


def test_a_row_that_is_not_finite_is_named_and_the_others_counted(make_findings, make_spike, make_row):
    dead = make_row(loss=math.nan, share=0.0, tokens=80)
    spikes = (make_spike(kind="nonfinite", value=math.nan),)
    blame = Blame(step=9, rows=(17,), reason="nonfinite")
    for num, more in (
        (1, ""),
        (2, "; 1 more row of the step is not finite"),
        (13, "; 12 more rows of the step are not finite"),
    ):
        lines = headline(
            make_findings(spikes=spikes, rows=(dead, make_row(row=3)), num_nonfinite_rows=num, blame=blame)
        )
        assert lines == [
            f"row 17: its loss is not finite (nan) in step 9, 80 tokens{more}",
            "Inspect or drop this row, then retrain.",
        ]


def test_where_half_of_the_rows_are_not_finite_the_model_is_named_and_no_row(
    make_findings, make_spike, make_row, blame_none
):
    dead = tuple(make_row(row=row, loss=math.nan, share=0.0) for row in (3, 4))
    spikes = (make_spike(kind="nonfinite", value=math.nan),)
    blame = blame_none("mostly_nonfinite")
    lines = headline(make_findings(spikes=spikes, rows=dead, num_nonfinite_rows=2, blame=blame))
    assert lines[-1] == "Half of step 9's rows or more are not finite: that is the model. Look at the steps before."


def test_a_step_that_is_no_finding_is_not_called_one(make_findings, make_row, blame_none):
    rows = (make_row(share=0.7), make_row(row=2, share=0.3))
    blame = blame_none("suspect", step=3)
    lines = headline(make_findings(step=3, step_reason="asked", rows=rows, blame=blame))
    assert lines == ["Step 3 is not a spike; its largest row is row 17: 70% of step 3's loss, 300 tokens"]


def test_a_step_inside_a_stretch_is_a_finding(make_findings, make_spike):
    spikes = (make_spike(step=12, first=8, last=20),)
    assert headline(make_findings(spikes=spikes))[-1] == "Inspect or drop this row, then retrain."


def test_a_finding_without_a_leading_row_blames_none(make_findings, make_row, blame_none):
    rows = (make_row(share=0.4), make_row(row=2, share=0.3))
    lines = headline(make_findings(rows=rows, blame=blame_none("spread")))
    assert lines[-1] == "No single row made step 9: look at its rows together."


def test_the_share_of_the_only_row_says_nothing(make_findings, make_row, blame_none):
    only, blame = (make_row(share=1.0),), blame_none("only_row")
    assert headline(make_findings(rows=only, blame=blame)) == [
        "row 17: 100% of step 9's loss, 300 tokens; the only row in its step: its share says nothing"
    ]
    assert headline(make_findings(rows=only, step=3, spikes=(), blame=blame))[-1] == "Step 3 is not a spike."
    # then: a row alone in the list is not alone in the step
    assert "only row" not in " ".join(headline(make_findings(rows=only, rows_left_out=5)))


def test_the_share_of_the_only_row_with_a_loss_says_nothing_either(make_findings, make_row, blame_none):
    rows = (make_row(share=1.0), make_row(row=2, loss=None, share=0.0, tokens=0))
    lines = headline(make_findings(rows=rows, rows_left_out=3, blame=blame_none("only_row")))
    assert lines == [
        "row 17: 100% of step 9's loss, 300 tokens; the only row with a loss in its step: its share says nothing"
    ]


def test_an_only_row_that_is_not_finite_is_the_cause(make_findings, make_row, make_spike):
    only = (make_row(loss=math.inf, share=0.0),)
    blame = Blame(step=9, rows=(17,), reason="nonfinite")
    spikes = (make_spike(kind="nonfinite"),)
    lines = headline(make_findings(rows=only, spikes=spikes, num_nonfinite_rows=1, blame=blame))
    assert lines[-1] == "Inspect or drop this row, then retrain."


def test_a_row_without_tokens_is_neither_share_nor_cause(make_findings, make_row, blame_none):
    empty = (make_row(loss=None, share=0.0, tokens=0), make_row(row=2, loss=None, share=0.0, tokens=0))
    lines = headline(make_findings(rows=empty, step=3, blame=blame_none("no_losses", step=3)))
    assert lines == ["Step 3 is not a spike; its largest row is row 17: no supervised tokens in step 3"]


def test_a_step_without_shares_is_told_by_losses(make_findings, make_row, blame_none):
    rows = (make_row(share=None, loss=-1.5), make_row(row=2, share=None))
    lines = headline(make_findings(rows=rows, blame=blame_none("no_shares")))
    assert lines[0] == "row 17: loss -1.5 in step 9, 300 tokens"


def test_a_norm_that_jumped_first_is_explained(make_findings):
    lines = headline(make_findings(step_reason="grad_norm_before"))
    assert lines[0] == "The gradient norm jumped at step 9: its rows come first, the loss shows the harm later."
    assert lines[-1] == "Inspect or drop this row, then retrain."


def test_a_norm_that_jumped_while_no_loss_is_out_of_line_makes_suspects_and_drops_none(
    make_findings, make_spike, make_row, blame_none
):
    norm = make_spike(kind="grad_norm", signal="grad_norm", severity="notice")
    suspect = blame_none("suspect")
    # given: the row carries more than half
    rows = (make_row(share=0.69), make_row(row=2, share=0.31))
    said = "The gradient norm jumped at step 9, but no loss is out of line: its rows are only suspects."
    row = "row 17: 69% of step 9's loss, 300 tokens"
    given = dict(spikes=(norm,), rows=rows, blame=suspect)
    assert headline(make_findings(step_reason="grad_norm_before", **given)) == [said, row]
    assert headline(make_findings(step_reason="asked", **given)) == [row, said]
    # then: a loss finding elsewhere is not denied
    far = make_spike(step=80, first=80, last=80)
    lines = headline(make_findings(step_reason="asked", **{**given, "spikes": (far, norm)}))
    assert lines[-1].startswith("The gradient norm jumped at step 9, but no loss near it is out of line")


def test_a_loss_beyond_float32_is_called_not_finite_and_why(make_findings, make_spike, make_row):
    rows = (make_row(loss=1e300, share=0.0), make_row(row=2))
    blame = Blame(step=9, rows=(17,), reason="nonfinite")
    lines = headline(
        make_findings(spikes=(make_spike(kind="nonfinite"),), rows=rows, num_nonfinite_rows=1, blame=blame)
    )
    assert lines[0] == "row 17: its loss is not finite (1e+300, beyond float32) in step 9, 300 tokens"
    assert lines[1] == "Inspect or drop this row, then retrain."


def test_without_rows_nothing_is_said(make_findings):
    assert headline(make_findings(rows=())) == []
    assert headline(make_findings(step=None, step_reason=None, rows=(), spikes=())) == []


def test_a_long_id_of_a_row_is_cut_with_a_mark(make_findings, make_row):
    lines = headline(make_findings(rows=(make_row(name="a" * 200), make_row(row=16))))
    assert lines[0].startswith(f"row 17 (id {'a' * 200}): ")
    lines = headline(make_findings(rows=(make_row(name="\u4e2d" * 40), make_row(row=16))))
    assert lines[0].startswith("row 17 (id " + ("\\u4e2d" * 40)[:197] + "...): ")


def finding(kind="collapse", *, severity="critical", step=7):
    return WatchFinding(kind=kind, severity=severity, step=step, text="of the model")


@pytest.mark.parametrize(
    ("health", "told"),
    [
        ((finding(), finding("z_band", severity="warning", step=2)), "collapse was found at step 7, before it"),
        ((finding(step=9),), "collapse was found there"),
    ],
    ids=["before", "at it"],
)
def test_where_no_row_made_the_step_a_finding_of_the_model_is_named(make_findings, make_row, blame_none, health, told):
    rows = (make_row(share=0.4), make_row(row=2, share=0.3))
    lines = headline(make_findings(rows=rows, blame=blame_none("spread"), health=health))
    assert lines[-2:] == [
        "No single row made step 9: look at its rows together.",
        f"Its rows may not be why: {told}, which is of the model.",
    ]


@pytest.mark.parametrize(
    "health",
    [(finding(step=10),), (finding(severity="notice"),), (finding("host_memory"),), (finding("eval_regression"),)],
    ids=["later", "notice", "machine", "evaluation"],
)
def test_what_came_later_or_is_not_of_the_model_explains_no_step(make_findings, make_row, blame_none, health):
    rows = (make_row(share=0.4), make_row(row=2, share=0.3))
    lines = headline(make_findings(rows=rows, blame=blame_none("spread"), health=health))
    assert lines[-1] == "No single row made step 9: look at its rows together."


def test_a_row_that_is_the_cause_stays_the_cause_whatever_a_watch_has_found(make_findings):
    assert headline(make_findings(health=(finding(),)))[-1] == "Inspect or drop this row, then retrain."
