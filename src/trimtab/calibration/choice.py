"""Which of the tried settings to choose, and how much the log has to say about it.

Enters: the outcomes. Leaves: one of them, and sentences. What is asked of a setting, in this order:

1. It skips at most 1 in 1,000 losses outside of the findings (1 in 10,000 where there is no finding to catch): a skip
   of what was normal is data lost, and a guard that skips much of it steers the training.
2. Of those, it catches the most findings: a spike that gets through is what the guard is for.
3. Of those, it locks up least: a lock-up is data lost twenty at a time, unless the level really moved.
4. Of those, it skips the fewest others.
5. What is left does equally well: the defaults, which were measured on many runs, that of `robust`, whose setting
   transfers between runs, first; then `robust`, its usual window, and of what is no stricter than the default the
   nearest to it.

Where nothing is out of line every loose setting does equally well, and a strict one has only not been caught out yet:
then it is the strictest of `robust` in place of the nearest. One that is stricter than the default is chosen only on
evidence: that it catches more, or `ENOUGH` micro-batches of which it skips hardly any.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from trimtab.calibration.settings import distance_from_default
from trimtab.calibration.values import Outcome, Unit
from trimtab.rules.live import LIVE_RULES

MAX_OTHERS: Final = 1 / 1_000
"""Share of skips outside of the findings that is still fit where there is something to catch."""

MAX_OTHERS_CLEAN: Final = 1 / 10_000
"""The same where there is nothing to catch."""

ENOUGH: Final = 10_000
"""Finite losses that can show a rate of `MAX_OTHERS_CLEAN`."""

FEW: Final = 1_000
"""Finite losses that can show a rate of `MAX_OTHERS`."""


def choose(outcomes: Sequence[Outcome], *, num_spikes: int, num_finite: int, unit: Unit) -> tuple[Outcome | None, str]:
    """The outcome whose setting to choose, and why.

    Args:
        outcomes: One a setting.
        num_spikes: Findings of the loss that a setting can miss: losses that are not finite every guard skips.
        num_finite: Losses in the log that are finite.
        unit: What they are losses of.

    Returns:
        The outcome, or None where every setting skips too much or there is nothing to judge; and the reason, in
        sentences.
    """
    if not num_finite:
        return None, (
            "No loss is finite, so nothing was judged by any setting: every guard skips such losses, from the first "
            "on. Look for what makes them so."
        )
    bound = MAX_OTHERS if num_spikes else MAX_OTHERS_CLEAN
    fit = [outcome for outcome in outcomes if not outcome.gave_up and outcome.num_others <= bound * outcome.num_judged]
    if not fit:
        return None, (
            f"Every setting skips more than {_one_in(bound)} outside of the findings: these losses scatter too much "
            "for any of them. Guard larger micro-batches, or look at what makes them scatter."
        )
    if num_spikes:
        best = min(fit, key=_by_findings)
        return best, _why_by_findings(best, fit=fit, bound=bound)
    is_shown = unit == "micro" and num_finite >= ENOUGH
    careful = fit if is_shown else [outcome for outcome in fit if distance_from_default(outcome.settings) >= 0]
    best = min(careful or fit, key=_by_preference)
    strictest = "the strictest" if is_shown else "the strictest, from the default on,"
    return best, (
        f"No finite loss is out of line, so nothing shows what a setting would catch: this is {strictest} of those "
        f"that skip at most {_one_in(bound)}."
    )


def on_evidence(*, num_spikes: int, num_finite: int, unit: Unit) -> list[str]:
    """Why the log says less than a choice needs, in sentences."""
    notices = []
    if unit == "step":
        notices.append(
            "the log holds no losses of micro-batches: step losses were judged. A guard judges micro-batches, which "
            "scatter more: take each number of skips as a lower bound"
        )
        if num_spikes:
            notices.append(
                "on step losses, rewind and a guard with rule robust, k=10 and window 100 judge alike: that it "
                "catches what rewind finds says little"
            )
    if num_finite < FEW:
        few = {0: "no finite loss is", 1: "1 finite loss is"}.get(num_finite, f"{num_finite} finite losses are")
        notices.append(f"{few} little to go by: a setting that skips 1 in {FEW:,} for nothing need not show here")
    if num_spikes in (1, 2):
        # A loss that is not finite is a finding too, and every setting skips it.
        found = "1 finding with a finite loss is" if num_spikes == 1 else "2 findings with a finite loss are"
        notices.append(f"{found} little to choose by: try the choice on another log of yours")
    return notices


def _by_findings(outcome: Outcome) -> tuple[object, ...]:
    """What it does on the log, then the defaults, then what is like them."""
    is_robust = outcome.settings["rule"] == "robust"
    distance = distance_from_default(outcome.settings)
    *alike, _ = _by_preference(outcome)
    is_default = outcome.is_default
    return *_merits(outcome), not (is_default and is_robust), not is_default, *alike, distance < 0, abs(distance)


def _merits(outcome: Outcome) -> tuple[int, ...]:
    """What a setting does on a log with findings, the less the better."""
    return -outcome.num_caught, outcome.num_rebaselined, outcome.num_others


def _by_preference(outcome: Outcome) -> tuple[object, ...]:
    """Fewest lock-ups, `robust`, its usual window, then the strictest."""
    rule = LIVE_RULES[outcome.settings["rule"]]
    window_size = outcome.settings["window_size"]
    is_usual = window_size == rule.default_window_size
    return (
        outcome.num_rebaselined,
        rule.name != "robust",
        not is_usual,
        window_size,
        outcome.settings[rule.sensitivity],
    )


def _why_by_findings(best: Outcome, *, fit: Sequence[Outcome], bound: float) -> str:
    others = {0: "nothing else", 1: "1 other"}.get(best.num_others, f"{best.num_others} others")
    why = (
        f"Of the settings that skip at most {_one_in(bound)} outside of the findings, none catches more of them "
        f"({best.num_caught}); it skips {others}."
    )
    num_alike = sum(_merits(outcome) == _merits(best) for outcome in fit) - 1
    if num_alike:
        do = "1 more does" if num_alike == 1 else f"{num_alike} more do"
        why += (
            f" {do} equally well here: of those it is {'a default' if best.is_default else 'nearest to the default'}."
        )
    if best.num_rebaselined:
        why += " It locks up, as every setting that catches as much: look at where the level of the loss moved."
    return why


def _one_in(share: float) -> str:
    return f"1 in {round(1 / share):,} losses"
