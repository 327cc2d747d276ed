"""`trimtab rewind` and the health of a run: its lines, its JSON, and what `--fail-on` counts."""

import json

import pytest


@pytest.fixture
def worse(here):
    """A history without a spike whose evaluations get worse."""
    lines = [f"{10 * at},2.0,{loss}" for at, loss in enumerate((7.6066, 7.6406, 8.2422, 8.2717), start=1)]
    path = here / "history.csv"
    path.write_text("\n".join(["step,loss,eval_loss", *lines]) + "\n")
    return path


def test_a_finding_of_the_health_is_a_line_below_the_spikes(trimtab, worse):
    result = trimtab("rewind", worse)
    assert result.exit_code == 0
    drawn = result.stdout.splitlines()
    [at] = [place for place, line in enumerate(drawn) if line.startswith("warning  ")]
    assert drawn.index("No spike: none of the 4 steps is out of line.") < at
    assert "step 40  eval_regression: " in drawn[at]


@pytest.mark.parametrize(("severity", "exit_code"), [("warning", 3), ("critical", 0)])
def test_fail_on_counts_the_health_by_its_severity(trimtab, worse, severity, exit_code):
    assert trimtab("rewind", worse, "--fail-on", severity).exit_code == exit_code


def test_the_json_lists_the_health_of_each_of_several_runs(trimtab, worse, here):
    (here / "fine.csv").write_text("step,loss\n1,2.0\n2,2.0\n")
    document = json.loads(trimtab("rewind", worse, here / "fine.csv", "--json", "-").stdout)
    first, second = document["runs"]
    assert [(finding["kind"], finding["step"]) for finding in first["health"]] == [("eval_regression", 40)]
    assert first["health"][0]["figures"]["best"] == 7.6066
    assert (second["health"], second["health_left_out"], second["router"]) == ([], 0, None)
