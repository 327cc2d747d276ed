"""What the logs of other tools hold beside their steps, judged as a watch would: routers, evaluations, the pace."""

import json
import random
from pathlib import Path

import pytest

from trimtab.analysis.findings import rewind

CURVES = Path(__file__).parents[2] / "data" / "curves"

# The published run of 14 layers and 48 experts whose router died under a z weight of 1e-3, and the same with 1e-4.
DYING = {2500: 295.2, 2750: 26.2, 3000: 0.082, 3250: 0.028, 4000: 0.030}
WORSE = {3250: 7.6066, 3500: 7.6406, 3750: 8.2422, 4000: 8.2717}
HOLDING = {3010: 196.0, 3170: 125.0, 4000: 134.0, 5000: 101.76, 6000: 95.29}
UNSTEADY = (7.7371, 7.6486, 7.7053, 7.6502, 7.6116, 7.6323)


def write_csv(path, *, columns, lines):
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, line)) for line in lines)]) + "\n")
    return path


def history(path, *, z, evals, name="z"):
    """Steps every 250 with a train loss that falls from 6.1 to 5.5, the evaluations and z where there are any."""
    steps = sorted({*range(2500, 4001, 250), *z, *evals})
    lines = [
        (step, 6.1 - 0.6 * place / len(steps), evals.get(step, ""), z.get(step, "")) for place, step in enumerate(steps)
    ]
    return write_csv(path, columns=("step", "loss", "eval_loss", name), lines=lines)


def told(findings):
    return [(finding.kind, finding.severity, finding.step) for finding in findings.health]


@pytest.mark.parametrize("name", ["z", "router_z", "train/router_z", "moe/z_loss", "router/z_loss", "eval/z"])
def test_the_dying_router_is_said_before_the_evaluations_are(tmp_path, name):
    # given
    path = history(tmp_path / "history.csv", z=DYING, evals=WORSE, name=name)
    # when
    findings = rewind(path)
    # then
    assert told(findings) == [("z_band", "warning", 3000), ("eval_regression", "warning", 4000)]
    z_band, regression = findings.health
    assert "26.2" in z_band.text
    assert "summed over layers" in z_band.text
    assert "the router, or overfitting" in regression.text, "the train loss fell meanwhile"
    assert findings.spikes == ()
    assert findings.num_findings == 2


def test_a_history_in_jsonl_says_the_same_as_in_csv(tmp_path):
    steps = sorted({*DYING, *WORSE})
    with (tmp_path / "history.jsonl").open("w") as file:
        for place, step in enumerate(steps):
            file.write(json.dumps({"step": step, "ce": 1.0, "loss": 6.1 - 0.1 * place}) + "\n")
            beside = {"eval_loss": WORSE.get(step), "z": DYING.get(step)}
            file.write(json.dumps({"step": step, **{k: v for k, v in beside.items() if v is not None}}) + "\n")
    assert told(rewind(tmp_path / "history.jsonl")) == [
        ("z_band", "warning", 3000),
        ("eval_regression", "warning", 4000),
    ]


def test_a_run_that_holds_and_evaluations_that_come_and_go_are_warned_of_nothing(tmp_path):
    evals = {3000 + 250 * place: loss for place, loss in enumerate(UNSTEADY)}
    assert told(rewind(history(tmp_path / "history.csv", z=HOLDING, evals=evals))) == []


@pytest.mark.parametrize(
    ("z", "expected"),
    [((14.0, 16.0, 19.0, 24.0), ["logits_growing"]), ((2.4, 2.6, 2.5, 2.7), [])],
    ids=["without-z-loss", "with-1e-3"],
)
def test_logits_that_grow_are_told_from_those_that_hold(tmp_path, z, expected):
    lines = [(5000 + 250 * place, 3.0 - 0.01 * place, value) for place, value in enumerate(z)]
    path = write_csv(tmp_path / "metrics.csv", columns=("step", "loss", "router_z"), lines=lines)
    assert [finding.kind for finding in rewind(path).health] == expected


def test_the_evaluations_of_a_trainer_state_are_judged(tmp_path):
    # given
    entries = [{"step": step, "loss": 2.0, "epoch": step / 100} for step in range(50, 401, 50)]
    entries += [{"step": 100 * place, "eval_loss": loss} for place, loss in enumerate(WORSE.values(), start=1)]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"log_history": entries}))
    # when, then
    assert told(rewind(tmp_path / "trainer_state.json")) == [("eval_regression", "warning", 400)]


def test_an_evaluation_that_is_no_number_is_said_once_and_is_no_best(tmp_path):
    lines = [(step, 2.0, value) for step, value in zip((1, 2, 3, 4, 5), ("nan", 1.0, 0.8, "nan", "nan"), strict=True)]
    findings = rewind(write_csv(tmp_path / "metrics.csv", columns=("step", "loss", "eval_loss"), lines=lines))
    assert told(findings) == [("eval_nonfinite", "warning", 1), ("eval_nonfinite", "warning", 4)]
    assert not any("evaluation" in notice for notice in findings.notices), "told once"


def test_the_pace_that_another_tool_logs_is_judged(tmp_path):
    # the published fall from 1,322 to 170-227 tokens a second
    rates = [1322 + (step % 7) for step in range(1, 101)] + [170 + (step * 13) % 57 for step in range(101, 131)]
    lines = [(step, 2.0, rate) for step, rate in enumerate(rates, start=1)]
    findings = rewind(write_csv(tmp_path / "m.csv", columns=("step", "loss", "tokens_per_sec"), lines=lines))
    [finding] = findings.health
    assert finding.kind == "throughput"
    assert 101 < finding.step <= 130


def test_a_load_balance_of_whatever_convention_is_held_against_one_at_balance(tmp_path):
    # given: top 8 of an aux loss that is not divided by k, and one that leaves its balance
    def path(name, values):
        lines = [(100 * place, 2.0, value) for place, value in enumerate(values, start=1)]
        return write_csv(tmp_path / name, columns=("step", "loss", "load_balancing_loss"), lines=lines)

    # when
    healthy = rewind(path("healthy.csv", [8.4, 8.3, 8.1, 8.05, 8.2, 8.1, 8.06]))
    leaving = rewind(path("leaving.csv", [2.1, 2.4, 3.9, 6.0, 8.1, 10.8]))
    weighted = rewind(path("weighted.csv", [0.0104, 0.0102, 0.0101]))
    # then
    assert told(healthy) == []
    assert [finding.kind for finding in leaving.health] == ["load_balance_rising"]
    assert any("was divided by 2" in notice for notice in leaving.notices)
    assert told(weighted) == []
    assert any("multiplied by its weight" in notice for notice in weighted.notices)


def test_a_z_that_was_multiplied_by_its_weight_is_not_held_against_a_band(tmp_path):
    lines = [(100 * place, 2.0, 0.0296 + 0.0001 * (place % 3)) for place in range(1, 20)]
    findings = rewind(write_csv(tmp_path / "m.csv", columns=("step", "loss", "z_loss"), lines=lines))
    assert told(findings) == []
    assert any("multiplied by its weight" in notice for notice in findings.notices)


def test_of_several_runs_in_one_file_each_is_judged_by_its_own_evaluations(tmp_path):
    # given: the evaluations of the second run get worse, those of the first do not
    worse, fine = list(WORSE.values()), [2.0, 1.9, 1.8, 1.7]
    lines = [(10 * at, 3.0, loss) for evals in (fine, worse) for at, loss in enumerate(evals, start=1)]
    # when
    findings = rewind(write_csv(tmp_path / "m.csv", columns=("step", "loss", "eval_loss"), lines=lines))
    # then
    assert told(findings) == [("eval_regression", "warning", 40)]
    assert findings.health[0].text.startswith("run 2: ")


def test_what_was_trained_again_counts_once_by_the_later_attempt(tmp_path):
    # given: three evaluations that get worse, and a resume from before them that does better
    def line(step, loss):
        return {"step": step, "loss": 3.0, **({"eval_loss": loss} if loss else {})}

    evals = {20: 2.0, 40: 2.1, 60: 2.2, 80: 2.3}
    better = {40: 1.9, 60: 1.8, 80: 1.7}
    lines = [line(step, evals.get(step)) for step in range(1, 81)]
    lines += [line(step, better.get(step)) for step in range(21, 101)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    # when, then
    assert told(rewind(tmp_path / "metrics.jsonl")) == []


def test_evaluations_of_several_datasets_are_judged_each_by_itself(tmp_path):
    lines = [(10 * at, 3.0, loss, 2.0 - at / 10) for at, loss in enumerate(WORSE.values(), start=1)]
    columns = ("step", "loss", "eval_wiki_loss", "eval_code_loss")
    [finding] = rewind(write_csv(tmp_path / "m.csv", columns=columns, lines=lines)).health
    assert (finding.kind, finding.step, finding.figures["name"]) == ("eval_regression", 40, "eval_wiki_loss")


@pytest.mark.parametrize(
    "name",
    ["alpaca_7b", "deepseekv3_proxy_moe", "gpt3_15b", "hf_sft_24k_noisy", "llmc_gpt2_124M", "qlora_guanaco"],
)
def test_a_healthy_published_curve_is_warned_of_nothing(name):
    assert told(rewind(CURVES / f"{name}.csv")) == []


def test_a_z_that_was_multiplied_by_its_weight_is_judged_by_its_course(tmp_path):
    weighted = {step: z * 1e-3 for step, z in DYING.items()}
    findings = rewind(history(tmp_path / "history.csv", z=weighted, evals={}, name="z_loss"))
    assert told(findings) == [("z_band", "warning", 3000)]
    assert "fell from 0.2952 to 8.2e-05" in findings.health[0].text


def test_a_column_that_falls_below_zero_is_no_z_whatever_its_name(tmp_path):
    chance = random.Random(0)
    z = {2500 + 10 * place: chance.gauss(0.0, 1.0) for place in range(100)}
    findings = rewind(history(tmp_path / "history.csv", z=z, evals={}))
    assert told(findings) == []
    assert any("it is not taken for one" in notice for notice in findings.notices)


def test_a_mean_over_layers_is_held_against_the_band_of_a_layer(tmp_path):
    z = {2500 + 250 * place: 0.7 for place in range(6)}
    assert told(rewind(history(tmp_path / "history.csv", z=z, evals={}, name="z_mean"))) == []
    assert [kind for kind, _, _ in told(rewind(history(tmp_path / "sum.csv", z=z, evals={}, name="z_sum")))] == [
        "z_band"
    ]


def test_a_pace_without_tokens_tells_no_seconds(tmp_path):
    lines = [(step, 2.0, 1e6 if step <= 50 else 2e5) for step in range(1, 63)]
    path = write_csv(tmp_path / "metrics.csv", columns=("step", "loss", "tok_per_s"), lines=lines)
    [finding] = rewind(path).health
    assert finding.kind == "throughput"
    assert "10 steps in a row" in finding.text
    assert " s)" not in finding.text


def test_a_pace_beside_the_tokens_of_each_step_is_slow_when_it_takes_long(tmp_path):
    lines = [(step, 2.0, 1e6 if step <= 50 else 2e5, 4096) for step in range(1, 63)]
    path = write_csv(tmp_path / "metrics.csv", columns=("step", "loss", "tokens_per_s", "tokens_per_step"), lines=lines)
    assert told(rewind(path)) == []
