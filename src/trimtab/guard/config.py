"""The settings of a guard, argued and checked: settings come in, a rule that makes sense goes out.

Invariant: a `GuardConfig` that exists can be built. What makes no sense is refused when it is made, what has no effect
is said.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from numbers import Integral, Real
from typing import Any, Final, Literal, Self

from trimtab.errors import TrimtabWarning, UsageError
from trimtab.rules.mean import MeanRule
from trimtab.rules.robust import RobustRule, check_k
from trimtab.rules.scalar import spelled
from trimtab.rules.windowed import check_whole

DEFAULT_K: Final = 10.0

DEFAULT_MAX_CONSECUTIVE_SKIPS: Final = {"mean": 8, "robust": 20}
"""One window of `mean`; for `robust` as many as it needs behind it, so that the new window can be judged by at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GuardConfig:
    """The settings of a guard; `GuardConfig()` is off.

    Attributes:
        rule: "mean", the classic rule and the default, which is off until it has a `multiplier`; or "robust", the one
            to recommend: no multiplier transfers between runs (x2 fires on 125 of 24,000 micro-batches of a healthy
            fine-tune and on none of the real spikes of a 1.5B pretraining run), while `robust` at its defaults gives 3
            flags on the one, 24 on the other, and none on five healthy runs.
        multiplier: Under "mean", how many means of the window are still normal; None: the guard is off. 2.0 catches
            gross faults only (see `rule`). Refused under "robust".
        k: Under "robust", how many scales above the median are still normal. 10.0 is what the flags above were counted
            with.
        window_size: Kept losses looked back at. None: 8 under "mean", the field's habit; 100 under "robust", as
            counted above.
        min_history: Kept losses needed before anything is compared; earlier ones are kept unless they are not finite.
            None: 3 under "mean", so that 10.8, 7.5, 6.3, 30.0 is caught; 20 under "robust", below which a median
            absolute deviation means little.
        max_consecutive_skips: Finite losses skipped in a row before `on_lockup` applies: without it, a level shift from
            1 to 4 at x3 skips 1,000 of 1,000 micro-batches. None: 8 under "mean", 20 under "robust"; "never": skip for
            ever, as the classic rule did.
        on_lockup: "rebaseline" takes the skipped losses as the new history and keeps the micro-batch; "raise" raises
            `GuardLockupError`.
        skipped_tokens: "counted" leaves the tokens of a skipped micro-batch in the divisor of a token-normalised
            window, so that the others keep their size; "removed" takes them out (of 10 + 10 + 80 tokens with the 80
            skipped, the update is 0.2x under the one and 1.0x under the other). No verdict depends on it.

    Raises:
        UsageError: A setting makes no sense; says what was found and what to use.

    Warns:
        TrimtabWarning: A setting has no effect.
    """

    rule: Literal["mean", "robust"] = "mean"
    multiplier: float | None = None
    k: float = DEFAULT_K
    window_size: int | None = None
    min_history: int | None = None
    max_consecutive_skips: int | Literal["never"] | None = None
    on_lockup: Literal["rebaseline", "raise"] = "rebaseline"
    skipped_tokens: Literal["counted", "removed"] = "counted"

    def __post_init__(self) -> None:
        _check_choice("rule", self.rule, ("mean", "robust"))
        _check_choice("on_lockup", self.on_lockup, ("rebaseline", "raise"))
        _check_choice("skipped_tokens", self.skipped_tokens, ("counted", "removed"))
        for name in ("multiplier", "k", "window_size", "min_history", "max_consecutive_skips"):
            object.__setattr__(self, name, _plain_number(getattr(self, name)))
        if self.max_consecutive_skips not in (None, "never"):
            check_whole(self.max_consecutive_skips, name="max_consecutive_skips")  # type: ignore[arg-type]

        if self.rule == "robust" and self.multiplier is not None:
            raise UsageError(
                f'multiplier={spelled(self.multiplier)} belongs to rule="mean"; rule="robust" is set by k (now '
                f"{spelled(self.k)}). "
                'Leave multiplier out, or use rule="mean".'
            )
        check_k(self.k)
        self.build_rule()
        if self.rule == "mean" and self.k != DEFAULT_K:
            self._warn_without_effect(f'k={self.k!r} has no effect under rule="mean"', 'use rule="robust"')
        if self.on_lockup == "raise" and self.max_consecutive_skips == "never":
            self._warn_without_effect(
                'on_lockup="raise" has no effect with max_consecutive_skips="never"', "give a number of skips"
            )

    @property
    def enabled(self) -> bool:
        """Whether a guard with these settings ever skips anything."""
        return self.rule == "robust" or self.multiplier is not None

    @classmethod
    def from_optim(cls, optim: object) -> Self:
        """Reads the three `loss_spike_skip_*` keys of a trainer's `optim` configuration.

        Args:
            optim: A mapping, or an object with attributes. Keys that are missing or None take their defaults (without
                a multiplier the guard is off); other keys are not looked at.

        Returns:
            Settings of the rule "mean".

        Raises:
            UsageError: A setting makes no sense.

        Example:
            >>> GuardConfig.from_optim({"lr": 1e-4, "loss_spike_skip_multiplier": 2.5}).enabled
            True
        """
        read = optim.get if isinstance(optim, Mapping) else partial(getattr, optim)
        return cls(
            multiplier=read("loss_spike_skip_multiplier", None),
            window_size=read("loss_spike_skip_window_size", None),
            min_history=read("loss_spike_skip_min_history", None),
        )

    def build_rule(self) -> MeanRule | RobustRule | None:
        """A fresh rule with these settings; None where the guard is off."""
        given = {"window_size": self.window_size, "min_history": self.min_history}
        history = {name: value for name, value in given.items() if value is not None}
        if self.rule == "robust":
            return RobustRule(self.k, **history)
        if self.multiplier is not None:
            return MeanRule(self.multiplier, **history)
        # Off, yet what was given must make sense for the day it is switched on.
        MeanRule(2.0, **history)
        return None

    def _warn_without_effect(self, what: str, remedy: str) -> None:
        # Past this method, __post_init__ and the generated __init__: to the line that gave the setting.
        warnings.warn(f"{what}; leave it out, or {remedy}.", TrimtabWarning, stacklevel=4)


def _plain_number(value: Any) -> Any:
    """A setting that came as a numpy number, as a plain one; anything else as it is, for the checks to judge."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:  # a fraction beyond every float
        return value


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{name}={spelled(value)} is none of the choices: use {' or '.join(map(repr, choices))}.")
