"""The settings of a guard, argued and checked: settings come in, a rule that makes sense goes out.

Invariant: a `GuardConfig` that exists can be built. What makes no sense is refused when it is made, what has no effect
is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from numbers import Integral, Real
from typing import Any, Final, Literal, Self

from trimtab.errors import UsageError
from trimtab.notices import warn_setting
from trimtab.rules.live import LIVE_RULES, LiveRule, LiveRuleName
from trimtab.rules.robust import DEFAULT_K
from trimtab.rules.scalar import spelled, whole_number
from trimtab.rules.windowed import MAX_SIZE, read_history

_OPTIM_KEYS: Final = {
    "multiplier": "loss_spike_skip_multiplier",
    "window_size": "loss_spike_skip_window_size",
    "min_history": "loss_spike_skip_min_history",
}
"""The keys of a trainer's `optim` configuration, by the setting that they are."""


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
            skipped, the update is 0.2x under the one and 1.0x under the other). No verdict depends on it, nor
            does `guard(loss)`, which scales no gradient.
        decide: Where a verdict is made; it is the same one either way. "device": on the accelerator, so that no
            micro-batch waits for it. The host hears of a skip some micro-batches later, and raises then under
            `on_lockup="raise"`: several ranks may do so in different calls. "host": the host reads every loss, and
            knows and raises at once. "auto": the device for losses on CUDA, whose figures reach the host by a stream of
            their own; elsewhere the host, which would wait for a copy all the same (on the CPU reading waits for
            nothing), and under `on_lockup="raise"`, so that every rank raises in the same call. `guard(loss)` does as
            under "device", whatever stands here. What speaks for the device was measured on a prototype, on one H200
            (163 M parameters, batch 16 x 1024, bf16): 0.0 % of a training step, where a host that reads every loss cost
            2.2 %. This code was not measured on a GPU yet; `benchmarks/gpu.py` does it.

    Raises:
        UsageError: A setting makes no sense; says what was found and what to use.

    Warns:
        TrimtabWarning: A setting has no effect.
    """

    rule: LiveRuleName = "mean"
    multiplier: float | None = None
    k: float = DEFAULT_K
    window_size: int | None = None
    min_history: int | None = None
    max_consecutive_skips: int | Literal["never"] | None = None
    on_lockup: Literal["rebaseline", "raise"] = "rebaseline"
    skipped_tokens: Literal["counted", "removed"] = "counted"
    decide: Literal["auto", "host", "device"] = "auto"

    def __post_init__(self) -> None:
        _check_choice("rule", self.rule, tuple(LIVE_RULES))
        _check_choice("on_lockup", self.on_lockup, ("rebaseline", "raise"))
        _check_choice("skipped_tokens", self.skipped_tokens, ("counted", "removed"))
        _check_choice("decide", self.decide, ("auto", "host", "device"))
        own = LIVE_RULES[self.rule].sensitivity
        others = [rule for rule in LIVE_RULES.values() if rule.sensitivity != own]
        numbers = (own, *(rule.sensitivity for rule in others), "window_size", "min_history", "max_consecutive_skips")
        for name in numbers:
            object.__setattr__(self, name, _plain_number(getattr(self, name)))
        if self.max_consecutive_skips is not None and self.max_consecutive_skips != "never":
            expected = f'a whole number from 1 to {MAX_SIZE}, "never", or None.'
            whole_number(
                self.max_consecutive_skips, name="max_consecutive_skips", least=1, most=MAX_SIZE, expected=expected
            )

        self.build_rule()
        for rule in others:
            self._check_setting_of(rule)
        if self.on_lockup == "raise" and self.max_consecutive_skips == "never":
            warn_setting(
                'on_lockup="raise" has no effect with max_consecutive_skips="never"; leave it out, or give a number of '
                "skips."
            )

    @property
    def enabled(self) -> bool:
        """Whether a guard with these settings ever skips anything."""
        setting = LIVE_RULES[self.rule].sensitivity
        return getattr(self, setting) is not None or _default_of(setting) is not None

    @property
    def removes(self) -> bool:
        """Whether the tokens of a skipped micro-batch leave the divisor."""
        return self.skipped_tokens == "removed"

    @property
    def num_skips_allowed(self) -> int | None:
        """Finite losses skipped in a row before `on_lockup` applies, the default filled in; None: it never does."""
        if self.max_consecutive_skips == "never":
            return None
        return self.max_consecutive_skips or LIVE_RULES[self.rule].default_max_skips

    @property
    def saved(self) -> dict[str, Any]:
        """The settings that a guard's state must agree with: all but `decide`, for a state moves between machines."""
        settings = asdict(self)
        del settings["decide"]
        return settings

    @classmethod
    def from_optim(cls, optim: object) -> Self:
        """Reads the three `loss_spike_skip_*` keys of a trainer's `optim` configuration.

        Args:
            optim: A mapping, or an object with attributes. Keys that are missing or None take their defaults (without
                a multiplier the guard is off); other keys are not looked at, but where they begin with "loss_spike".

        Returns:
            Settings of the rule "mean".

        Raises:
            UsageError: A setting makes no sense; or `optim` is neither a mapping nor such an object, holds the keys
                under a key "optim", or a key that begins like them and is none of the three.

        Example:
            >>> GuardConfig.from_optim({"lr": 1e-4, "loss_spike_skip_multiplier": 2.5}).enabled
            True
        """
        _check_optim(optim)
        return cls(**{setting: _entry(optim, key) for setting, key in _OPTIM_KEYS.items()})

    def build_rule(self) -> LiveRule | None:
        """A fresh rule with these settings; None where the guard is off."""
        rule = LIVE_RULES[self.rule]
        window_size = rule.default_window_size if self.window_size is None else self.window_size
        min_history = rule.default_min_history if self.min_history is None else self.min_history
        if not self.enabled:
            # Off, yet what was given must make sense for the day it is switched on.
            read_history(window_size, min_history=min_history)
            return None
        return rule(getattr(self, rule.sensitivity), window_size=window_size, min_history=min_history)

    def _check_setting_of(self, rule: type[LiveRule]) -> None:
        """What was given for another rule is refused where it would have switched that one on, else said."""
        setting = rule.sensitivity
        value, default = getattr(self, setting), _default_of(setting)
        if default is None:
            if value is None:
                return
            own = LIVE_RULES[self.rule].sensitivity
            raise UsageError(
                f'{setting}={spelled(value)} belongs to rule="{rule.name}"; rule="{self.rule}" is set by {own} (now '
                f'{spelled(getattr(self, own))}). Leave {setting} out, or use rule="{rule.name}".'
            )
        rule(value)  # refuses what would make no sense there either
        if value != default:
            warn_setting(
                f'{setting}={value!r} has no effect under rule="{self.rule}"; leave it out, or use rule="{rule.name}".'
            )


def config_alone(config: object, *, beside: Mapping[str, object], where: str) -> GuardConfig:
    """The configuration that was given in place of settings by name.

    Args:
        config: What was given.
        beside: The settings by name, those that were not given at their defaults.
        where: Who was given them.

    Raises:
        UsageError: It is no configuration, or something else is set beside it.
    """
    if not isinstance(config, GuardConfig):
        raise UsageError(
            f"{where} was given {spelled(config)} without a name: expected settings by name, as in "
            f'{where}(rule="robust", model=model), or one GuardConfig.'
        )
    named = [f"{name}={spelled(value)}" for name, value in beside.items() if value != _default_of(name)]
    if named:
        raise UsageError(
            f"{where} was given a GuardConfig and {', '.join(named)} beside it: write all settings into the "
            "GuardConfig; only model= and process_group= may stand beside it."
        )
    return config


def _default_of(setting: str) -> object:
    """What a setting is where nobody gave it; a rule whose sensitivity is then None is off."""
    return GuardConfig.__dataclass_fields__[setting].default


def _plain_number(value: Any) -> Any:
    """A setting that came as a numpy number, as a plain one; anything else as it is, for the checks to judge."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    try:
        return int(value) if isinstance(value, Integral) else float(value)
    except OverflowError:  # a fraction beyond every float
        return value


def _entry(section: object, key: str) -> Any:
    """An entry of a mapping, or an attribute of an object; None where there is none."""
    return section.get(key) if isinstance(section, Mapping) else getattr(section, key, None)


def _guard_keys(section: object) -> list[str]:
    """The keys of a mapping, or attributes of an object, that look as if they were meant for a guard."""
    names = section if isinstance(section, Mapping) else dir(section)
    return sorted(name for name in names if isinstance(name, str) and name.startswith("loss_spike"))


def _check_optim(optim: object) -> None:
    """Refuses what would leave a guard off that somebody has written settings for, or hold none by its kind."""
    expected = f"expected a mapping or an object with {', '.join(_OPTIM_KEYS.values())}, in full or in part"
    if optim is None or isinstance(optim, (str, bytes, Real, complex, Set, Sequence)):
        raise UsageError(f"The optim configuration is {spelled(optim)} of type {type(optim).__name__}: {expected}.")
    keys = _guard_keys(optim)
    unknown = [key for key in keys if key not in _OPTIM_KEYS.values()]
    if unknown:
        raise UsageError(f"The optim configuration has the unknown key {', '.join(unknown)}: {expected}.")
    nested = [] if keys else _guard_keys(_entry(optim, "optim"))
    if nested:
        raise UsageError(
            f'The optim configuration holds {", ".join(nested)} under "optim": {expected}. Pass that section itself.'
        )


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise UsageError(f"{name}={spelled(value)} is none of the choices: use {' or '.join(map(repr, choices))}.")
