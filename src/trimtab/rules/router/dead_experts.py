"""Dead experts: no token for so long that chance does not explain it, however many reports that takes.

Counts come in; experts that are silent are held with the tokens that passed them by since they last got one, over
several reports if need be. One that gets a token again stands until it gets a real share.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from trimtab.rules.router.figures import known_top_k, silent_by_chance, usable_counts
from trimtab.rules.router.per_layer import PerLayer
from trimtab.rules.router.signs import Judgement, Seen, Sign, layers_named, number
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import listed
from trimtab.watched import FindingKind, LayerFigures, RouterReport, WatchFinding

UNHEALTHY_FRACTION: Final = 0.5
"""Part of a layer's experts that are dead when a checkpoint of it is not one to go on from: half of its weights do not
learn."""

BACK: Final = 0.05
"""Part of the mean load that all experts get in one report when none is dead any more: a stray token revives nobody."""

MAX_NAMED: Final = 32
"""Dead experts of a layer that are listed."""


class _Silence(NamedTuple):
    """Experts without a token: by expert, the tokens that passed it by, and the first step of that."""

    num_experts: int
    tokens: dict[int, int]
    since: dict[int, int]


class DeadExperts(Judgement):
    """Judges the silence of experts against chance.

    Args:
        config: The settings.
    """

    kind: ClassVar[FindingKind] = "dead_experts"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._silence: PerLayer[_Silence] = PerLayer()

    def look(self, seen: Seen) -> Iterable[Sign]:
        """Signs of layers with dead experts, worse by one rank whenever their number has doubled."""
        for layer in seen.report.layers:
            counts = usable_counts(layer)
            if counts is None:
                continue
            silence = self._absorb(layer, counts, seen.report)
            dead = silent_by_chance(
                silence.tokens,
                num_experts=len(counts),
                top_k=known_top_k(layer),
                chance=self._config.dead_chance,
            )
            if dead:
                yield Sign(
                    layer=layer.name,
                    topic="dead",
                    rank=len(dead).bit_length(),
                    figures={
                        "num_experts": len(counts),
                        "num_dead": len(dead),
                        "dead_fraction": len(dead) / len(counts),
                        "experts": list(dead[:MAX_NAMED]),
                        "num_tokens": min(silence.tokens[expert] for expert in dead),
                        "first_step": max(silence.since[expert] for expert in dead),
                    },
                )
            elif min(counts) >= BACK * sum(counts) / len(counts):
                yield Sign(layer=layer.name, topic="dead", is_over=True)

    def tell(self, report: RouterReport, signs: Sequence[Sign]) -> WatchFinding:
        """One finding, which names the experts of the layer that has most of them."""
        worst = max(signs, key=lambda sign: sign.figures["dead_fraction"])
        figures = worst.figures
        experts = listed(map(str, figures["experts"]), most=8)
        which = "expert" if figures["num_dead"] == 1 else "experts"
        text = (
            f"in {layers_named([worst])} {which} {experts} of {figures['num_experts']} got none of "
            f"{figures['num_tokens']} tokens since step {figures['first_step']}, which chance does not explain: "
            f"{number(100 * figures['dead_fraction'])} % of its experts are dead"
        )
        others = [sign for sign in signs if sign is not worst]
        if others:
            text += f"; some are in {layers_named(others)} too"
        is_unhealthy = any(sign.figures["dead_fraction"] >= UNHEALTHY_FRACTION for sign in signs)
        return self.finding(report, signs, text, marks_unhealthy=is_unhealthy)

    def state_dict(self) -> dict[str, Any]:
        """The silent experts of each layer."""
        return {"silence": self._silence.state_dict(_spell_silence)}

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        (silence,) = read_entries(state, ("silence",), where=self.kind)
        self._silence.load_state_dict(silence, _read_silence)

    def _absorb(self, layer: LayerFigures, counts: Sequence[int], report: RouterReport) -> _Silence:
        before = self._silence.get(layer.name)
        if before is None or before.num_experts != len(counts):
            before = _Silence(len(counts), {}, {})
        passed = sum(counts) // known_top_k(layer)
        silent = [expert for expert, count in enumerate(counts) if not count]
        now = _Silence(
            len(counts),
            {expert: before.tokens.get(expert, 0) + passed for expert in silent},
            {expert: before.since.get(expert, report.first_step) for expert in silent},
        )
        self._silence.put(layer.name, now)
        return now


def _spell_silence(silence: _Silence) -> dict[str, Any]:
    return {
        "num_experts": silence.num_experts,
        "experts": list(silence.tokens),
        "tokens": list(silence.tokens.values()),
        "since": list(silence.since.values()),
    }


def _read_silence(found: Any) -> _Silence:
    names = ("num_experts", "experts", "tokens", "since")
    num_experts, *columns = read_entries(found, names, where="the silence of a layer")
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        raise damaged(f"the silence of a layer is {spelled(found)}, not lists of one length")
    experts, tokens, since = ([read_count(count, name="a silent expert") for count in column] for column in columns)
    size = read_count(num_experts, name="the number of experts")
    if len(set(experts)) < len(experts) or any(expert >= size for expert in experts):
        raise damaged(f"the silence of a layer names experts {spelled(experts)} of {size}")
    return _Silence(size, _by_expert(experts, tokens), _by_expert(experts, since))


def _by_expert(experts: Sequence[int], values: Sequence[int]) -> dict[int, int]:
    return dict(zip(experts, values, strict=True))
