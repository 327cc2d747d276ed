"""What a calibration finds: plain values, drawn by a report.

Enters: nothing. Leaves: `Calibration`, made of one `Outcome` a setting. Standard library only, so that a report knows
these values without the live half. Invariant: `Outcome.settings` are the arguments of `trimtab.GuardConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Unit = Literal["micro", "step"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a guard with one setting would have done on a log.

    Attributes:
        settings: Arguments of `trimtab.GuardConfig`: `rule`, its sensitivity ("multiplier" or "k"), `window_size`.
        is_default: Whether these are a rule's own defaults ("robust"), or the classic ones ("mean" with x2).
        num_judged: Losses judged; fewer than the log holds where the setting was given up.
        num_spikes: How many of them would have been skipped as spikes.
        num_nonfinite: How many because they are not finite: every setting skips those.
        num_rebaselined: How often it would have locked up: so many skips in a row that it took the skipped losses for
            the new level.
        longest_run: Most spikes in a row, losses that are not finite left aside.
        num_caught: Findings of the loss in which it would have skipped something.
        num_others: Spikes outside of every finding: of what `rewind` calls normal.
        num_steps: Steps in which it would have skipped a spike.
        first_steps: The first of them, ascending.
        gave_up: Whether it was not replayed to the end, because it skipped too much.
    """

    settings: dict[str, Any]
    is_default: bool
    num_judged: int
    num_spikes: int
    num_nonfinite: int
    num_rebaselined: int
    longest_run: int
    num_caught: int
    num_others: int
    num_steps: int
    first_steps: tuple[int, ...]
    gave_up: bool = False

    @property
    def share(self) -> float:
        """Part of the judged losses that would have been skipped as spikes, 0..1."""
        return self.num_spikes / self.num_judged

    @property
    def code(self) -> str:
        """The setting as Python, to be handed to `attach` or `Run` as `guard`."""
        arguments = ", ".join(f'{name}="{value}"' if isinstance(value, str) else f"{name}={value!r}"
                              for name, value in self.settings.items())  # fmt: skip
        return f"trimtab.GuardConfig({arguments})"

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of `calibrate --json`."""
        return {
            "settings": self.settings,
            "code": self.code,
            "is_default": self.is_default,
            "num_judged": self.num_judged,
            "num_spikes": self.num_spikes,
            "share": self.share,
            "num_nonfinite": self.num_nonfinite,
            "num_rebaselined": self.num_rebaselined,
            "longest_run": self.longest_run,
            "num_caught": self.num_caught,
            "num_others": self.num_others,
            "num_steps": self.num_steps,
            "first_steps": list(self.first_steps),
            "gave_up": self.gave_up,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What each setting of the guard would have skipped on a log, and the one to choose.

    Attributes:
        run_id: The run's id; None for a foreign log without one.
        source: Path that was read.
        unit: What was judged: "micro" (micro-batches, as a guard does) or "step" (all that the log holds).
        num_losses: How many of them have a loss.
        num_findings: Findings of the loss that `rewind` makes on the log.
        outcomes: One a setting, rule by rule, strict settings first.
        recommended: The setting to choose; None where none of them is fit.
        reason: Why that one, or none, in words.
        notices: What a reader should know: where the evidence is thin, what was left out.
    """

    run_id: str | None
    source: str
    unit: Unit
    num_losses: int
    num_findings: int
    outcomes: tuple[Outcome, ...]
    recommended: Outcome | None
    reason: str
    notices: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The JSON document of `calibrate --json`; strict JSON."""
        recommended = self.recommended
        return {
            "version": 1,
            "run_id": self.run_id,
            "source": self.source,
            "unit": self.unit,
            "num_losses": self.num_losses,
            "num_findings": self.num_findings,
            "outcomes": [outcome.to_dict() for outcome in self.outcomes],
            "recommended": None if recommended is None else recommended.settings,
            "code": None if recommended is None else recommended.code,
            "reason": self.reason,
            "notices": list(self.notices),
        }
