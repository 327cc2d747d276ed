"""Several runs, in words."""

import io

import pytest
from rich.console import Console

from trimtab.findings import Comparison, SharedSpike
from trimtab.report.shared import render_shared


def drawn(*shared, num_runs=3):
    file = io.StringIO()
    found = Comparison(runs=(), shared=shared, num_different=num_runs)
    render_shared(found, console=Console(file=file, width=200))
    return file.getvalue().strip()


def shared(step=946, rows=(), runs=("a", "b"), *, rows_known=True, last=None):
    return SharedSpike(step=step, rows=rows, runs=runs, rows_known=rows_known, last=last)


@pytest.mark.parametrize(
    ("spike", "said"),
    [
        (shared(rows=(17,)), "Step 946, row 17: the same rows spike in 2 of 3 runs: the data's doing"),
        (
            shared(step=None, rows=(17,)),
            "row 17, at different steps: the same rows spike in 2 of 3 runs: the data's doing",
        ),
        (shared(), "Step 946 spikes in 2 of 3 runs, but at other rows: not the data's doing"),
        (
            shared(rows_known=False),
            "Step 946 spikes in 2 of 3 runs; the rows are known of one of them at most. In the same data order that is "
            "the data's doing",
        ),
        (shared(rows=(17,), last=950), "Steps 946-950, row 17: the same rows spike in 2 of 3 runs: the data's doing"),
        (
            shared(last=946),
            "Step 946: spikes in 2 of 3 runs that begin or peak at different steps. Their leading rows are of "
            "different steps: --step N shows those of one step in each run",
        ),
        (
            shared(rows_known=False, last=950),
            "Steps 946-950: spikes in 2 of 3 runs that begin or peak at different steps. The rows are known "
            "of one of them at most; in the same data order that may be the data's doing",
        ),
    ],
)
def test_what_runs_have_in_common_is_said(spike, said):
    assert drawn(spike) == said


def test_nothing_in_common_is_said():
    assert drawn() == "No step and no leading row is out of line in more than one of the 3 runs."


def test_a_long_list_is_cut_and_counted():
    text = drawn(*[shared(step=step) for step in range(25)])
    assert text.count("\n") == 20
    assert text.endswith("and 5 more shared spikes; --json lists them")


def test_logs_of_one_run_are_not_compared():
    assert drawn(num_runs=1) == "These are logs of one run: there is nothing to compare."
