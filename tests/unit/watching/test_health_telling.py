"""What a finding looks like as a line: its severity, its level, and what has the same cause in the same line."""

import logging

import pytest

from trimtab.watched import WatchFinding
from trimtab.watching.telling import lines_of


def finding(kind, *, severity="warning", step=70, layers=(), text=None):
    return WatchFinding(kind=kind, severity=severity, step=step, text=text or f"{kind} it is", layers=layers)


@pytest.mark.parametrize(
    ("severity", "level"),
    [("critical", logging.ERROR), ("warning", logging.WARNING), ("notice", logging.INFO)],
)
def test_a_line_names_the_severity_and_its_level_follows(severity, level):
    assert lines_of([finding("clip_fraction", severity=severity)]) == [
        (level, f"Trimtab, step 70: {severity}: clip_fraction: clip_fraction it is.")
    ]


def test_what_is_found_at_launch_on_another_rank_says_so():
    [(_, line)] = lines_of([finding("host_memory", step=0)], whose=" on rank 3")
    assert line == "Trimtab, at launch on rank 3: warning: host_memory: host_memory it is."


def test_findings_of_one_report_about_the_same_routers_are_one_line_that_begins_with_the_worst():
    of_one = [
        finding("dead_experts", layers=("a",)),
        finding("load_balance_rising", layers=("b",)),
        finding("collapse", severity="critical", layers=("a",)),
        finding("z_band", layers=("a",)),
    ]
    assert lines_of(of_one) == [
        (logging.ERROR, "Trimtab, step 70: critical: collapse: collapse it is. Also dead_experts and z_band."),
        (logging.WARNING, "Trimtab, step 70: warning: load_balance_rising: load_balance_rising it is."),
    ]


def test_findings_of_several_evaluations_are_a_line_each():
    wiki, code = (finding("eval_regression", text=f"{name} became worse") for name in ("wiki", "code"))
    assert [line.rpartition(": ")[2] for _, line in lines_of([wiki, code])] == [
        "wiki became worse.",
        "code became worse.",
    ]
