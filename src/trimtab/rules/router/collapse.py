"""Collapse: a router that no longer routes, told from figures that all have to agree.

Four ways: the load is on few experts though the router does not choose (ties), because it is sure of the same ones for
every token, or with ordinary confidence; or it is sure of one expert for all tokens, and its other choices spread.
A fifth has a balanced load: a router that had learnt to choose and is uniform again. One that was never anything but
uniform is young, and no finding.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final

from trimtab.rules.router.condition import TAKES_ALL, Condition, condition_of, part_of_uniform
from trimtab.rules.router.per_layer import PerLayer
from trimtab.rules.router.persistence import LASTS, MAY_PASS, Persistence
from trimtab.rules.router.signs import Judgement, Seen, Sign, also_in, layers_named, number
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, is_finite, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import FindingKind, RouterReport, WatchFinding

HAD_LEARNT: Final = 0.9
"""Part of ln E under which a token entropy must have been, for a uniform router to be one that has lost something: at 8
experts logits of standard deviation 0.65, three times what counts as uniform."""

TOTAL: Final = 0.02
"""Load entropy, of what is possible, of a layer all of whose tokens go to the same experts: half a percent of them goes
elsewhere at 8 experts. That needs no second report."""

NO_LONGER_UNIFORM: Final = 0.97
"""Part of ln E under which a router that was uniform chooses again."""

_MAY_PASS, _WEIGHS = range(2)

_WAYS: Final = {
    "uniform": "the router is uniform, and ties send nearly all tokens to few experts",
    "one_hot": "the router is sure of the same few experts for nearly all tokens",
    "first_choice": "the router is sure of one expert for all tokens",
    "load": "the load has collapsed: nearly all tokens go to few experts",
    "forgot": "the router had learnt to choose and is uniform again",
}


class Collapse(Judgement):
    """Judges confidence, balance, MaxVio and spread of each layer together.

    Args:
        config: The settings.
    """

    kind: ClassVar[FindingKind] = "collapse"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._surest: PerLayer[float] = PerLayer()
        self._persistence = Persistence(config)

    def look(self, seen: Seen) -> Iterable[Sign]:
        """Signs of collapsed layers, and of those that came back."""
        for layer in seen.report.layers:
            condition, part = condition_of(layer, self._config), part_of_uniform(layer)
            surest = self._surest.get(layer.name)
            if part is not None:
                self._surest.put(layer.name, part if surest is None else min(part, surest))
            had_learnt = surest is not None and surest <= HAD_LEARNT
            way = _way(condition, self._config, had_learnt=had_learnt)
            if way is not None:
                is_total = way == "first_choice" or (
                    way != "forgot" and condition.load is not None and condition.load < TOTAL
                )
                weight = self._persistence.weigh(layer.name, step=seen.report.step, is_sure=is_total)
                yield Sign(
                    layer=layer.name,
                    topic="collapse",
                    rank=_WEIGHS if weight.is_full else _MAY_PASS,
                    figures={"way": way, **condition.figures},
                    is_worse_now=weight.is_new,
                )
            elif _is_back(condition, part, had_learnt=had_learnt):
                self._persistence.see_well(layer.name)
                yield Sign(layer=layer.name, topic="collapse", is_over=True)

    def tell(self, report: RouterReport, signs: Sequence[Sign]) -> WatchFinding:
        """One finding, which names the way of each layer; a warning of what may pass, in a young run."""
        parts = []
        for way, meaning in _WAYS.items():
            those = [sign for sign in signs if sign.figures["way"] == way]
            if those:
                parts.append(f"in {layers_named(those[:1])} {meaning} ({_figures(those[0].figures)}){also_in(those)}")
        text = "; ".join(parts)
        if signs[0].rank == _MAY_PASS:
            return self.finding(report, signs, text + MAY_PASS)
        if all(sign.is_worse_now for sign in signs):
            text += LASTS
        return self.finding(report, signs, text, severity="critical", marks_unhealthy=True)

    def state_dict(self) -> dict[str, Any]:
        """Of each layer the lowest token entropy, as a part of ln E, and how many reports had it collapsed, or well."""
        return {
            "surest": self._surest.state_dict(lambda part: part),
            "persistence": self._persistence.state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        surest, persistence = read_entries(state, ("surest", "persistence"), where=self.kind)
        self._persistence.load_state_dict(persistence)
        self._surest.load_state_dict(surest, _read_part)


def _way(condition: Condition, config: WatchConfig, *, had_learnt: bool) -> str | None:
    if condition.crowded:
        share = condition.figures["busiest_share"]
        assert share is not None
        if condition.confidence == "one_hot" and share >= TAKES_ALL and (condition.load or 0.0) >= config.collapse_load:
            return "first_choice"
        return condition.confidence if condition.confidence in ("uniform", "one_hot") else "load"
    return "forgot" if condition.confidence == "uniform" and had_learnt else None


def _is_back(condition: Condition, part: float | None, *, had_learnt: bool) -> bool:
    """Whether a layer is clearly none of the five; by its confidence alone only where the load is not known."""
    chooses = part is not None and part < NO_LONGER_UNIFORM
    if condition.load is None:
        return chooses
    return condition.crowded is False and (chooses or not had_learnt or part is None)


def _figures(figures: dict[str, Any]) -> str:
    """The figures of one layer in a sentence, those that are known; entropies with what is possible."""
    num_experts, share = figures["num_experts"] or 0, figures.get("busiest_share")
    told = [f"{num_experts} experts" if share is None else f"{share:.0%} of tokens at 1 of {num_experts} experts"]
    names = {"load_entropy": "load entropy", "token_entropy": "token entropy"}
    entropies = [f"{name} {figures[key]:.3g}" for key, name in names.items() if figures.get(key) is not None]
    if entropies:
        told.append(f"{' and '.join(entropies)} of {math.log(max(1, num_experts)):.3g} nats")
    names = {"max_vio": "MaxVio", "spread": "spread"}
    told += [f"{name} {number(figures[key])}" for key, name in names.items() if figures.get(key) is not None]
    return ", ".join(told)


def _read_part(found: Any) -> float:
    if not is_finite(found):
        raise damaged(f"the lowest token entropy is {spelled(found)}, not a number")
    return float(found)
