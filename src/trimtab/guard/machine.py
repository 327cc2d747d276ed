"""The decision machine: a loss comes in, a rule judges it, a `Verdict` goes out and the history moves on.

The guard owns what a rule can not know: which values enter the history, what happens when it skips for ever, what the
user is told, and the state of all that. Invariants: a skipped loss never enters the history; everything that decides
is in `state_dict()`, so that a resumed run decides as the uninterrupted one.

This is the host guard of one process: it sees the figures it is given, and calls no collective.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final, Literal, Self

from trimtab.errors import GuardLockupError
from trimtab.guard.config import GuardConfig
from trimtab.notices import say, warn
from trimtab.rules.live import LIVE_RULES, LiveRule, LiveRuleName
from trimtab.rules.robust import DEFAULT_K
from trimtab.rules.scalar import MAX_WHOLE, real_number, spelled, step_number, token_count
from trimtab.rules.state import check_state, damaged, read_count, read_entries
from trimtab.rules.streak import RATE_WINDOW, SkipRate, SkipStreak, round_up
from trimtab.rules.window import float32
from trimtab.values import Verdict

STATE_VERSION: Final = 1


class _Guard:
    """The decision machine behind both guards; see `LossGuard` for what the settings mean."""

    def __init__(
        self,
        *,
        rule: LiveRuleName = "mean",
        multiplier: float | None = None,
        k: float = DEFAULT_K,
        window_size: int | None = None,
        min_history: int | None = None,
        max_consecutive_skips: int | Literal["never"] | None = None,
        on_lockup: Literal["rebaseline", "raise"] = "rebaseline",
        skipped_tokens: Literal["counted", "removed"] = "counted",
    ) -> None:
        self._set_up(
            GuardConfig(
                rule=rule,
                multiplier=multiplier,
                k=k,
                window_size=window_size,
                min_history=min_history,
                max_consecutive_skips=max_consecutive_skips,
                on_lockup=on_lockup,
                skipped_tokens=skipped_tokens,
            )
        )

    @classmethod
    def from_config(cls, config: GuardConfig, *, quiet: bool = False) -> Self:
        """A guard with the settings of `config`; one that is off keeps everything.

        Args:
            config: The settings.
            quiet: Whether it decides without a word: for a replay, whose report says what the warnings would.
        """
        guard = cls.__new__(cls)
        guard._set_up(config)
        guard._quiet = quiet
        return guard

    def _set_up(self, config: GuardConfig) -> None:
        self._config = config
        self._rule = config.build_rule()
        default = LIVE_RULES[config.rule].default_max_skips
        limit = config.max_consecutive_skips
        self._max_finite: float = math.inf if limit == "never" else limit or default
        # "never" switches the policy off, not the warning: that one decides nothing.
        self._max_nonfinite = default if limit == "never" else limit or default
        self._streak = self._new_streak()
        self._rate = SkipRate()
        self._last_step: int | None = None
        self._said: set[str] = set()
        self._quiet = False
        self.num_judged = 0
        self.num_skipped = 0
        self.nonfinite_hint: str | None = None

    def _new_streak(self) -> SkipStreak:
        return SkipStreak(num_losses=self._rule.window_size if self._rule else 1)

    @property
    def config(self) -> GuardConfig:
        """The settings, as they were given."""
        return self._config

    @property
    def enabled(self) -> bool:
        """False for a guard that keeps everything: rule "mean" without a multiplier."""
        return self._rule is not None

    def reset(self, reason: str) -> None:
        """Clears the history: the next micro-batches are warm-up again. Counters go on.

        Args:
            reason: Why, in words; logged.
        """
        self._forget()
        say("guard", f"Guard: history cleared: {reason}.")

    def remember_kept(self, losses: Sequence[float]) -> None:
        """Remembers losses that the caller knows to be kept, as `check` on each would, without judging them.

        Args:
            losses: Finite mean losses, oldest first.
        """
        if self._rule is None or not losses:
            return
        if len(losses) >= self._rule.window_size:
            self._rule.replace(losses[-self._rule.window_size :])
        else:
            for loss in losses:
                self._rule.absorb(loss)
        self._streak.end()
        self.nonfinite_hint = None
        self.num_judged += len(losses)

    def state_dict(self) -> dict[str, Any]:
        """All that decides, and what was already said; plain types, JSON-ready, never a number that is not finite."""
        return {
            "version": STATE_VERSION,
            "settings": asdict(self._config),
            "rule": self._rule.state_dict() if self._rule else None,
            "streak": self._streak.state_dict(),
            "rate": self._rate.state_dict(),
            "last_step": self._last_step,
            "num_judged": self.num_judged,
            "num_skipped": self.num_skipped,
            "nonfinite_hint": self.nonfinite_hint,
            "said": sorted(self._said),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on where the guard that gave `state` stood.

        Args:
            state: What `state_dict()` of a guard with the same settings gave, also after a trip through JSON.

        Raises:
            UsageError: It is of another version, was saved under another rule or other settings, or is damaged;
                nothing has changed then.
        """
        check_state(state, expected={"version": STATE_VERSION})
        keys = (
            "settings",
            "rule",
            "streak",
            "rate",
            "last_step",
            "num_judged",
            "num_skipped",
            "nonfinite_hint",
            "said",
        )
        settings, rule_state, streak_state, rate_state, last_step, judged, skipped, hint, said = read_entries(
            state, keys, where="the guard"
        )
        check_state(settings, expected=asdict(self._config))
        # Into fresh objects first: what turns out to be damaged late must not leave half of it behind.
        rule, streak, rate = self._config.build_rule(), self._new_streak(), SkipRate()
        if rule is not None:
            rule.load_state_dict(rule_state)
        streak.load_state_dict(streak_state)
        rate.load_state_dict(rate_state)
        num_judged = read_count(judged, name="num_judged")
        num_skipped = read_count(skipped, name="num_skipped")
        if num_skipped > num_judged or rate.last_place > num_judged:
            raise damaged(
                f"num_skipped is {num_skipped}, the last skip was at {rate.last_place}, of {num_judged} judged"
            )
        if last_step is not None and (type(last_step) is not int or abs(last_step) > MAX_WHOLE):
            raise damaged(f"last_step is {spelled(last_step)}, not a whole number or None")
        if hint is not None and not isinstance(hint, str):
            raise damaged(f"nonfinite_hint is {spelled(hint)}, not text or None")
        if not isinstance(said, list) or not all(isinstance(cause, str) for cause in said):
            raise damaged(f"said is {spelled(said)}, not a list of texts")

        self._rule, self._streak, self._rate, self._last_step = rule, streak, rate, last_step
        self.num_judged, self.num_skipped = num_judged, num_skipped
        self.nonfinite_hint, self._said = hint, set(said)

    def _decide(self, loss: float, step: int | None) -> Verdict:
        rule = self._rule
        if rule is None:
            return Verdict(keep=True, reason="off", loss=float32(loss))
        if step is not None:
            self._follow(step)
        verdict = rule.judge(loss)
        if verdict.reason == "spike" and self._streak.num_finite >= self._max_finite:
            verdict = self._end_lockup(rule, verdict)

        self.num_judged += 1
        if verdict.keep:
            rule.absorb(verdict.loss)
            self._streak.end()
            self.nonfinite_hint = None
            if verdict.reason == "baseline_not_positive":
                self._warn_of_baseline(verdict)
            return verdict

        self.num_skipped += 1
        if verdict.reason == "nonfinite":
            self._streak.skip_nonfinite()
            if self._streak.num_nonfinite >= self._max_nonfinite:
                self._warn_of_nonfinite(verdict)
        else:
            self._streak.skip_finite(verdict.loss)
            self.nonfinite_hint = None
            if self._rate.add(rule.needed(verdict), place=self.num_judged):
                self._warn_of_rate(rule)
        return verdict

    def _follow(self, step: int) -> None:
        last_step = self._last_step
        if last_step is not None and step < last_step:
            self._forget()
            self._warn_once(
                "step_backwards",
                f"Guard: the step went back from {last_step} to {step}: history cleared, warm-up begins again.",
            )
        self._last_step = step

    def _forget(self) -> None:
        if self._rule:
            self._rule.reset()
        self._streak.end()
        self._last_step = None
        self.nonfinite_hint = None

    def _end_lockup(self, rule: LiveRule, verdict: Verdict) -> Verdict:
        """Takes the skipped losses as the new history, or raises and changes nothing."""
        found = (
            f"Guard: {self._streak.num_finite} losses in a row were skipped as spikes and the next is one too "
            f"({verdict.loss:.6g}, where more than {verdict.threshold:.6g} is a spike; baseline {verdict.baseline:.6g})"
        )
        if self._config.on_lockup == "raise":
            raise GuardLockupError(
                f'{found}. Look at what changed in the data or the learning rate; guard.reset("reason") accepts the '
                'new level, on_lockup="rebaseline" does so by itself.'
            )
        rule.replace(self._streak.losses)
        self._warn_once(
            "rebaselined",
            f"{found}: the skipped losses are the new baseline, and this micro-batch is kept. Look at what changed "
            "in the data or the learning rate.",
        )
        return Verdict(
            keep=True,
            reason="rebaselined",
            loss=verdict.loss,
            baseline=verdict.baseline,
            threshold=verdict.threshold,
            scale=verdict.scale,
        )

    def _warn_of_baseline(self, verdict: Verdict) -> None:
        self._warn_once(
            "baseline_not_positive",
            f"Guard: the {self._config.rule} of the last losses is {verdict.baseline:.6g}; a multiple of it says "
            'nothing, so everything is kept. Use rule="robust", which works for losses of any sign.',
        )

    def _warn_of_nonfinite(self, verdict: Verdict) -> None:
        hint = f"; {self.nonfinite_hint}" if self.nonfinite_hint else ""
        self._warn_once(
            "nonfinite",
            f"Guard: {self._streak.num_nonfinite} losses in a row were not finite (the last is {verdict.loss}){hint}. "
            "All were skipped; where that goes on, the weights themselves are likely not finite. Look at the first "
            "such row and parameter, the learning rate and the loss scale; go back to a healthy checkpoint.",
        )

    def _warn_of_rate(self, rule: LiveRule) -> None:
        num_verdicts = min(self.num_judged, RATE_WINDOW)
        now = rule.settings[rule.sensitivity]
        enough = round_up(self._rate.setting_within(num_verdicts), digits=3)
        self._warn_once(
            "too_tight",
            f"Guard: {self._rate.num_skips} of the last {num_verdicts} micro-batches were skipped as spikes "
            f"({self._rate.num_skips / num_verdicts:.1%}): {rule.sensitivity}={now:g} is tight for this run. "
            f"{rule.sensitivity}={enough:g} would have skipped at most 1 % of them.",
        )

    def _warn_once(self, cause: str, message: str) -> None:
        if cause not in self._said:
            self._said.add(cause)
            if not self._quiet:
                warn("guard", message)


class LossGuard(_Guard):
    """Judges the mean loss of each micro-batch against the losses kept before it.

    Settings are those of `GuardConfig`; rule "mean", the default, is off until it has a `multiplier`, and "robust" is
    the one to recommend.

    Attributes:
        num_judged: Micro-batches judged so far: all but those without tokens, and none while the guard is off.
        num_skipped: How many of them were skipped, spikes and losses that are not finite.
        nonfinite_hint: Set by whoever knows which row or parameter was the first that is not finite, in words ("first
            in row 17"), after a `nonfinite` verdict; stands in the warning about many of them in a row. A finite loss
            clears it.

    Raises:
        UsageError: A setting makes no sense.

    Example:
        >>> guard = LossGuard(multiplier=2.0)
        >>> [guard.check(loss).keep for loss in (10.8, 7.5, 6.3, 30.0)]
        [True, True, True, False]
    """

    def check(self, loss: Any, *, step: int | None = None) -> Verdict:
        """Judges one micro-batch and remembers it.

        A value on an accelerator is fetched, so that the call waits for the device.

        Args:
            loss: Mean loss of the micro-batch: a number, or anything with one element that holds one (a numpy scalar,
                a 0-d tensor).
            step: Optimizer step, a whole number; one that is smaller than the last clears the history.

        Returns:
            Whether to keep it, why, and what it was compared with.

        Raises:
            UsageError: `loss` is not one real number, or `step` no whole number.
            GuardLockupError: `max_consecutive_skips` reached under `on_lockup="raise"`; nothing is remembered of this
                micro-batch.
        """
        if step is not None:
            step = step_number(step)
        return self._decide(loss if type(loss) is float else real_number(loss, name="loss"), step)


class PerTokenLossGuard(_Guard):
    """Judges micro-batches by their loss per supervised token, from the sum of the losses and the number of tokens.

    Settings, attributes and errors are those of `LossGuard`.

    Example:
        >>> guard = PerTokenLossGuard(multiplier=2.0)
        >>> [guard.check(100.0, 100).reason for _ in range(4)]
        ['warmup', 'warmup', 'warmup', 'normal']
        >>> guard.check(500.0, 400).keep, guard.check(500.0, 100).keep, guard.check(float("nan"), 0).keep
        (True, False, True)
    """

    def check(self, loss_sum: Any, num_tokens: Any, *, step: int | None = None) -> Verdict:
        """Judges one micro-batch and remembers it.

        The judged loss is `float32(loss_sum / num_tokens)`, divided in float64. Without tokens there is no loss,
        whatever `loss_sum` says: kept, and nothing is remembered. A value on an accelerator is fetched, so that the
        call waits for the device.

        Args:
            loss_sum: Sum of the losses of the supervised tokens: a number, or anything with one element.
            num_tokens: How many there are: a whole number of 0 or more, or anything with one element that holds one.
            step: Optimizer step, a whole number; one that is smaller than the last clears the history.

        Returns:
            Whether to keep it, why, and what it was compared with.

        Raises:
            UsageError: `loss_sum` is not one real number, `num_tokens` not one whole number of 0 or more, or `step` no
                whole number.
            GuardLockupError: `max_consecutive_skips` reached under `on_lockup="raise"`; nothing is remembered of this
                micro-batch.
        """
        if step is not None:
            step = step_number(step)
        total = loss_sum if type(loss_sum) is float else real_number(loss_sum, name="loss_sum")
        is_plain = type(num_tokens) is int and 0 <= num_tokens <= MAX_WHOLE
        count = num_tokens if is_plain else token_count(num_tokens, name="num_tokens")
        if count == 0:
            return Verdict(keep=True, reason="no_tokens" if self.enabled else "off", loss=0.0)
        return self._decide(total / count, step)
