"""The gate of z: out of its band, growing, no number, or another tool's."""

import dataclasses
import math

import pytest

from trimtab import WatchConfig
from trimtab.gates.evidence import read_evidence
from trimtab.gates.router_z import router_z

EVERY_TEN = WatchConfig(report_every=10, host_memory_floor_bytes=1)


@pytest.mark.parametrize(
    ("z_of", "status"),
    [
        (lambda step: 295.0 if step < 50 else 0.08, "failed"),
        (lambda step: 14.0 if step < 60 else 14.0 * 1.4 ** ((step - 50) / 10), "failed"),
        (lambda step: 2.5 + 0.1 * (step % 3), "passed"),
        (lambda step: math.nan if step == 60 else 6.0, "failed"),
    ],
    ids=["fell", "grows", "level", "nan"],
)
def test_a_z_that_falls_out_of_its_band_or_grows_or_is_no_number_fails(run, make_layer, make_report, z_of, status):
    config = WatchConfig(report_every=10, host_memory_floor_bytes=1, router_warmup_steps=0)

    def layer_of(z):
        uniform = {"token_entropy": math.log(8), "spread": 0.01} if z < 1 else {}
        return make_layer(z=z, lse=z**0.5, **uniform)

    run.attempt(1, 100, watch=config, reports=lambda step: make_report(step, layer_of(z_of(step))))
    gate = run.judge(router_z)
    assert gate.status == status
    if status == "failed":
        assert "router" in gate.text
        assert "step " in gate.text


def of_one(run, make_layer, make_report, z_of, *, watch=EVERY_TEN, **figures):
    """Reports of a sound layer, and of one whose z is that of each step."""

    def report(step):
        return make_report(
            step, make_layer("moe.0"), make_layer("moe.1", z=z_of(step), lse=z_of(step) ** 0.5, **figures)
        )

    run.attempt(1, 100, watch=watch, reports=report)
    return run.judge(router_z)


@pytest.mark.parametrize(
    ("z_of", "status"),
    [
        (lambda step: 5_000.0 if step == 100 else 8.0, "failed"),
        (lambda step: 500.0 if step >= 50 else 8.0, "failed"),
        (lambda step: 150.5, "failed"),
        (lambda step: 149.5, "passed"),
    ],
    ids=["once", "stands", "above", "below"],
)
def test_a_z_above_its_band_in_the_last_report_fails_whether_it_rises_or_not(
    run, make_layer, make_report, z_of, status
):
    gate = of_one(run, make_layer, make_report, z_of)
    assert gate.status == status
    assert "0.3 to 150" in gate.text
    if status == "failed":
        assert gate.text.startswith(f"router z of layer moe.1 is {z_of(100):.4g}, above its band of 0.3 to 150; z of a")


def test_one_that_was_above_it_and_is_back_is_told(run, make_layer, make_report):
    gate = of_one(run, make_layer, make_report, lambda step: 500.0 if step == 50 else 8.0)
    assert gate.status == "passed"
    assert gate.text == "z of a layer 6 to 500; 6 to 8 at step 100 (band 0.3 to 150); it was outside and is back"


def test_one_that_a_z_loss_holds_below_its_band_passes_where_the_router_works(run, make_layer, make_report):
    gate = of_one(run, make_layer, make_report, lambda step: 0.1)
    assert gate.status == "passed"
    assert gate.text.endswith("(band 0.3 to 150); below it over routers that choose, balanced")


def test_one_that_has_left_the_band_by_the_settings_of_its_watch_fails(run, make_layer, make_report):
    of_sum = dataclasses.replace(EVERY_TEN, z_band_of="sum", z_sum_high=13.0)
    gate = of_one(run, make_layer, make_report, lambda step: 8.0, watch=of_sum)
    assert gate.status == "failed"
    assert gate.text.startswith("router z summed over layers is 14, above its band of 1 to 13;")


def test_of_another_tools_router_figures_a_bad_one_fails_and_a_good_one_is_unknown(tmp_path):
    for name, z in (("good", [20.0] * 60), ("bad", [295.2] * 20 + [26.2] * 20 + [0.08] * 20)):
        lines = [f"{step},2.0,1.0,{value}\n" for step, value in enumerate(z, start=1)]
        (tmp_path / f"{name}.csv").write_text("step,loss,grad_norm,router_z_loss\n" + "".join(lines))
    assert router_z(read_evidence(tmp_path / "good.csv")).status == "unknown"
    assert router_z(read_evidence(tmp_path / "bad.csv")).status == "failed"
