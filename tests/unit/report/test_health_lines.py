"""How the health of a run and its routers are drawn: what stands there, and nothing where there is nothing."""

import pytest

from trimtab.router_summary import LayerSummary, RouterSummary
from trimtab.watched import WatchFinding

Z_BAND = WatchFinding(
    kind="z_band",
    severity="warning",
    step=3000,
    text="router z is 0.082, below its band of 1 to 150",
    layers=("moe.3",),
)
COLLAPSE = WatchFinding(kind="collapse", severity="critical", step=750, text="layer moe.3 is sure of few experts")


def layer(name, **figures):
    return LayerSummary(name=name, num_experts=8, **figures)


def summary(*layers, step=3000, **fields):
    return RouterSummary(step=step, first_step=step - 249, z=None, z_scale=None, layers=layers, **fields)


def test_a_finding_is_one_line_with_severity_step_kind_and_figures(draw, make_findings):
    drawn = draw(make_findings(health=(COLLAPSE, Z_BAND))).splitlines()
    at = drawn.index("critical  step  750  collapse: layer moe.3 is sure of few experts.")
    assert drawn[at + 1] == "warning   step 3000  z_band: router z is 0.082, below its band of 1 to 150."


def test_where_there_is_nothing_to_warn_of_nothing_is_added(draw, make_findings):
    drawn = draw(make_findings())
    assert "Routers" not in drawn
    assert drawn == draw(make_findings(health=(), router=None, router_at_finding=None))


def test_the_worst_layers_are_a_table_without_columns_that_nobody_knows(draw, make_findings):
    # given: more layers than are shown, none of which knows its confidence
    layers = [layer(f"moe.{place}", z=15.2, load_balance=1.01, max_vio=0.22, num_silent=0) for place in range(11)]
    # when
    drawn = draw(make_findings(router=summary(*layers, layers_left_out=3)))
    # then
    lines = drawn.splitlines()
    at = lines.index("Routers at the last report, steps 2751-3000:")
    assert lines[at + 2].split() == ["layer", "z", "balance", "MaxVio", "silent"]
    assert lines[at + 4].split() == ["moe.0", "15.2", "1.01", "0.22", "0/8"]
    assert sum(line.startswith("moe.") for line in lines) == 8
    assert "and 6 more layers, in better balance; --json lists up to 256" in lines


def test_headings_that_do_not_say_it_are_told_with_unit_and_reference_once(draw, make_findings):
    # given
    first, last = summary(layer("a", token_entropy=1.2), step=500), summary(layer("a", token_entropy=1.5, num_silent=0))
    # when
    drawn = draw(make_findings(router=last, router_at_finding=first)).splitlines()
    # then
    legend = (
        "token H: token entropy in nats, from 0 (sure) to ln 8 = 2.079 (unsure); silent: experts without a token in"
    )
    assert drawn.count(f"{legend} the report, by chance or dead") == 1
    assert not any("load H" in line for line in drawn)


def test_a_table_of_headings_that_say_it_themselves_has_no_legend(draw, make_findings):
    assert "token H" not in draw(make_findings(router=summary(layer("a", z=1.0, load_balance=1.0))))


def test_a_z_of_the_whole_model_says_what_it_is_of(draw, make_findings):
    whole = RouterSummary(step=9, first_step=9, z=0.082, z_scale="sum", layers=())
    assert (
        "Routers at the last report, step 9, z 0.082 (summed over layers)"
        in draw(make_findings(router=whole)).splitlines()
    )


def test_what_could_not_be_measured_stands_once_below_the_last_report(draw, make_findings):
    # given: the last report has all notes of those before it
    first = summary(layer("moe.0", z=1.0), step=500, notes=("no mask was seen",))
    last = summary(layer("moe.0", z=1.0), notes=("no mask was seen", *(f"[bold]gate.{at}\x1b[31m" for at in range(9))))
    # when
    drawn = draw(make_findings(router=last, router_at_finding=first))
    # then
    told = [line for line in drawn.splitlines() if line.startswith("Note on the routers: ")]
    assert told[:2] == ["Note on the routers: no mask was seen", "Note on the routers: [bold]gate.0\\x1b[31m"]
    assert len(told) == 8
    assert "and 2 more; --json lists up to 100" in drawn


def test_more_findings_than_are_listed_are_counted(draw, make_findings):
    drawn = draw(make_findings(health=(Z_BAND,) * 23, health_left_out=2))
    assert drawn.count("z_band:") == 20
    assert "and 5 more; --json lists up to 1,000" in drawn


@pytest.mark.parametrize("evil", ["\x1b[31m", "\u202e", "[bold]", "\n"], ids=["escape", "override", "markup", "line"])
def test_names_and_texts_of_a_stranger_act_on_nothing(draw, make_findings, evil):
    finding = WatchFinding(kind="z_band", severity="notice", step=1, text=f"z of {evil}layer", layers=(evil,))
    drawn = draw(make_findings(health=(finding,), router=summary(layer(f"gate{evil}x", z=1.0))))
    assert drawn.isascii()
    assert "\x1b" not in drawn
    assert evil in drawn if evil == "[bold]" else True
    assert len([line for line in drawn.splitlines() if "z_band" in line]) == 1


def test_a_notebook_shows_the_health_as_text(make_findings):
    finding = WatchFinding(kind="collapse", severity="critical", step=7, text="layer <script>x</script> is one-hot")
    html = make_findings(health=(finding,))._repr_html_()
    assert "critical, step 7, collapse: layer &lt;script&gt;" in html
    assert "<script>" not in html
