"""`HealthRules`: every judgement of a watch on a run, its routers included, behind one door.

Enters: steps, evaluations, router reports and vitals, in the order in which they took place. Leaves: findings, each
said once. Invariant: the same numbers in the same order give the same findings, live and from a log, in one go or
across a state that was saved and loaded.
"""

from __future__ import annotations

import math
from typing import Any, Final, Protocol

from trimtab.rules.health.attention_logit import AttentionLogit
from trimtab.rules.health.clip_fraction import ClipFraction
from trimtab.rules.health.evaluations_by_name import EvaluationsByName
from trimtab.rules.health.grad_norm import GradNorms
from trimtab.rules.health.loss_scale import LossScale
from trimtab.rules.health.memory import Memory
from trimtab.rules.health.observed import ObservedStep
from trimtab.rules.health.throughput import Throughput
from trimtab.rules.health.train_loss import TrainLoss
from trimtab.rules.health.update_ratio import UpdateRatios
from trimtab.rules.health.zero_loss import ZeroLoss
from trimtab.rules.router import RouterRules
from trimtab.rules.state import STATE_VERSION, check_state, damaged, is_finite, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.watched import RouterReport, Vitals, WatchFinding

_PARTS: Final = (
    "grad_norm",
    "clip_fraction",
    "loss_scale",
    "zero_loss",
    "throughput",
    "train_loss",
    "evaluations",
    "memory",
    "update_ratio",
    "attention_logit",
    "router",
)
"""Entries of a state beside its version, the rate and whether routers are watched; attributes of the same name."""


class _Signal(Protocol):
    def standing(self) -> tuple[WatchFinding, ...]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Any) -> None: ...


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
        self._lr: float | None = None
        self._begin()

    def step(self, item: ObservedStep) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one optimizer step; raises nothing, whatever its numbers are."""
        if item.lr is not None and math.isfinite(item.lr):
            self._lr = item.lr
        self._train_loss.absorb(item)
        return (
            *self._zero_loss.judge(item),
            *self._grad_norm.judge(item),
            *self._clip_fraction.judge(item),
            *self._loss_scale.judge(item),
            *self._throughput.judge(item),
        )

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
        own = self._train_loss.at_evaluation(step)
        return self._evaluations.of(name).judge(
            step,
            loss,
            own if train_loss is None else train_loss,
            weights_finite=weights_finite,
            # Of weights that a broken step may have spoilt nothing is a best one.
            may_be_best=not self._zero_loss.stands,
            has_router=self._has_router,
        )

    def router(self, report: RouterReport) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one report of the routers."""
        self._has_router = True
        return self._router.judge(report)

    def vitals(self, vitals: Vitals) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one look at the machine and the model."""
        return (
            *self._memory.judge(vitals),
            *self._update_ratio.judge(vitals, lr=self._lr),
            *self._attention_logit.judge(vitals),
        )

    def standing(self) -> tuple[WatchFinding, ...]:
        """What was said and is not over."""
        signals = (getattr(self, f"_{part}") for part in _PARTS if part != "train_loss")
        return tuple(finding for signal in signals for finding in signal.standing())

    def unhealthy_because(self) -> tuple[str, ...]:
        """Why a checkpoint that is saved now is not one to go on from; empty where nothing speaks against it."""
        return tuple(finding.text for finding in self.standing() if finding.marks_unhealthy)

    def figures(self) -> dict[str, Any]:
        """What a report tells beside the findings; JSON-ready, None where nothing is known."""
        return {
            "clip_fraction": self._clip_fraction.fraction,
            "recent_clip_fraction": self._clip_fraction.recent_fraction,
            "num_nonfinite_norms": self._grad_norm.num_nonfinite,
            "num_stale_norms": self._grad_norm.num_stale,
            "tokens_per_s": self._throughput.usual,
            "evaluations": self._evaluations.figures(),
        }

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides, as plain JSON-ready types; settings are not in it."""
        parts = {part: getattr(self, f"_{part}").state_dict() for part in _PARTS}
        return {"version": STATE_VERSION, "lr": self._lr, "has_router": self._has_router, **parts}

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`, whatever the settings were.

        Raises:
            UsageError: It is of another version, or damaged; nothing has changed then.
        """
        check_state(state, expected={"version": STATE_VERSION})
        lr, has_router, *parts = read_entries(state, ("lr", "has_router", *_PARTS), where="the watch's state")
        if (lr is not None and not is_finite(lr)) or not isinstance(has_router, bool):
            raise damaged(f"the watch's rate is {lr!r}, and has_router {has_router!r}")
        loaded = HealthRules(self._config)
        for part, entry in zip(_PARTS, parts, strict=True):
            signal: _Signal = getattr(loaded, f"_{part}")
            signal.load_state_dict(entry)
        loaded._lr, loaded._has_router = lr, has_router
        self.__dict__.update(loaded.__dict__)

    def _begin(self) -> None:
        config = self._config
        self._has_router = False
        self._grad_norm = GradNorms(config)
        self._clip_fraction = ClipFraction(config)
        self._loss_scale = LossScale(config)
        self._zero_loss = ZeroLoss(config)
        self._throughput = Throughput(config)
        self._train_loss = TrainLoss()
        self._evaluations = EvaluationsByName(config)
        self._memory = Memory(config)
        self._update_ratio = UpdateRatios(config)
        self._attention_logit = AttentionLogit(config)
        self._router = RouterRules(config)
