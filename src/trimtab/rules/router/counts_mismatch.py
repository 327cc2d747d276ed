"""Whether counts add up: sum(counts) == tokens * k, and a router sees each token of the model once.

A failure by a whole factor is named: activation checkpointing runs a forward again, and a hook that counts there counts
twice. Fewer tokens than the model's are no finding: a later head (MTP) leaves some out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from trimtab.rules.router.signs import Judgement, Seen, Sign, also_in, layers_named, number
from trimtab.watched import FindingKind, LayerFigures, RouterReport, WatchFinding


class CountsMismatch(Judgement):
    """Compares the counts of each layer with its tokens, and these with the model's."""

    kind: ClassVar[FindingKind] = "counts_mismatch"

    def look(self, seen: Seen) -> Iterable[Sign]:
        """Signs of layers whose counts do not add up."""
        for layer in seen.report.layers:
            compared = _compared(layer, seen.report)
            if not compared:
                continue
            wrong = next(
                ((found, expected, of) for found, expected, of in compared if _differs(found, expected, of)), None
            )
            if wrong is None:
                yield Sign(layer=layer.name, topic="counts", is_over=True)
                continue
            found, expected, of = wrong
            figures: dict[str, Any] = {"found": found, "expected": expected, "of": of}
            if expected:
                figures["ratio"] = found / expected
            yield Sign(layer=layer.name, topic="counts", figures=figures)

    def tell(self, report: RouterReport, signs: Sequence[Sign]) -> WatchFinding:
        """One finding, with the numbers of its first layer in the sentence."""
        figures = signs[0].figures
        found, expected = figures["found"], figures["expected"]
        text = f"counts of {layers_named(signs[:1])} do not add up: {found} {figures['of']}, expected {expected}"
        if expected and found % expected == 0 and found > expected:
            text += (
                f", {found // expected} times as many: counted {found // expected} times, by activation checkpointing "
                "or a router that is called as often"
            )
        elif expected:
            text += f", {number(found / expected)} times as many"
        return self.finding(report, signs, text + also_in(signs))


_ROUTED = "experts chosen for its tokens x k"
_TOKENS = "tokens at the router of those that went into the model"


def _compared(layer: LayerFigures, report: RouterReport) -> list[tuple[int, int, str]]:
    """What can be compared: found, expected, and what it is of."""
    pairs = []
    tokens = layer.num_tokens if layer.num_tokens is not None else report.expected_tokens
    if layer.counts is not None and layer.top_k is not None and tokens is not None:
        pairs.append((sum(layer.counts), tokens * layer.top_k, _ROUTED))
    if layer.num_tokens is not None and report.expected_tokens is not None:
        pairs.append((layer.num_tokens, report.expected_tokens, _TOKENS))
    return pairs


def _differs(found: int, expected: int, of: str) -> bool:
    if of == _ROUTED:
        return found != expected
    return expected > 0 and found > expected and found % expected == 0
