"""From a log to what each setting would have skipped."""

import json
import math

import numpy as np
import pytest

import trimtab
from trimtab.calibration.calibrate import calibrate
from trimtab.calibration.settings import SETTINGS


def of(calibration, rule, sensitivity, window_size):
    name = "k" if rule == "robust" else "multiplier"
    wanted = {"rule": rule, name: sensitivity, "window_size": window_size}
    return next(outcome for outcome in calibration.outcomes if outcome.settings == wanted)


def quiet_micros(num_steps, *, accumulation=2, spikes=(), seed=0):
    """Micro-batches of two rows; `spikes` maps (step, micro) to the loss of its first row."""
    random = np.random.default_rng(seed)
    spikes = dict(spikes)
    return [
        (step, micro, [(1, float(spikes.get((step, micro), 2.0 + 0.05 * random.standard_normal())), 40), (2, 2.0, 60)])
        for step in range(1, num_steps + 1)
        for micro in range(accumulation)
    ]


@pytest.fixture
def rewind_jsonl(tmp_path):
    """Writes losses, one micro-batch of one row a step."""

    def write(steps, losses):
        lines = [{"kind": "header", "version": 1, "backend": "torch", "created": 1.0}]
        lines += [
            {
                "kind": "batch",
                "step": int(step),
                "micro": 0,
                "rows": [int(step)],
                "row_loss": [loss if math.isfinite(loss) else None],
                "row_tokens": [1],
            }
            for step, loss in zip(steps, losses.tolist(), strict=True)
        ]
        path = tmp_path / "rewind.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path

    return write


def test_the_noisy_fine_tune_shows_that_no_multiplier_fits_and_the_robust_default_does(curve, rewind_jsonl):
    calibration = calibrate(rewind_jsonl(*curve("hf_sft_24k_noisy")))

    assert (calibration.unit, calibration.num_losses, calibration.num_findings) == ("micro", 24_000, 3)
    classic, robust = of(calibration, "mean", 2.0, 8), of(calibration, "robust", 10.0, 100)
    assert (classic.num_spikes, classic.num_caught, classic.num_others) == (125, 3, 122)
    assert (robust.num_spikes, robust.num_caught, robust.num_others) == (3, 3, 0)
    assert robust.first_steps == (413, 618, 1122)
    assert (classic.is_default, robust.is_default) == (True, True)
    assert calibration.recommended == robust
    assert robust.code == 'trimtab.GuardConfig(rule="robust", k=10.0, window_size=100)'


def test_a_step_level_log_is_judged_by_steps_and_says_that_a_guard_would_not_be(curves):
    calibration = calibrate(curves / "hf_sft_24k_noisy.csv")

    assert (calibration.unit, calibration.num_losses) == ("step", 24_000)
    assert of(calibration, "mean", 2.0, 8).num_spikes == 125
    assert of(calibration, "robust", 10.0, 100).first_steps == (413, 618, 1122)
    assert any("take each number of skips as a lower bound" in notice for notice in calibration.notices)


def test_each_of_several_runs_in_one_file_is_judged_from_an_empty_history(tmp_path):
    # given: the second run begins at ten times the level of the first, and has one spike of its own
    losses = [*([1.0] * 60), *([10.0] * 40), 30.0, *([10.0] * 9)]
    steps = [*range(1, 61), *range(1, 51)]
    path = tmp_path / "metrics.csv"
    path.write_text("step,loss\n" + "".join(f"{step},{loss}\n" for step, loss in zip(steps, losses, strict=True)))

    # when
    calibration = calibrate(path)

    # then
    for outcome in (of(calibration, "robust", 10.0, 100), of(calibration, "mean", 2.0, 8)):
        assert (outcome.num_judged, outcome.num_spikes, outcome.num_caught) == (110, 1, 1)
        assert (outcome.first_steps, outcome.num_rebaselined) == ((41,), 0)


def test_of_a_large_run_with_small_spikes_the_multiplier_catches_none(curve, rewind_jsonl):
    calibration = calibrate(rewind_jsonl(*curve("nanogpt_1B_a")))

    assert calibration.num_findings == 24
    assert of(calibration, "mean", 2.0, 8).num_caught == 0
    assert of(calibration, "robust", 10.0, 100).num_caught == 24
    assert calibration.recommended.settings == {"rule": "robust", "k": 10.0, "window_size": 100}


def test_every_setting_skips_what_is_not_finite_and_the_choice_does_not_rest_on_it(curve, rewind_jsonl):
    calibration = calibrate(rewind_jsonl(*curve("mixtral8x7b_a100")))

    assert calibration.num_findings == 3
    assert {outcome.num_nonfinite for outcome in calibration.outcomes} == {1_707}
    assert of(calibration, "mean", 5.0, 8).num_caught == 1
    assert of(calibration, "robust", 10.0, 100).first_steps == (2425, 4050, 4055)
    assert any("2 findings with a finite loss are little to choose by" in notice for notice in calibration.notices)


def test_micro_batches_are_judged_and_not_steps(record):
    # given: step 100 is 5.3 in one of its four micro-batches, and (5.3 + 3 x 2) / 4 as a whole
    path = record([quiet_micros(200, accumulation=4, spikes={(100, 2): 10.25})])

    # when
    calibration = calibrate(path)

    # then
    robust = of(calibration, "robust", 10.0, 100)
    assert (calibration.unit, calibration.num_losses) == ("micro", 800)
    assert (robust.num_spikes, robust.first_steps) == (1, (100,))
    assert of(calibration, "mean", 2.0, 8).num_spikes == 1
    assert of(calibration, "mean", 3.0, 8).num_spikes == 0


def test_a_micro_batch_is_judged_over_all_ranks(record):
    # given: 30.0 x 10 tokens on one rank, 990.0 / 990 tokens on the other: 1.29 as a whole
    ones = [(step, 0, [(1, 1.0, 10)]) for step in range(1, 61)]
    many = [(step, 0, [(2, 1.0, 990)]) for step in range(1, 61)]
    ones[50] = (51, 0, [(1, 30.0, 10)])

    calibration = calibrate(record([ones, many]))

    assert calibration.num_losses == 60
    assert of(calibration, "mean", 1.25, 8).num_spikes == 1
    assert of(calibration, "mean", 1.5, 8).num_spikes == 0


def test_what_the_runs_own_guard_left_out_is_judged_and_said(record):
    micros = quiet_micros(100, accumulation=1, spikes={(70, 0): 30.0})
    micros[69] = (*micros[69], False)

    calibration = calibrate(record([micros]))

    assert of(calibration, "robust", 10.0, 100).first_steps == (70,)
    assert "1 micro-batch was left out by the run's own guard: the log holds its loss, and it was judged like any" in (
        " ".join(calibration.notices)
    )


def test_a_micro_batch_without_tokens_is_not_judged(record):
    micros = quiet_micros(60, accumulation=1)
    micros[40] = (41, 0, [(1, 900.0, 0)])

    calibration = calibrate(record([micros]))

    assert (calibration.num_losses, of(calibration, "robust", 10.0, 100).num_spikes) == (59, 0)
    assert any("1 micro-batch has no supervised tokens" in notice for notice in calibration.notices)


def test_micro_batches_whose_losses_were_not_recorded_are_counted(record):
    # given: at 41 rows without losses, at 43 not even rows, and the steps have losses; 45 has no supervised tokens
    micros = quiet_micros(60, accumulation=2)
    unknown = (41, 1, [(1, 0.0, 0), (2, 0.0, 0)])
    at = micros.index(next(micro for micro in micros if micro[:2] == (41, 1)))
    micros[at] = unknown
    micros = [micro for micro in micros if micro[:2] != (43, 0)]
    micros = [(*micro[:2], [(1, 0.0, 0)]) if micro[:2] == (45, 0) else micro for micro in micros]

    calibration = calibrate(record([micros], steps=[(41, 2.0, 200), (43, 2.0, 200), (45, 2.0, 100)]))

    notices = " ".join(calibration.notices)
    assert calibration.num_losses == 117
    assert "the losses of 2 micro-batches were not recorded: not judged" in notices
    assert "1 micro-batch has no supervised tokens" in notices


def test_of_what_was_trained_twice_the_attempt_that_counts_is_judged(tmp_path):
    # given: steps 41 to 60 are trained again, the second time without the spike at 50
    lines = [{"kind": "header", "version": 1, "backend": "torch", "created": 1.0}]
    for step in [*range(1, 61), *range(41, 81)]:
        loss = 30.0 if step == 50 and len(lines) <= 60 else 2.0
        lines.append({"kind": "batch", "step": step, "micro": 0, "rows": [1], "row_loss": [loss], "row_tokens": [10]})
    path = tmp_path / "rewind.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    # when
    calibration = calibrate(path)

    # then
    assert calibration.num_losses == 80
    assert of(calibration, "robust", 10.0, 100).num_spikes == 0
    assert any("a later attempt of the run went over them again" in notice for notice in calibration.notices)


def test_skips_of_a_whole_stretch_catch_one_finding_and_are_no_others(record):
    micros = quiet_micros(150, accumulation=1, spikes={(step, 0): 12.0 for step in range(100, 105)})

    robust = of(calibrate(record([micros])), "robust", 10.0, 100)

    assert (robust.num_spikes, robust.longest_run, robust.num_caught, robust.num_others) == (5, 5, 1, 0)
    assert (robust.num_steps, robust.first_steps) == (5, (100, 101, 102))


def test_a_level_that_moves_is_a_lock_up_of_every_setting_that_sees_it(record):
    micros = [(step, 0, [(1, 1.0 if step <= 400 else 4.0, 10)]) for step in range(1, 1_001)]

    calibration = calibrate(record([micros]))

    robust = of(calibration, "robust", 10.0, 100)
    assert (robust.num_spikes, robust.longest_run, robust.num_rebaselined, robust.num_caught) == (20, 20, 1, 1)
    assert of(calibration, "mean", 3.0, 8).num_rebaselined == 1
    assert calibration.recommended == robust
    assert "It locks up" in calibration.reason


def test_the_document_is_strict_json_and_its_settings_build_the_guard(curve, rewind_jsonl):
    document = calibrate(rewind_jsonl(*curve("nanogpt_valueembed_d884")), top=2).to_dict()

    assert json.loads(json.dumps(document, allow_nan=False)) == document
    assert len(document["outcomes"]) == len(SETTINGS)
    assert max(len(outcome["first_steps"]) for outcome in document["outcomes"]) == 2
    for outcome in document["outcomes"]:
        assert trimtab.GuardConfig(**outcome["settings"]) in SETTINGS
    assert document["outcomes"][0]["code"] == 'trimtab.GuardConfig(rule="mean", multiplier=1.25, window_size=8)'
    assert document["code"] == 'trimtab.GuardConfig(rule="robust", k=10.0, window_size=100)'


def test_progress_is_told_stage_by_stage(curve, rewind_jsonl):
    told = []

    calibrate(rewind_jsonl(*curve("nanogpt_valueembed_d884")), progress=lambda *stage: told.append(stage))

    stages = [stage for stage, _, _ in told]
    assert stages == sorted(stages)
    assert set(stages) == {"reading the log", "replaying"}
    assert all(0 <= done <= whole for _, done, whole in told)


def test_a_log_without_a_loss_is_refused(record):
    with pytest.raises(trimtab.LogError, match="no loss was recorded"):
        calibrate(record([[(1, 0, [(1, 0.0, 0)])]]))


def test_of_losses_none_of_which_is_finite_no_setting_is_recommended(record):
    calibration = calibrate(record([[(step, 0, [(1, math.nan, 10)]) for step in range(1, 51)]]))

    assert (calibration.num_losses, calibration.recommended) == (50, None)
    assert "No loss is finite" in calibration.reason
    assert "no finite loss is little to go by" in " ".join(calibration.notices)


def test_a_setting_that_makes_no_sense_is_refused(tmp_path):
    with pytest.raises(trimtab.UsageError, match="top=0"):
        calibrate(tmp_path, top=0)
