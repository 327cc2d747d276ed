"""One setting over one run's losses, through the decision machine that runs live.

Enters: a `GuardConfig` and losses. Leaves: which losses it skips, and why. Invariant: the verdicts are those of
`LossGuard.check` on every loss in turn: a skipped loss never enters the window, warm-up and lock-ups are the guard's.

What keeps a million losses to seconds: while the window holds nothing but the losses right behind (as many kept in a
row as it is long), bounds over whole arrays (`trimtab.analysis.screen`) tell which losses could be a spike at all.
Those, and every loss until the window is such again, are judged by the guard; it is told of the others in one go.

Shapes: N losses, F of them finite.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trimtab.analysis.screen import mean_candidates, robust_candidates
from trimtab.analysis.series import is_finite
from trimtab.guard import GuardConfig, LossGuard
from trimtab.rules.live import LIVE_RULES

HOPELESS_FROM: Final = 100_000
"""Losses after which a setting is given up that skips more than `HOPELESS_SHARE` of them."""

HOPELESS_SHARE: Final = 0.01
"""The guard itself calls more than that too tight (`trimtab.rules.streak.RATE_PERCENT`)."""

_LEAST_JUMP: Final = 16
"""Losses that must be known to be kept before telling the guard of them in one go costs less than judging them."""

_ROBUST_WINDOWS: Final = range(40, 1 << 20)
"""Windows for which the bound of the rule robust holds; a shorter one is judged loss by loss."""

_ROBUST_KS: Final = 50.0
"""That bound falls as the median rises up to here."""


class Skips(NamedTuple):
    """What one setting does to one run.

    Attributes:
        place: (S,) int64 places of the skipped losses, ascending.
        nonfinite: (S,) bool, whether because they are not finite.
        num_rebaselined: How often the window was replaced by the losses skipped before.
        num_judged: Losses judged: N, or fewer where the setting was given up.
    """

    place: NDArray[np.int64]
    nonfinite: NDArray[np.bool_]
    num_rebaselined: int
    num_judged: int


def replay(losses: NDArray[np.float64], config: GuardConfig) -> Skips:
    """Judges losses in turn with a fresh guard.

    Args:
        losses: (N,) mean losses; of token-weighted micro-batches, sums over tokens, divided in float64.
        config: The setting; its guard must be on, and re-baseline where it locks up.
    """
    finite = is_finite(losses)
    finite_at = np.flatnonzero(finite)
    values = losses[finite_at].astype(np.float32).astype(np.float64)
    suspects = np.zeros(losses.size, np.bool_)
    suspects[~finite] = True
    suspects[finite_at[_suspects(values, config)]] = True
    # One more at the end, so that a jump always lands somewhere.
    stops = np.append(np.flatnonzero(suspects), losses.size)
    num_finite_before = np.concatenate([[0], np.cumsum(finite)]).tolist()
    return _walk(losses.tolist(), values.tolist(), config=config, stops=stops, num_before=num_finite_before)


def _walk(
    losses: list[float],
    values: list[float],
    *,
    config: GuardConfig,
    stops: NDArray[np.int64],
    num_before: list[int],
) -> Skips:
    guard = LossGuard.from_config(config, quiet=True)
    window_size = config.window_size or LIVE_RULES[config.rule].default_window_size
    check = guard.check
    skipped: list[int] = []
    nonfinite: list[bool] = []
    num_rebaselined = num_kept_in_row = place = 0
    next_stop = 0
    while place < len(losses):
        if num_kept_in_row >= window_size:
            next_stop += int(np.searchsorted(stops[next_stop:], place))
            stop = int(stops[next_stop])
            if stop - place >= _LEAST_JUMP:
                guard.remember_kept(values[num_before[place] : num_before[stop]])
                place = stop
                continue
        verdict = check(losses[place])
        if verdict.keep:
            num_kept_in_row += 1
            num_rebaselined += verdict.reason == "rebaselined"
        else:
            skipped.append(place)
            nonfinite.append(verdict.reason == "nonfinite")
            if verdict.reason != "nonfinite":
                num_kept_in_row = 0
        place += 1
        if place >= HOPELESS_FROM and len(skipped) > HOPELESS_SHARE * place:
            break
    return Skips(np.array(skipped, np.int64), np.array(nonfinite, np.bool_), num_rebaselined, place)


def _suspects(values: NDArray[np.float64], config: GuardConfig) -> NDArray[np.int64]:
    """Places among the finite values that may be a spike where the values right behind fill the window."""
    rule = LIVE_RULES[config.rule]
    window_size = config.window_size or rule.default_window_size
    if config.rule == "mean":
        assert config.multiplier is not None, "a guard that is off skips nothing"
        return mean_candidates(values, multiplier=config.multiplier, window_size=window_size)
    if window_size not in _ROBUST_WINDOWS or config.k >= _ROBUST_KS:
        return np.arange(values.size)
    return robust_candidates(values, k=config.k, window_size=window_size)
