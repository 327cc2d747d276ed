"""Random sequences are judged by the tensor code as by the host guard, whose rules share no code with it, and as the
page on guards says.
"""

import math
import statistics
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from trimtab.guard import GuardConfig, PerTokenLossGuard
from trimtab.rules.live import LIVE_RULES
from trimtab.torch.device_rule import DeviceRule, Ruling
from trimtab.values import VERDICT_REASONS

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "mean": [
        {"multiplier": 2.0},
        {"multiplier": 1.5, "window_size": 4, "min_history": 2, "max_consecutive_skips": 3},
        {"multiplier": 1.1, "window_size": 1, "min_history": 1, "max_consecutive_skips": 1},
        {"multiplier": 1.2, "window_size": 3, "min_history": 1, "max_consecutive_skips": 11},
        {"multiplier": 1.5, "max_consecutive_skips": "never"},
        {"multiplier": 3.0, "window_size": 17, "min_history": 17},
    ],
    "robust": [
        {},
        {"k": 6.0, "window_size": 30, "min_history": 10},
        {"k": 3, "window_size": 6, "min_history": 3, "max_consecutive_skips": 2},
        {"k": 1.0, "window_size": 1, "min_history": 1, "max_consecutive_skips": 1},
        {"k": 4.0, "window_size": 5, "min_history": 5, "max_consecutive_skips": 9},
        {"k": 2.0, "window_size": 20, "max_consecutive_skips": "never"},
    ],
}
KINDS = ("continuous", "one_decimal", "four_decimals", "bf16")


def config_of(rule: str, settings: dict[str, Any]) -> GuardConfig:
    return GuardConfig(rule=rule, **settings)  # type: ignore[arg-type]


# What random sequences are made of, and both sides' answers to them.


class Answers(NamedTuple):
    """What was decided about N sequences of S micro-batches: (N, S) each, NaN where there is no number."""

    keep: np.ndarray
    reason: np.ndarray
    loss: np.ndarray
    baseline: np.ndarray
    threshold: np.ndarray

    def assert_equal(self, other: "Answers", *, where: str = "") -> None:
        for name, mine, theirs in zip(self._fields, self, other, strict=True):
            np.testing.assert_array_equal(mine, theirs, err_msg=f"{name} {where}")


def sequences(seed: int, *, num: int, length: int, kind: str) -> np.ndarray:
    """Figures of random losses with every fault: (N, S, 3) of loss sum, tokens, not finite."""
    rng = np.random.default_rng(seed)
    shape = (num, length)
    level = rng.choice([0.02, 0.5, 2.0, 11.0, -3.0], (num, 1))
    # about one shift of the level in 50, up or down, and the noise of a quiet, a usual or a wild run
    shifts = np.where(rng.random(shape) < 0.02, rng.choice([0.25, 0.5, 1.3, 3.0, 8.0], shape), 1.0)
    noise = rng.choice([0.0, 0.001, 0.05, 0.5], (num, 1))
    losses = level * np.clip(np.cumprod(shifts, 1), 1e-3, 1e3) * (1 + noise * rng.standard_normal(shape))
    losses = np.where(rng.random(shape) < 0.06, losses * rng.choice([1.5, 2.0, 10.0], shape), losses)
    if kind == "bf16":
        losses = torch.from_numpy(losses).bfloat16().double().numpy()
    elif kind != "continuous":
        losses = losses.round({"one_decimal": 1, "four_decimals": 4}[kind])
    odd = [math.nan, math.inf, -math.inf, 0.0, -0.0, -1.5, 1e39, -1e39, 3.3e38, 3.4028236e38, 1e-9]
    is_odd = rng.random(shape) < rng.choice([0.0, 0.01, 0.1], (num, 1))
    losses = np.where(is_odd, rng.choice(odd, shape), losses)
    num_tokens = rng.choice([1, 7, 512, 16_384, 2**31, 2**53], shape, p=[0.4, 0.2, 0.2, 0.18, 0.01, 0.01])
    num_tokens = np.where(rng.random(shape) < 0.03, 0, num_tokens).astype(np.float64)
    with np.errstate(invalid="ignore"):
        sums = np.where(num_tokens > 0, losses * num_tokens, losses)
    return np.stack([sums, num_tokens, rng.choice([0.0, 1.0, 3.0], shape, p=[0.98, 0.01, 0.01])], -1)


def host_answers(guards: list[PerTokenLossGuard], figures: np.ndarray) -> Answers:
    def number(x: float | None) -> float:
        return math.nan if x is None else x

    rows = []
    for guard, sequence in zip(guards, figures.tolist(), strict=True):
        for loss_sum, num_tokens, num_nonfinite in sequence:
            verdict = guard.check(math.nan if num_nonfinite else loss_sum, int(num_tokens))
            reason = VERDICT_REASONS.index(verdict.reason)
            rows.append((verdict.keep, reason, verdict.loss, number(verdict.baseline), number(verdict.threshold)))
    return Answers(*np.array(rows, dtype=np.float64).reshape(*figures.shape[:2], 5).transpose(2, 0, 1))


def device_answers(rules: list[DeviceRule], figures: np.ndarray) -> Answers:
    """The answers of N rules at once: `vmap` runs the same operations over all of their states."""
    one = rules[0]
    state = {name: torch.stack([getattr(rule, name) for rule in rules]) for name in ("_history", "_counts")}

    def decide(state: dict[str, torch.Tensor], loss_sum: Any, num_tokens: Any, num_nonfinite: Any) -> Ruling:
        vars(one).update(state)
        return one.decide(loss_sum, num_tokens, num_nonfinite)

    batched = torch.vmap(decide)
    columns = torch.from_numpy(figures).permute(1, 2, 0).contiguous()
    answers = [torch.stack([x.double() for x in batched(state, *column)]) for column in columns]
    for place, rule in enumerate(rules):
        vars(rule).update({name: value[place] for name, value in state.items()})
    return Answers(*torch.stack(answers).permute(1, 2, 0).numpy())


def prove_equal(rule: str, *, num_sequences: int, length: int, seed: int) -> np.ndarray:
    """Holds both sides against each other; how often each reason was given."""
    cases = [(settings, kind) for settings in SETTINGS[rule] for kind in KINDS]
    num = -(-num_sequences // len(cases))
    seen = np.zeros(len(VERDICT_REASONS), dtype=int)
    for place, (settings, kind) in enumerate(cases):
        config = config_of(rule, settings)
        figures = sequences(seed + place, num=num, length=length, kind=kind)
        guards = [PerTokenLossGuard.from_config(config, quiet=True) for _ in range(num)]
        rules = [DeviceRule(config, device="cpu") for _ in range(num)]
        for part in np.array_split(figures, 2, axis=1):
            # when, the second half after a resume in the middle
            told = host_answers(guards, part)
            device_answers(rules, part).assert_equal(told, where=f"{config}, {kind}, seed {seed}")
            seen += np.bincount(told.reason.astype(int).ravel(), minlength=len(seen))
            rules = [DeviceRule(config, device="cpu") for _ in range(num)]
            for fresh, guard in zip(rules, guards, strict=True):
                fresh.load(guard.history)
    return seen


@pytest.mark.parametrize("rule", LIVE_RULES)
def test_random_sequences_are_judged_as_the_host_judges_them(rule: str) -> None:
    seen = prove_equal(rule, num_sequences=240, length=80, seed=1_000)

    # then each case was met: all reasons but "off", and the mean's own but under the other rule
    unmet = {VERDICT_REASONS[code] for code in np.flatnonzero(seen == 0)}
    assert unmet == ({"off"} if rule == "mean" else {"off", "baseline_not_positive"})


@pytest.mark.long
@pytest.mark.parametrize("rule", LIVE_RULES)
def test_ten_thousand_random_sequences_are_judged_as_the_host_judges_them(rule: str) -> None:
    seed = int(np.random.SeedSequence().generate_state(1)[0])
    prove_equal(rule, num_sequences=10_000, length=120, seed=seed)


@pytest.mark.parametrize("rule", LIVE_RULES)
def test_losses_of_every_size_that_float32_has_get_the_verdicts_of_the_host(rule: str) -> None:
    rng = np.random.default_rng(3)
    for settings in SETTINGS[rule]:
        config = config_of(rule, settings)
        sizes = np.ldexp(1.0, rng.integers(-149, 128, (40, 60)))
        losses = rng.choice([-1.0, 1.0, 1.0, 1.0], sizes.shape) * rng.random(sizes.shape) * sizes
        figures = np.stack([losses, np.ones_like(losses), np.zeros_like(losses)], -1)

        # when
        told = device_answers([DeviceRule(config, device="cpu") for _ in figures], figures)
        wanted = host_answers([PerTokenLossGuard.from_config(config, quiet=True) for _ in figures], figures)

        # then: the last bit of a mean over such sizes is not compared, see `exact_sum`
        for mine, theirs in zip(told[:3], wanted[:3], strict=True):
            np.testing.assert_array_equal(mine, theirs)


@pytest.mark.parametrize("rule", LIVE_RULES)
def test_one_call_after_another_judges_as_the_host_does(rule: str) -> None:
    for settings in SETTINGS[rule]:
        config = config_of(rule, settings)
        figures = sequences(7, num=2, length=90, kind="one_decimal")
        told = host_answers([PerTokenLossGuard.from_config(config, quiet=True) for _ in figures], figures)

        # when
        device_rules = [DeviceRule(config, device="cpu") for _ in figures]
        rulings = [
            [float(x) for x in device_rule.decide(*torch.tensor(micro, dtype=torch.float64))]
            for device_rule, sequence in zip(device_rules, figures.tolist(), strict=True)
            for micro in sequence
        ]

        # then
        Answers(*np.array(rulings).reshape(*told.keep.shape, 5).transpose(2, 0, 1)).assert_equal(told)


# The page on guards, slowly.


def page(rule: str, settings: dict[str, Any], figures: list[list[float]]) -> Iterator[tuple[str, float | None]]:
    """Reason and baseline of each micro-batch as the page on guards has them; shares no code with either side."""
    size = settings.get("window_size", 8 if rule == "mean" else 100)
    needed = settings.get("min_history", 3 if rule == "mean" else 20)
    most = settings.get("max_consecutive_skips", 8 if rule == "mean" else 20)
    kept: list[float] = []
    row: list[float] = []
    for loss_sum, num_tokens, num_nonfinite in figures:
        if num_tokens == 0:
            yield "no_tokens", None
            continue
        with np.errstate(over="ignore"):
            x = float(np.float32(np.float64(loss_sum) / np.float64(num_tokens)))
        if num_nonfinite or not math.isfinite(x):
            yield "nonfinite", None
            continue
        reason, baseline = "warmup", None
        if len(kept) >= needed:
            reason = "normal"
            if rule == "mean":
                baseline = float(sum(map(Fraction, kept))) / len(kept)
                if baseline <= 0:
                    reason = "baseline_not_positive"
                elif x > baseline * settings["multiplier"]:
                    reason = "spike"
            else:
                baseline = statistics.median(kept)
                spread = statistics.median(abs(y - baseline) for y in kept)
                scale = max(1.4826 * spread, 0.02 * abs(baseline), 5e-5)
                if x - baseline > settings.get("k", 10.0) * scale:
                    reason = "spike"
        if reason == "spike" and most != "never" and len(row) >= most:
            kept, reason = row[-size:], "rebaselined"
        if reason == "spike":
            row.append(x)
        else:
            kept, row = [*kept, x][-size:], []
        yield reason, baseline


@pytest.mark.parametrize("rule", LIVE_RULES)
def test_random_sequences_are_judged_as_the_page_on_guards_says(rule: str) -> None:
    num_cases = len(SETTINGS[rule]) * len(KINDS)
    for place in range(num_cases):
        settings, kind = SETTINGS[rule][place // len(KINDS)], KINDS[place % len(KINDS)]
        figures = sequences(20_000 + place, num=-(-500 // num_cases), length=60, kind=kind)

        # when
        rules = [DeviceRule(config_of(rule, settings), device="cpu") for _ in figures]
        told = device_answers(rules, figures)

        # then
        for number, sequence in enumerate(figures.tolist()):
            wanted = list(page(rule, settings, sequence))
            assert [VERDICT_REASONS[int(code)] for code in told.reason[number]] == [reason for reason, _ in wanted]
            baselines = [math.nan if baseline is None else baseline for _, baseline in wanted]
            np.testing.assert_array_equal(told.baseline[number], baselines)
            skips = [reason in ("spike", "nonfinite") for reason, _ in wanted]
            assert told.keep[number].tolist() == [not skip for skip in skips]
