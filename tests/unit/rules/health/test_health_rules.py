"""All rules together: no alarm on healthy runs, a state that goes on, and nothing raised whatever comes in."""

import copy
import json
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab import UsageError
from trimtab.rules.health import HealthRules, ObservedStep
from trimtab.values import STEP_REASONS
from trimtab.watched import RouterReport, Vitals

HEALTHY = [
    "llmc_gpt2_124M",
    "deepseekv3_proxy_moe",
    "gpt3_15b",
    "alpaca_7b",
    "hf_sft_24k_noisy",
    "qlora_guanaco",
    "nanogpt_1B_a",
    "nanogpt_fp4_932b",
    "nanogpt_shortcuts_70a0",
    "nanogpt_valueembed_2358",
    "nanogpt_valueembed_d884",
]


@pytest.mark.parametrize("name", HEALTHY)
def test_no_healthy_run_is_warned_of(fed, curve_steps, name):
    fed.steps(curve_steps(name))

    assert [said for said in fed.said if said[1] != "notice"] == []
    assert len(fed.found) == (4 if name == "llmc_gpt2_124M" else 0)


@pytest.mark.parametrize("name", HEALTHY)
def test_evaluations_of_other_rows_each_time_are_no_alarm_on_a_healthy_run(fed, curve_steps, name):
    # given the means of 250 train losses each: they go up and down by chance
    steps = list(curve_steps(name))
    blocks = [steps[begin : begin + 250] for begin in range(0, len(steps) - 249, 250)]
    for block in blocks:
        losses = [step.loss for step in block if math.isfinite(step.loss)]
        fed.evaluations([(block[-1].step, sum(losses) / len(losses))])

    assert [said for said in fed.said if said[1] != "notice"] == []


def doings(seed: int, *, num: int):
    """What a run with all kinds of trouble hands to the rules, as calls."""
    chance = random.Random(seed)
    for step in range(1, num + 1):
        trouble = chance.random()
        norm = 1.0 + chance.random() * 0.1 + (30.0 if trouble < 0.02 else 0.0)
        yield (
            "step",
            ObservedStep(
                step=step,
                loss=0.0 if trouble > 0.99 else 2.0 + chance.random() * 0.1,
                grad_norm=math.nan if trouble > 0.98 else norm,
                clipped=step > num // 2,
                lr=1e-3,
                loss_scale=2.0 ** max(0, 16 - step // 40),
                wall_s=1.0 if step < num // 2 else 9.0,
                num_tokens=1000,
                reason="scaler_overflow" if trouble > 0.97 else "stepped",
            ),
        )
        if step % 20 == 0:
            yield "evaluation", (step, math.nan if trouble < 0.1 else 2.0 + chance.random())
            ratio = {"w": 1e-3 * (50 if trouble < 0.2 else 1)}
            logit = 50.0 + step / 5
            yield (
                "vitals",
                Vitals(
                    step=step,
                    host_available_bytes=int(9e9 * chance.random()),
                    update_ratio=ratio,
                    attention_logit=logit,
                ),
            )
            yield "router", RouterReport(step=step, first_step=step - 19, z=14.0 + step / 10, z_scale="sum")


def do(rules, doing):
    verb, given_ = doing
    return rules.evaluation(*given_) if verb == "evaluation" else getattr(rules, verb)(given_)


@pytest.mark.parametrize("seed", range(3))
def test_a_state_that_is_saved_anywhere_goes_on_as_if_nothing_had_been(seed):
    # given a run in one go
    whole, found = HealthRules(), []
    for doing in doings(seed, num=600):
        found += do(whole, doing)
    assert len({finding.kind for finding in found}) >= 7

    # when its state goes through JSON again and again
    rules, again = HealthRules(), []
    for place, doing in enumerate(doings(seed, num=600)):
        again += do(rules, doing)
        if place % 37 == 0:
            state = json.loads(json.dumps(rules.state_dict(), allow_nan=False))
            rules = HealthRules()
            rules.load_state_dict(state)

    # then
    assert again == found
    assert rules.standing() == whole.standing()
    assert rules.figures() == whole.figures()
    assert rules.state_dict() == whole.state_dict()


def damages(state):
    """Every entry of a state in turn, left out or made something else."""
    for key, value in state.items():
        yield {other: entry for other, entry in state.items() if other != key}
        for instead in ("x", [object()], math.nan):
            if not isinstance(value, str):
                yield state | {key: instead}
        if isinstance(value, dict) and value:
            for damaged in damages(value):
                yield state | {key: damaged}


def test_a_damaged_state_is_refused_and_changes_nothing():
    rules = HealthRules()
    for doing in doings(1, num=400):
        do(rules, doing)
    state = rules.state_dict()
    before = copy.deepcopy(state)

    num_refused = 0
    of_health = {name: part for name, part in state["parts"].items() if name != "router"}
    for damaged in damages(of_health):
        try:
            rules.load_state_dict(state | {"parts": damaged | {"router": state["parts"]["router"]}})
        except UsageError:
            num_refused += 1
            assert rules.state_dict() == before
        else:  # a finding's text, say, may be any
            rules.load_state_dict(before)
    assert num_refused > 100


def state_of_a_run_with_trouble():
    rules = HealthRules()
    for doing in doings(1, num=400):
        do(rules, doing)
    return rules.state_dict()


SIGNALS = [
    "grad_norm", "clip_fraction", "loss_scale", "zero_loss", "nonfinite", "throughput", "so_far", "evaluations",
    "memory", "update_ratio", "attention_logit", "router",
]  # fmt: skip


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_that_a_state_does_not_know_starts_empty(name):
    # given a state that was saved before there was such a signal
    state = state_of_a_run_with_trouble()
    assert sorted(state["parts"]) == sorted(SIGNALS)
    del state["parts"][name]

    rules = HealthRules()
    rules.load_state_dict(state)

    assert rules.state_dict()["parts"] == state["parts"] | {name: HealthRules().state_dict()["parts"][name]}


def test_a_signal_that_is_gone_is_passed_over():
    state = state_of_a_run_with_trouble()
    rules = HealthRules()

    rules.load_state_dict(state | {"parts": state["parts"] | {"tides": {"high": 3}}})

    assert rules.state_dict() == state


def test_the_version_of_a_watch_is_its_own():
    assert HealthRules().state_dict()["version"] == 1
    with pytest.raises(UsageError, match="version 2; here version is 1"):
        HealthRules().load_state_dict(HealthRules().state_dict() | {"version": 2})


@pytest.mark.parametrize("state", [None, [], {}, {"version": 2}, {"version": 1}, {"version": 1, "parts": 3}], ids=repr)
def test_what_is_no_state_is_refused(state):
    with pytest.raises(UsageError):
        HealthRules().load_state_dict(state)


numbers = st.floats(allow_nan=True, allow_infinity=True)
maybe = st.one_of(st.none(), numbers)


@given(
    st.lists(
        st.builds(
            ObservedStep,
            step=st.integers(0, 2**63 - 1),
            loss=numbers,
            grad_norm=maybe,
            clipped=st.one_of(st.none(), st.booleans()),
            lr=maybe,
            loss_scale=maybe,
            wall_s=numbers,
            num_tokens=st.integers(0, 2**63 - 1),
            reason=st.sampled_from(STEP_REASONS),
        ),
        max_size=40,
    ),
    st.lists(st.tuples(numbers, maybe), max_size=10),
    st.lists(st.tuples(st.one_of(st.none(), st.integers(0, 2**63 - 1)), numbers, maybe), max_size=10),
)
@settings(max_examples=150, deadline=None)
def test_no_number_makes_the_rules_raise(steps, evaluations, looks):
    rules, found = HealthRules(), []
    for step in steps:
        found += rules.step(step)
    for place, (loss, train_loss) in enumerate(evaluations):
        found += rules.evaluation(place, loss, train_loss)
    for bytes_, ratio, logit in looks:
        found += rules.vitals(
            Vitals(
                step=1,
                host_available_bytes=bytes_,
                host_needed_bytes=bytes_,
                device_peak_bytes=bytes_,
                device_total_bytes=bytes_,
                update_ratio={"w": ratio},
                attention_logit=logit,
            )
        )

    for finding in found:
        assert finding.text.isascii()
        assert not finding.text.endswith(".")
        json.dumps(finding.to_dict(), allow_nan=False)
    json.dumps(rules.state_dict(), allow_nan=False)
    json.dumps(rules.figures(), allow_nan=False)
    HealthRules().load_state_dict(rules.state_dict())
