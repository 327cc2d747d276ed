"""Gates that a change to a mixture-of-experts training passes on a real chunk of data, from the logs of two arms alone.

Copy this file to tests/skills/moe-router-stability/asserts.py, set OLD, NEW, EVAL_NOISE and LEAST_STEPS, and run it:

    pytest tests/skills/moe-router-stability/asserts.py

OLD is a run as it was, NEW one with a single change, both from the same checkpoint over the same rows, both with
`watch=True`. The chunk is what NEW trained on. Only these lines are yours to change: a gate that was loosened shows
nothing.
"""

import json
import math
from collections import Counter
from functools import cache
from pathlib import Path
from statistics import median

import pytest

import trimtab

ROOT = Path(__file__).resolve().parents[3]
"""The folder that OLD and NEW are in."""
OLD = "runs/old"
NEW = "runs/new"
EVAL_NOISE = 0.0
"""By how much two evals of the old arm differ when only its seed does, in the unit of the eval loss."""

LEAST_STEPS = 0
"""Steps that lay between the first sign of the trouble and the failure; the chunk has to be as long."""

LAST = 3
"""Reports and evals that the end of a chunk is judged by: one alone may be chance."""

RISE = 1.2
"""Factor by which a z rises over the last reports, to end above those of the old arm. Noise moves it by less."""

FALL = 10.0
"""Factor under the old arm's smallest z at which one that still falls is on its way to 0. A larger weight lowers z, and
does not end it."""


@cache
def steps(arm: str) -> dict[int, bool]:
    """Whether its norm was clipped, by step, as each was trained last."""
    table = trimtab.open_log(ROOT / arm).steps().numpy()
    columns = zip(table["step"], table["attempt"], table["clipped"], strict=True)
    return {int(step): bool(clipped) for step, _, clipped in sorted(columns, key=lambda line: line[:2])}


@cache
def rows(arm: str) -> dict[int, Counter[int]]:
    """The dataset rows of each step, as it was trained last."""
    table = trimtab.open_log(ROOT / arm).rows().numpy()
    found: dict[tuple[int, int], Counter[int]] = {}
    for step, attempt, row in zip(table["step"], table["attempt"], table["row"], strict=True):
        found.setdefault((int(step), int(attempt)), Counter())[int(row)] += 1
    return {step: found[step, attempt] for step, attempt in sorted(found)}


@cache
def events(arm: str, kind: str) -> dict[int, dict]:
    """The facts of the last event of a kind at each step of the chunk."""
    table = trimtab.open_log(ROOT / arm).events().numpy()
    columns = zip(table["step"], table["kind"], table["facts"], strict=True)
    return {int(step): json.loads(facts) for step, found, facts in columns if found == kind and int(step) in steps(NEW)}


def layers(arm: str) -> list[dict[str, dict]]:
    """The figures of each layer by its name, for each report of the chunk."""
    reports = []
    for _, facts in sorted(events(arm, "router").items()):
        columns = facts.get("layers", {"name": []})
        figures = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        reports.append({layer["name"]: layer for layer in figures})
    return reports


def max_vio(layer: dict) -> float:
    """Largest load over mean load, minus 1."""
    return max(layer["counts"]) * len(layer["counts"]) / sum(layer["counts"]) - 1


def num_silent(layer: dict) -> int:
    """Experts without a token."""
    return layer["counts"].count(0)


def load_balance(layer: dict) -> float:
    """1 at balance; what is not finite is as bad as can be."""
    return layer["load_balance"] if isinstance(layer["load_balance"], (int, float)) else math.inf


def z_of(layer: dict) -> float:
    """Mean of logsumexp(logits)^2; what is not finite is as bad as can be."""
    return layer["z"] if isinstance(layer["z"], (int, float)) else math.inf


def test_both_arms_trained_on_the_same_rows() -> None:
    """The steps of NEW are steps of OLD, and of each the rows are the same, as often."""
    assert rows(NEW), "no rows are in the log of the new arm: train it with Trimtab's recorder on."
    other = [step for step in rows(NEW) if rows(NEW)[step] != rows(OLD).get(step)]
    assert not other, f"{len(other)} of {len(rows(NEW))} steps have other rows, the first is step {other[0]}."


def test_the_chunk_is_long_enough_to_tell() -> None:
    """It has as many steps as the trouble took, and both arms three reports of their routers and three shared evals."""
    assert len(steps(NEW)) >= LEAST_STEPS, f"{len(steps(NEW))} steps, {LEAST_STEPS} are needed; make the chunk longer."
    shared = events(OLD, "evaluation").keys() & events(NEW, "evaluation").keys()
    found = {"reports of OLD": len(layers(OLD)), "reports of NEW": len(layers(NEW)), "shared evals": len(shared)}
    assert min(found.values()) >= LAST, f"{found}: {LAST} of each are needed; make the chunk longer."


def test_the_figures_of_both_arms_are_on_one_scale() -> None:
    """The same layers, and no factor that differs: figures across a change of scale tell nothing."""
    factors = {facts.get("z_factor", 1.0) for arm in (OLD, NEW) for facts in events(arm, "router").values()}
    assert len(factors) == 1, f"z was multiplied by {sorted(map(str, factors))}."
    names = {tuple(report) for arm in (OLD, NEW) for report in layers(arm)}
    assert len(names) == 1, f"the reports are of other layers: {sorted(names)}."


def test_the_new_arm_has_no_finding() -> None:
    """None of a warning or worse about routers, evals or gradients within the chunk."""
    found = [one for one in trimtab.rewind(ROOT / NEW).health if one.step in steps(NEW) and one.severity != "notice"]
    assert not found, "; ".join(f"step {one.step}, {one.kind}: {one.text}" for one in found)


@pytest.mark.parametrize("figure", [max_vio, num_silent, load_balance])
def test_no_layer_is_worse(figure) -> None:
    """At the end of the chunk each layer of NEW is within what the last reports of OLD had, layer by layer."""
    old, new = layers(OLD)[-LAST:], layers(NEW)[-LAST:]
    assert min(len(old), len(new)), "an arm has no report of its routers in the chunk: train it with watch=True."
    worse = []
    for name in new[-1]:
        before, now = max(figure(report[name]) for report in old), median(figure(report[name]) for report in new)
        if not now <= before:
            worse.append(f"{name}: {now:.4g}, {before:.4g} at most in the old arm")
    assert not worse, "; ".join(worse)


def test_no_z_drifts() -> None:
    """Over the last reports of NEW no z rises above those of OLD, and none falls to 0, layer by layer."""
    old, new = layers(OLD)[-LAST:], layers(NEW)[-LAST:]
    assert min(len(old), len(new)), "an arm has no report of its routers in the chunk: train it with watch=True."
    drifts = []
    for name in new[-1]:
        before, now = [z_of(report[name]) for report in old], [z_of(report[name]) for report in new]
        rises = now == sorted(now) and now[-1] >= RISE * now[0] and now[-1] > max(before)
        falls = now == sorted(now, reverse=True) and now[-1] < now[0] and now[-1] < min(before) / FALL
        if rises or falls or not math.isfinite(now[-1]):
            course = ", ".join(f"{z:.4g}" for z in now)
            drifts.append(f"{name}: {course}; {min(before):.4g} to {max(before):.4g} in the old arm")
    assert not drifts, "; ".join(drifts)


def test_no_eval_is_worse() -> None:
    """At each shared eval the loss of NEW is that of OLD, or less, beyond the noise."""
    old, new = events(OLD, "evaluation"), events(NEW, "evaluation")
    pairs = {step: (old[step]["loss"], new[step]["loss"]) for step in sorted(old.keys() & new.keys())}
    worse = {step: pair for step, pair in pairs.items() if not float(pair[1]) <= float(pair[0]) + EVAL_NOISE}
    assert not worse, f"eval losses by step, old and new: {worse}."


def test_no_more_steps_are_clipped() -> None:
    """The share of clipped steps is no higher than chance explains (two standard deviations of the old share)."""
    was = [steps(OLD)[step] for step in steps(NEW) if step in steps(OLD)]
    assert was, "the arms have no step in common."
    share, now = sum(was) / len(was), sum(steps(NEW).values()) / len(steps(NEW))
    allowed = share + 2 * math.sqrt(share * (1 - share) / len(was))
    assert now <= allowed, f"{now:.1%} of the steps were clipped, {share:.1%} in the old arm."
