"""The health of any run in a loop of one's own: evaluations, losses, a scaler, memory; with a log and without."""

import importlib.util
import json
import logging
import math
import sys
from pathlib import Path

import pytest
import torch

from trimtab import GuardConfig, Run, UsageError, WatchConfig

_spec = importlib.util.spec_from_file_location("moe_of_a_run", Path(__file__).with_name("moe_of_a_run.py"))
moe = importlib.util.module_from_spec(_spec)
sys.modules["moe_of_a_run"] = moe
_spec.loader.exec_module(moe)

# A busy machine must not decide a test: its speed and its memory are others' business.
QUIET = {"throughput_fraction": 1e-9, "host_memory_floor_bytes": 1}
WATCH = WatchConfig(report_every=10, **QUIET)

PLACES = pytest.mark.parametrize("recorded", [True, False], ids=["recorded", "not recorded"])


def watched(tmp_path, found, *, recorded, watch=WATCH, **settings):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    out = tmp_path if recorded else None
    run = Run(
        out,
        model=model,
        optimizer=optimizer,
        record=recorded,
        watch=watch,
        on_finding=found,
        max_grad_norm=1.0,
        **settings,
    )
    return run, model


def step(run, model, number, *, factor=1.0, scaler=None):
    inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(number))
    losses = (model(inputs).squeeze(1) - 1) ** 2 * factor
    loss = run.micro_batch(losses, per="token", rows=[number] * 64)
    (loss if scaler is None else scaler.scale(loss)).backward()
    return run.step(scaler)


@PLACES
def test_a_fourth_evaluation_that_is_worse_again_is_warned_of_once_at_its_step(recorded, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="trimtab")
    found = moe.Found()
    run, model = watched(tmp_path, found, recorded=recorded)
    losses = dict(zip((5, 10, 15, 20), (7.6066, 7.6406, 8.2422, 8.2717), strict=True))
    with run:
        for number in range(1, 26):
            step(run, model, number)
            if number in losses:
                run.evaluation(losses[number])
        [because] = run.unhealthy_because()

    assert found == [("eval_regression", 20)]
    assert "8.2717 at step 20" in because
    assert (
        len([line for line in caplog.messages if line.startswith("Trimtab, step 20: warning: eval_regression: ")]) == 1
    )
    if recorded:
        assert caplog.messages[-1] == (
            f"Trimtab recorded the run up to step 25, and its watch has spoken once: trimtab rewind {run.run_id}"
        )
        assert [at for kind, at, _ in moe.events(run.folder) if kind == "evaluation"] == [5, 10, 15, 20]


@PLACES
def test_evaluations_that_go_up_and_down_are_no_alarm(recorded, tmp_path):
    found = moe.Found()
    run, model = watched(tmp_path, found, recorded=recorded)
    with run:
        for number, loss in enumerate((7.7371, 7.6486, 7.7053, 7.6502, 7.6116, 7.6323), start=1):
            step(run, model, number)
            run.evaluation(loss)
        assert run.unhealthy_because() == ()

    assert found == []


@PLACES
def test_what_is_counted_beside_the_findings_can_be_asked_for_at_any_time(recorded, tmp_path):
    # given a clip of 1.0, gradients far above it in the last of five steps, and an evaluation that became worse
    run, model = watched(tmp_path, None, recorded=recorded)
    with run:
        for number, loss in enumerate((2.0, 1.5, 1.6, 1.7), start=1):
            step(run, model, number, factor=1e-3)
            run.evaluation(loss)
        step(run, model, 5, factor=1e6)
        figures = run.watch_figures()

    assert figures["clip_fraction"] == figures["recent_clip_fraction"] == 1 / 5
    assert figures["evaluations"] == {"": {"best": 1.5, "best_step": 2, "num_worse": 2}}
    json.dumps(figures, allow_nan=False)


def test_a_run_that_is_not_watched_counts_nothing(tmp_path):
    model = torch.nn.Linear(4, 1)
    with Run(tmp_path / "run", model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1)) as run:
        assert run.watch_figures() == {}


@PLACES
def test_of_several_datasets_each_is_judged_by_itself(recorded, tmp_path):
    found = []
    run, model = watched(tmp_path, found.append, recorded=recorded)
    with run:
        for number in range(1, 5):
            step(run, model, number)
            run.evaluation(math.nan, eval_wiki_loss=2.0 - 0.1 * number)
            run.evaluation(math.nan, eval_code_loss=1.0 + 0.1 * number)

    [one] = found
    assert one.kind == "eval_regression"
    assert "eval_code_loss" in one.text


@PLACES
def test_a_scale_that_collapses_is_warned_of(recorded, tmp_path):
    # given a scaler that is long past its warm-up, and then gradients that overflow at each step
    found = moe.Found()
    run, model = watched(tmp_path, found, recorded=recorded)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=10_000)
    with run:
        reasons = [
            step(run, model, number, factor=math.inf if number > 100 else 1.0, scaler=scaler).reason
            for number in range(1, 121)
        ]

    assert set(reasons[:100]) == {"stepped"}
    assert set(reasons[100:]) == {"scaler_overflow"}
    assert "loss_scale_collapse" in [kind for kind, _ in found]
    assert all(at > 100 for _, at in found)


@PLACES
def test_a_loss_of_exactly_0_with_a_norm_that_is_none_marks_checkpoints(recorded, tmp_path):
    # given a run without a guard whose gradients become NaN while its loss reads 0.0
    found = moe.Found()
    run, model = watched(tmp_path, found, recorded=recorded)
    with run:
        for number in range(1, 6):
            step(run, model, number)
        hidden = model(torch.randn(8, 4)).squeeze(1)
        broken = torch.where(torch.tensor(True), torch.zeros(()), torch.sqrt(hidden * 0) * math.inf)
        run.micro_batch(broken, per="token", rows=[6] * 8).backward()
        outcome = run.step()
        assert outcome.loss == 0.0
        assert math.isnan(outcome.grad_norm)
        because = run.unhealthy_because()

    assert ("zero_loss", 6) in found
    assert because


def test_memory_is_looked_at_when_training_begins_and_before_a_save(tmp_path):
    # given a floor that no machine is above
    found = []
    watch = WatchConfig(report_every=1000, throughput_fraction=1e-9, host_memory_floor_bytes=1 << 62)
    run, model = watched(tmp_path, found.append, recorded=True, watch=watch)
    with run:
        assert found == []
        step(run, model, 1)
        run.before_save(1_700_000_000)
        step(run, model, 2)

    looks = [(at, facts.get("host_needed_bytes")) for kind, at, facts in moe.events(run.folder) if kind == "vitals"]
    assert looks == [(0, None), (1, 1_700_000_000)]
    assert (found[0].kind, found[0].step) == ("host_memory", 0)


def test_what_a_guard_dropped_reaches_the_rules_with_its_reason(tmp_path):
    # given steps whose norm is not finite, each dropped, so that the weights stay sound
    found = moe.Found()
    run, model = watched(tmp_path, found, recorded=True, guard=GuardConfig(rule="robust"))
    with run:
        reasons = [
            step(run, model, number, factor=math.nan if number in (20, 25) else 1.0).reason for number in range(1, 31)
        ]
        assert run.unhealthy_because() == ()

    assert [reason for reason in reasons if reason != "stepped"] == ["all_skipped"] * 2
    assert found == []


def test_a_run_without_a_model_is_watched_all_the_same(tmp_path):
    found = moe.Found()
    with Run(tmp_path, watch=True, on_finding=found) as run:
        run.evaluation(math.nan)

    assert found == [("eval_nonfinite", 0)]


def test_an_error_in_the_callback_is_no_error_of_the_training(tmp_path, caplog):
    def fail(finding):
        raise LookupError(finding.kind)

    run, model = watched(tmp_path, fail, recorded=True)
    with run:
        for number, loss in enumerate((1.0, 2.0, 3.0, 4.0), start=1):
            step(run, model, number)
            run.evaluation(loss)

    assert len([line for line in caplog.messages if line.startswith("on_finding failed: LookupError")]) == 1


def test_an_interrupt_in_the_callback_ends_the_loop_and_the_run_can_go_on(tmp_path):
    def interrupt(finding):
        raise KeyboardInterrupt

    run, model = watched(tmp_path, interrupt, recorded=False, normalize="window")
    for number, loss in enumerate((1.0, 2.0, 3.0, 4.0), start=1):
        step(run, model, number)
        run.evaluation(loss)

    with pytest.raises(KeyboardInterrupt):
        step(run, model, 5)
    state = run.state_dict()
    step(run, model, 6)
    run.close()

    assert state["step"] == 6


def test_settings_of_a_watch_are_checked_where_they_are_given():
    with pytest.raises(UsageError):
        Run(None, record=False, watch=WatchConfig(report_every=0))


def test_an_optimizer_without_hooks_is_said_and_the_rest_is_watched(tmp_path, caplog):
    class Plain:
        """An optimizer of one's own, which has what `Run` asks for and no hooks."""

        def __init__(self, parameters):
            self.param_groups = [{"params": list(parameters), "lr": 0.01}]

        def step(self):
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    parameter -= 0.01 * parameter.grad

        def zero_grad(self, *, set_to_none=True):
            for parameter in self.param_groups[0]["params"]:
                parameter.grad = None

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            """Has none."""

    torch.manual_seed(0)
    model, found = torch.nn.Linear(4, 1), moe.Found()
    with Run(tmp_path, model=model, optimizer=Plain(model.parameters()), watch=WATCH, on_finding=found) as run:
        for number, loss in enumerate((1.0, 2.0, 3.0, 4.0), start=1):
            step(run, model, number)
            run.evaluation(loss)

    [line] = [line for line in caplog.messages if "does not measure updates" in line]
    assert "optimizer has no step hooks, found Plain" in line
    assert found == [("eval_regression", 4)]
