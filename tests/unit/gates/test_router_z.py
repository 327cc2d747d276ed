"""The gate of z: out of its band, growing, no number, or another tool's."""

import math

import pytest

from trimtab import WatchConfig
from trimtab.gates.evidence import read_evidence
from trimtab.gates.router_z import router_z


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
        assert "(step " in gate.text


def test_of_another_tools_router_figures_a_bad_one_fails_and_a_good_one_is_unknown(tmp_path):
    for name, z in (("good", [20.0] * 60), ("bad", [295.2] * 20 + [26.2] * 20 + [0.08] * 20)):
        lines = [f"{step},2.0,1.0,{value}\n" for step, value in enumerate(z, start=1)]
        (tmp_path / f"{name}.csv").write_text("step,loss,grad_norm,router_z_loss\n" + "".join(lines))
    assert router_z(read_evidence(tmp_path / "good.csv")).status == "unknown"
    assert router_z(read_evidence(tmp_path / "bad.csv")).status == "failed"
