"""`HealthRules`: every judgement of a watch on a run, its routers included, behind one door.

Enters: steps, evaluations, router reports and vitals, in the order in which they took place. Leaves: findings, each
said once. Invariant: the same numbers in the same order give the same findings, live and from a log, in one go or
across a state that was saved and loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from trimtab.rules.health.attention_logit import AttentionLogit
from trimtab.rules.health.clip_fraction import ClipFraction
from trimtab.rules.health.evaluations_by_name import EvaluationsByName
from trimtab.rules.health.grad_norm import GradNorms
from trimtab.rules.health.loss_scale import LossScale
from trimtab.rules.health.memory import Memory
from trimtab.rules.health.nonfinite import Nonfinite
from trimtab.rules.health.observed import ObservedEvaluation, ObservedStep, ObservedVitals
from trimtab.rules.health.so_far import SoFar
from trimtab.rules.health.throughput import Throughput
from trimtab.rules.health.update_ratio import UpdateRatios
from trimtab.rules.health.zero_loss import ZeroLoss
from trimtab.rules.router import RouterRules
from trimtab.rules.said import Standing
from trimtab.rules.signal import Part, Signal, load_states, states_of
from trimtab.rules.state import check_state, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import RouterReport, Vitals, WatchFinding

STATE_VERSION: Final = 1
"""Version of how a state is put together; what each part holds is the part's own."""


class HealthRules:
    """Judges what a run shows of itself.

    Args:
        config: Settings; None: the defaults.

    Example:
        >>> rules = HealthRules()
        >>> for step, loss in ((3250, 7.6066), (3500, 7.6406), (3750, 8.2422), (4000, 8.2717)):
        ...     found = rules.evaluation(step, loss)
        >>> [(finding.kind, finding.step) for finding in found]
        [('eval_regression', 4000)]
    """

    def __init__(self, config: WatchConfig | None = None) -> None:
        self._config = config if config is not None else WatchConfig()
        self._parts = _Parts(self._config)

    def step(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one optimizer step; raises nothing, whatever its numbers are."""
        self._parts.so_far.absorb(item)
        return tuple(finding for signal in self._parts.of_steps for finding in signal.judge(item))

    def evaluation(
        self,
        step: int,
        loss: float,
        train_loss: float | None = None,
        *,
        name: str = "",
        weights_finite: bool | None = None,
    ) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one evaluation.

        Args:
            step: Optimizer step (1-based) after which it took place.
            loss: Its loss.
            train_loss: Mean train loss over the steps since the evaluation before; None: of the steps seen here.
            name: Which dataset, where there are several: each is judged by itself.
            weights_finite: Whether the weights were finite; None where nobody looked.
        """
        own = self._parts.so_far.train_loss_at(step)
        evaluation = ObservedEvaluation(
            step,
            loss,
            own if train_loss is None else train_loss,
            name=name,
            weights_finite=weights_finite,
            # Of weights that a broken step may have spoilt nothing is a best one.
            may_be_best=not (self._parts.zero_loss.stands or self._parts.nonfinite.stands),
            has_router=self._parts.so_far.has_router,
        )
        return self._parts.evaluations.judge(evaluation)

    def router(self, report: RouterReport) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one report of the routers."""
        self._parts.so_far.has_router = True
        return self._parts.router.judge(report)

    def vitals(self, vitals: Vitals) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one look at the machine and the model."""
        seen = ObservedVitals(vitals, self._parts.so_far.lr)
        return tuple(finding for signal in self._parts.of_vitals for finding in signal.judge(seen))

    def standing(self) -> tuple[WatchFinding, ...]:
        """What was said and is not over, as it was seen last."""
        return tuple(one.finding for one in self.stands())

    def stands(self) -> tuple[Standing, ...]:
        """Likewise, each with the step at which it was said first."""
        return self._parts.standing()

    def unhealthy_because(self) -> tuple[str, ...]:
        """Why a checkpoint that is saved now is not one to go on from, and when that was seen; empty: it is."""
        return tuple(one.because for one in self._parts.standing() if one.finding.marks_unhealthy)

    def unhealthy_since(self) -> int | None:
        """The last step after which nothing of that was so, as far as is known; None where nobody knows."""
        marking = [one.finding.since_step for one in self._parts.standing() if one.finding.marks_unhealthy]
        return min((step for step in marking if step is not None), default=None)

    def figures(self) -> dict[str, Any]:
        """What is known of the run beside the findings; JSON-ready, None where nothing is.

        Returns:
            `clip_fraction` over the run and `recent_clip_fraction` over the last 200 steps; `num_nonfinite_norms` and
            `num_stale_norms`; `tokens_per_s`, the usual ones; and `evaluations`, by the dataset's name ("" where there
            is one only) `best`, `best_step` and `num_worse`, the streak of worse ones.
        """
        parts = self._parts
        return {
            "clip_fraction": parts.clip_fraction.fraction,
            "recent_clip_fraction": parts.clip_fraction.recent_fraction,
            "num_nonfinite_norms": parts.grad_norm.num_nonfinite,
            "num_stale_norms": parts.grad_norm.num_stale,
            "tokens_per_s": parts.throughput.usual,
            "evaluations": parts.evaluations.figures(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides, as plain JSON-ready types; settings are not in it."""
        return {"version": STATE_VERSION, "parts": states_of(self._parts)}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`, whatever the settings were.

        A signal that the state does not know starts without a history, and one that is not known here is passed over.

        Raises:
            UsageError: It is of another version, or damaged; nothing has changed then.
        """
        check_state(state, expected={"version": STATE_VERSION})
        (states,) = read_entries(state, ("parts",), where="the watch's state")
        loaded = _Parts(self._config)
        load_states(loaded, states)
        self._parts = loaded


class _Parts:
    """The signals of a run, by what they are shown, and what they share. A new one is its file and an entry here."""

    def __init__(self, config: WatchConfig) -> None:
        self.so_far = SoFar()
        self.zero_loss = ZeroLoss(config)
        self.nonfinite = Nonfinite(config)
        self.grad_norm = GradNorms(config)
        self.clip_fraction = ClipFraction(config)
        self.throughput = Throughput(config)
        self.evaluations = EvaluationsByName(config)
        self.router = RouterRules(config)
        self.of_steps: tuple[Signal[ObservedStep], ...] = (
            self.zero_loss,
            self.nonfinite,
            self.grad_norm,
            self.clip_fraction,
            LossScale(config),
            self.throughput,
        )
        self.of_vitals: tuple[Signal[ObservedVitals], ...] = (
            Memory(config),
            UpdateRatios(config),
            AttentionLogit(config),
        )

    def __iter__(self) -> Iterator[Part]:
        """All that has a state."""
        yield self.so_far
        yield from self.of_steps
        yield from self.of_vitals
        yield self.evaluations
        yield self.router

    def standing(self) -> tuple[Standing, ...]:
        """What stands of all signals."""
        return (
            *(one for signal in self.of_steps for one in signal.standing()),
            *(one for signal in self.of_vitals for one in signal.standing()),
            *self.evaluations.standing(),
            *self.router.standing(),
        )
