"""Dead experts: no token for so long that chance does not explain it, however many reports that takes.

Counts come in; experts that are silent are held with the tokens that passed them by since they last got one, over
several reports if need be. One that was found dead is so until a report in which it gets a fair number of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

from trimtab.rules.router.figures import known_top_k, silent_by_chance, usable_counts
from trimtab.rules.router.per_layer import PerLayer
from trimtab.rules.router.persistence import LASTS, MAY_PASS, Persistence, Weight
from trimtab.rules.router.signs import Judgement, Seen, Sign, layers_named, number
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.text import listed
from trimtab.watched import FindingKind, LayerFigures, RouterReport, WatchFinding

UNHEALTHY_FRACTION: Final = 0.5
"""Part of a layer's experts that are dead when a checkpoint of it is not one to go on from: half of its weights do not
learn."""

BACK: Final = 0.005
"""Part of the mean load, and more than one token, that an expert gets in a report when it is not dead any more: it then
learns, if from little, and a stray token revives nobody. To be found dead again it must be silent for as long again."""

MAX_NAMED: Final = 32
"""Dead experts of a layer that are listed."""


class _Silence(NamedTuple):
    """Experts without a token: by expert, the tokens that passed it by, and the first step of that.

    And those that were found dead, and have not got a fair number since.
    """

    num_experts: int
    tokens: dict[int, int]
    since: dict[int, int]
    dead: tuple[int, ...] = ()


class DeadExperts(Judgement):
    """Judges the silence of experts against chance.

    Args:
        config: The settings.
    """

    kind: ClassVar[FindingKind] = "dead_experts"

    def __init__(self, config: WatchConfig) -> None:
        self._config = config
        self._silence: PerLayer[_Silence] = PerLayer()
        self._persistence = Persistence(config)

    def look(self, seen: Seen) -> Iterable[Sign]:
        """Signs of layers with dead experts, worse whenever their number has doubled, or they are half of all."""
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
            was_dead = [expert for expert in silence.dead if not _is_fair(counts[expert], counts)]
            self._silence.put(layer.name, silence._replace(dead=tuple(sorted({*was_dead, *dead}))))
            is_half = len(dead) >= UNHEALTHY_FRACTION * len(counts)
            weight = Weight(is_full=False, is_new=False)
            if is_half:
                weight = self._persistence.weigh(layer.name, step=seen.report.step)
            elif len(silence.tokens) < UNHEALTHY_FRACTION * len(counts):  # else chance may explain it, so far
                self._persistence.see_well(layer.name)
            if dead:
                yield Sign(
                    layer=layer.name,
                    topic="dead",
                    rank=2 * len(dead).bit_length() + weight.is_full,  # odd where it weighs
                    figures={
                        "num_experts": len(counts),
                        "num_dead": len(dead),
                        "dead_fraction": len(dead) / len(counts),
                        "experts": list(dead[:MAX_NAMED]),
                        "num_tokens": min(silence.tokens[expert] for expert in dead),
                        "first_step": max(silence.since[expert] for expert in dead),
                    },
                    is_worse_now=weight.is_new,
                    is_harmless=not is_half,
                    first_step=_first_step(dead, silence, is_half=is_half),
                )
            elif not was_dead:
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
        weighs = any(sign.rank % 2 for sign in signs)
        if not weighs and figures["dead_fraction"] >= UNHEALTHY_FRACTION:
            text += MAY_PASS
        elif all(sign.is_worse_now for sign in signs):
            text += LASTS
        return self.finding(report, signs, text, marks_unhealthy=weighs)

    def state_dict(self) -> dict[str, Any]:
        """The silent experts of each layer, and how many reports showed half of them dead, or fewer."""
        return {
            "silence": self._silence.state_dict(_spell_silence),
            "persistence": self._persistence.state_dict(),
        }

    def load_state_dict(self, state: Any) -> None:
        """Takes over a `state_dict()`; `UsageError`, and nothing has changed, if it is none."""
        silence, persistence = read_entries(state, ("silence", "persistence"), where=self.kind)
        self._persistence.load_state_dict(persistence)
        self._silence.load_state_dict(silence, _read_silence)

    def _absorb(self, layer: LayerFigures, counts: Sequence[int], report: RouterReport) -> _Silence:
        before = self._silence.get(layer.name)
        if before is None or before.num_experts != len(counts):
            before = _Silence(len(counts), {}, {})
        passed = sum(counts) // known_top_k(layer)
        silent = [expert for expert, count in enumerate(counts) if not count]
        return _Silence(
            len(counts),
            {expert: before.tokens.get(expert, 0) + passed for expert in silent},
            {expert: before.since.get(expert, report.first_step) for expert in silent},
            before.dead,
        )


def _is_fair(count: int, counts: Sequence[int]) -> bool:
    return count > 1 and count >= BACK * sum(counts) / len(counts)


def _first_step(dead: Sequence[int], silence: _Silence, *, is_half: bool) -> int:
    """Since when there are as many: the first of them; where they are half of all, since they were that."""
    steps = sorted(silence.since[expert] for expert in dead)
    return steps[math.ceil(UNHEALTHY_FRACTION * silence.num_experts) - 1] if is_half else steps[0]


def _spell_silence(silence: _Silence) -> dict[str, Any]:
    return {
        "num_experts": silence.num_experts,
        "experts": list(silence.tokens),
        "tokens": list(silence.tokens.values()),
        "since": list(silence.since.values()),
        "dead": list(silence.dead),
    }


def _read_silence(found: Any) -> _Silence:
    names = ("num_experts", "dead", "experts", "tokens", "since")
    num_experts, dead, *columns = read_entries(found, names, where="the silence of a layer")
    if not all(isinstance(column, list) and len(column) == len(columns[0]) for column in columns):
        raise damaged(f"the silence of a layer is {spelled(found)}, not lists of one length")
    experts, tokens, since = ([read_count(count, name="a silent expert") for count in column] for column in columns)
    size = read_count(num_experts, name="the number of experts")
    if len(set(experts)) < len(experts) or any(expert >= size for expert in experts):
        raise damaged(f"the silence of a layer names experts {spelled(experts)} of {size}")
    if not isinstance(dead, list) or any(read_count(expert, name="a dead expert") >= size for expert in dead):
        raise damaged(f"the dead experts of a layer are {spelled(dead)}, not some of {size}")
    return _Silence(size, _by_expert(experts, tokens), _by_expert(experts, since), tuple(dead))


def _by_expert(experts: Sequence[int], values: Sequence[int]) -> dict[int, int]:
    return dict(zip(experts, values, strict=True))
