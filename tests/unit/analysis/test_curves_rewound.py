"""The published curves as their CSV files, through `rewind`: the figures that the rules' defaults rest on."""

from pathlib import Path

import pytest

from trimtab.analysis.comparison import compare
from trimtab.analysis.findings import rewind

CURVES = Path(__file__).parents[2] / "data" / "curves"


@pytest.fixture(scope="module")
def rewound():
    """Rewinds a curve, each once a rule."""
    cache = {}

    def make(name, *, rule="robust"):
        if (name, rule) not in cache:
            cache[name, rule] = rewind(CURVES / f"{name}.csv", rule=rule)
        return cache[name, rule]

    return make


def stretches(found, *, signal="loss"):
    """Findings by step: (first, last, severity)."""
    return sorted((spike.first, spike.last, spike.severity) for spike in found.spikes if spike.signal == signal)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hf_sft_24k_noisy", [(413, 413, "warning"), (618, 618, "warning"), (1122, 1122, "warning")]),
        ("nanogpt_valueembed_d884", [(918, 918, "warning"), (946, 946, "warning")]),
        ("nanogpt_valueembed_2358", [(918, 918, "warning"), (946, 946, "warning")]),
        (
            "mixtral8x7b_a100",
            [(2425, 2425, "warning"), (4050, 4055, "warning"), (13555, 24000, "critical")],
        ),
        ("gpt3_15b", [(50865, 51000, "critical")]),
        ("llmc_gpt2_124M", []),
        ("deepseekv3_proxy_moe", []),
        ("alpaca_7b", []),
        ("qlora_guanaco", []),
    ],
)
def test_the_findings_of_a_curve(rewound, name, expected):
    assert stretches(rewound(name)) == expected


@pytest.mark.parametrize(("name", "num_flags", "peak"), [("nanogpt_1B_a", 24, 14738), ("nanogpt_fp4_932b", 34, 14257)])
def test_the_findings_of_the_large_runs(rewound, name, num_flags, peak):
    found = rewound(name)
    assert sum(spike.num_steps for spike in found.spikes) == num_flags
    assert any(spike.first <= peak <= spike.last for spike in found.spikes)


def test_the_spike_that_a_sister_run_had_too_is_found(rewound):
    assert any(spike.first <= 14221 <= spike.last for spike in rewound("nanogpt_shortcuts_70a0").spikes)


def test_the_classic_rule_finds_none_of_the_spikes_and_many_where_there_are_none(rewound):
    assert len(rewound("hf_sft_24k_noisy", rule="median").spikes) == 136
    for name in ("nanogpt_1B_a", "nanogpt_fp4_932b", "nanogpt_shortcuts_70a0"):
        assert rewound(name, rule="median").spikes == ()


def test_the_four_norms_that_stand_out_are_notices(rewound):
    found = rewound("llmc_gpt2_124M")
    assert [step for step, _, _ in stretches(found, signal="grad_norm")] == [4233, 7435, 9025, 9954]
    assert {spike.severity for spike in found.spikes} == {"notice"}


def test_the_tail_that_is_not_finite_is_one_finding(rewound):
    worst = rewound("mixtral8x7b_a100").spikes[0]
    assert (worst.first, worst.last, worst.num_steps, worst.kind) == (13555, 24000, 1707, "nonfinite")


def test_the_norms_announce_the_loss_and_the_rows_before_it_come_first(rewound):
    # given: the norm climbs over five steps, the loss jumps at 31219, and is back by the end
    found = rewound("bloom176b_spike_31219")
    # then
    assert stretches(found) == [(31219, 31219, "warning")]
    assert min(first for first, _, _ in stretches(found, signal="grad_norm")) <= 31217
    assert (found.step, found.step_reason) == (31217, "grad_norm_before")
    assert not any(spike.severity == "critical" for spike in found.spikes)


def test_a_norm_that_jumps_one_step_before_the_loss_is_the_step_shown(rewound):
    found = rewound("tr8_104B_spike_11448")
    assert (found.step, found.step_reason) == (11447, "grad_norm_before")


def test_three_runs_in_one_file_are_judged_apart(rewound):
    found = rewound("pgolf_3runs_one_log")
    assert found.spikes == ()
    assert found.num_steps == 206
    assert any(notice.startswith("3 runs in one file") for notice in found.notices)


def test_two_seeds_over_one_data_order_share_their_spikes():
    found = compare([CURVES / f"nanogpt_valueembed_{seed}.csv" for seed in ("d884", "2358")])
    assert [(spike.step, len(spike.runs), spike.rows_known) for spike in found.shared] == [
        (918, 2, False),
        (946, 2, False),
    ]
