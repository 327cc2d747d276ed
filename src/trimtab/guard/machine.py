"""The decision machine: a loss comes in, a rule judges it, a `Verdict` goes out and the history moves on.

The guard owns what a rule can not know: which values enter the history, what happens when it skips for ever, what the
user is told, and the state of all that. Invariants: a skipped loss never enters the history; everything that decides
is in `state_dict()`, so that a resumed run decides as the uninterrupted one.

This is the host guard: it sees the figures it is given, waits for no device and calls no collective. One that was given
a model also acts, on tensors and without a wait (`trimtab.torch.tensor_guard`); it then hears late of what was decided,
decides it once more, alike, and has the words, the counts and the state.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any, Final, Literal, Self

from trimtab.errors import GuardLockupError, UsageError
from trimtab.guard.acting import Acting, acting_on
from trimtab.guard.config import GuardConfig, config_alone
from trimtab.guard.history import History
from trimtab.notices import say, warn, warn_setting
from trimtab.rules.live import LIVE_RULES, LiveRule, LiveRuleName
from trimtab.rules.robust import DEFAULT_K
from trimtab.rules.scalar import MAX_WHOLE, spelled
from trimtab.rules.state import check_state, damaged, read_count, read_entries
from trimtab.rules.streak import RATE_WINDOW, SkipRate, SkipStreak, round_up
from trimtab.rules.window import float32
from trimtab.values import Verdict

STATE_VERSION: Final = 1


class Guard:
    """The decision machine behind both guards; see `LossGuard` for what the settings mean.

    Of a guard that acts, `reset`, `remember_kept`, `state_dict`, `load_state_dict` and `check` first catch up with the
    device, once, and tell it what they changed. `hear`, `history` and `take_over` are for what acts, and do neither.

    Attributes:
        quiet: Whether it decides without a word.
    """

    def __init__(
        self,
        config: GuardConfig | None = None,
        /,
        *,
        rule: LiveRuleName = "mean",
        multiplier: float | None = None,
        k: float = DEFAULT_K,
        window_size: int | None = None,
        min_history: int | None = None,
        max_consecutive_skips: int | Literal["never"] | None = None,
        on_lockup: Literal["rebaseline", "raise"] = "rebaseline",
        skipped_tokens: Literal["counted", "removed"] = "counted",
        model: Any = None,
        process_group: Any = None,
    ) -> None:
        settings: dict[str, Any] = {
            "rule": rule,
            "multiplier": multiplier,
            "k": k,
            "window_size": window_size,
            "min_history": min_history,
            "max_consecutive_skips": max_consecutive_skips,
            "on_lockup": on_lockup,
            "skipped_tokens": skipped_tokens,
        }
        if config is None:
            config = GuardConfig(**settings)
        else:
            config = config_alone(config, beside=settings, where=type(self).__name__)
        self._set_up(config, model=model, process_group=process_group)

    @classmethod
    def from_config(cls, config: GuardConfig, *, quiet: bool = False) -> Self:
        """A guard with the settings of `config`; one that is off keeps everything.

        Args:
            config: The settings.
            quiet: Whether it decides without a word: for a replay, whose report says what the warnings would, and where
                another rank tells what all of them decided.
        """
        guard = cls.__new__(cls)
        guard._set_up(config, quiet=quiet)
        return guard

    def _set_up(
        self, config: GuardConfig, *, model: Any = None, process_group: Any = None, quiet: bool = False
    ) -> None:
        self._config = config
        self._rule = config.build_rule()
        allowed = config.num_skips_allowed
        self._max_finite: float = math.inf if allowed is None else allowed
        # "never" switches the policy off, not the warning: that one decides nothing.
        self._max_nonfinite = allowed or LIVE_RULES[config.rule].default_max_skips
        self._streak = self._new_streak()
        self._rate = SkipRate()
        self._last_step: int | None = None
        self._said: set[str] = set()
        self.quiet = quiet
        self.num_judged = 0
        self.num_skipped = 0
        self.nonfinite_hint: str | None = None
        self._acting: Acting | None = None
        if model is not None and self.enabled:
            self._acting = acting_on(model, guard=self, process_group=process_group)
        elif process_group is not None and model is None:
            warn_setting("process_group has no effect on a guard without a model: `check` judges what it is given.")

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

    @property
    def history(self) -> History:
        """What it compares the next loss with, as far as it has heard; only of a guard that is on."""
        assert self._rule is not None, "a guard that is off remembers nothing"
        return History(self._rule.values, list(self._streak.losses), self._streak.num_finite, self._last_step)

    def take_over(self, history: History, *, num_judged: int, num_skipped: int) -> None:
        """Goes on from what a device remembers of micro-batches that the host can not hear of any more.

        Args:
            history: What the device compares the next loss with. A step it knows nothing of, and that stays.
            num_judged: Micro-batches that it has judged and this guard has not heard of.
            num_skipped: How many of them it skipped.
        """
        assert self._rule is not None, "nothing acts for a guard that is off"
        self._rule.replace(history.window)
        self._streak.replace(history.streak, num_finite=history.num_finite)
        self.nonfinite_hint = None
        self.num_judged += num_judged
        self.num_skipped += num_skipped

    def reset(self, reason: str) -> None:
        """Clears the history: the next micro-batches are warm-up again. Counters go on.

        Args:
            reason: Why, in words; logged.
        """
        with contextlib.suppress(GuardLockupError):  # what it complains of is over now
            self._settle()
        self._forget()
        self._load_acting()
        say("guard", f"Guard: history cleared: {reason}.")

    def remember_kept(self, losses: Sequence[float]) -> None:
        """Remembers losses that the caller knows to be kept, as `check` on each would, without judging them.

        Args:
            losses: Finite mean losses, oldest first.
        """
        if self._rule is None or not losses:
            return
        self._settle()
        if len(losses) >= self._rule.window_size:
            self._rule.replace(losses[-self._rule.window_size :])
        else:
            for loss in losses:
                self._rule.absorb(loss)
        self._streak.end()
        self.nonfinite_hint = None
        self.num_judged += len(losses)
        self._load_acting()

    def state_dict(self) -> dict[str, Any]:
        """All that decides, and what was already said; plain types, JSON-ready, never a number that is not finite.

        Of a guard that acts on a model it waits for the device.
        """
        self._settle()
        return {
            "version": STATE_VERSION,
            "settings": self._config.saved,
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
        check_state(settings, expected=self._config.saved)
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

        with contextlib.suppress(GuardLockupError):  # of a history that is given up here
            self._settle()
        self._rule, self._streak, self._rate, self._last_step = rule, streak, rate, last_step
        self.num_judged, self.num_skipped = num_judged, num_skipped
        self.nonfinite_hint, self._said = hint, set(said)
        self._load_acting()

    def __getstate__(self) -> dict[str, Any]:
        """For `copy` and `pickle`, which are refused where a model is acted on: a copy would act on the same one."""
        if self._acting is not None:
            raise UsageError(
                f"A {type(self).__name__} that acts on a model can be neither copied nor pickled: make another one for "
                "the other model, and give it this one's state_dict()."
            )
        return self.__dict__

    def _settle(self) -> None:
        """Catches up with the device, if there is one to hear of; may raise `GuardLockupError` then."""
        if self._acting is not None:
            self._acting.settle()

    def _load_acting(self) -> None:
        if self._acting is not None:
            self._acting.load(self.history)

    def _act(self, loss_sum: Any, num_tokens: Any) -> Any:
        """The loss to call backward on, by the verdict on the micro-batch; the loss itself while the guard is off."""
        if self._rule is None:
            return loss_sum
        if self._acting is None:
            raise UsageError(
                f"guard(loss) acts on a model's gradients and was given no model: write {type(self).__name__}(..., "
                "model=model), or ask guard.check(...), which needs none."
            )
        return self._acting(loss_sum, num_tokens)

    def _check(self, loss_sum: float, num_tokens: int, step: int | None) -> Verdict:
        self._settle()
        verdict = self.hear(loss_sum, num_tokens, step=step)
        self._load_acting()
        return verdict

    def hear(self, loss_sum: float, num_tokens: int, *, step: int | None = None) -> Verdict:
        """Judges plain numbers of the whole micro-batch, over all ranks; for `check`, and for what a device decided."""
        if num_tokens == 0:
            return Verdict(keep=True, reason="no_tokens" if self.enabled else "off", loss=0.0)
        return self._decide(loss_sum / num_tokens, step)

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
            if not self.quiet:
                warn("guard", message)
