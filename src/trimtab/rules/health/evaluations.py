"""Evaluations of one dataset: a streak of worse ones, one that is no number, one that never changes, the best.

Enters: the losses of evaluations, each with the train loss over the same steps. Leaves: findings `eval_regression`,
`eval_nonfinite` and `eval_unchanged`. Invariants: what is not finite neither ends a streak nor is a best, and a best is
only what is less than the best before it.

The streak: evaluations in a row that are worse than the one before. 7.6066, 7.6406, 8.2422, 8.2717 (a run whose router
had collapsed) is one of three; 7.7371, 7.6486, 7.7053, 7.6502, 7.6116, 7.6323 has none longer than one.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Final, NamedTuple

from trimtab.rules.health.observed import ObservedEvaluation
from trimtab.rules.said import Said, Standing
from trimtab.rules.scalar import spelled
from trimtab.rules.state import damaged, is_finite, read_count, read_entries
from trimtab.rules.watch_config import WatchConfig
from trimtab.rules.window import Window, float32
from trimtab.text import listed, plain
from trimtab.values import json_number
from trimtab.watched import WatchFinding

# Three equal values: two may be the rounding of a log.
_NUM_UNCHANGED: Final = 2

# An evaluation of other rows each time moves up and down: three rises in a row by chance then come to two or three of
# its usual single ones, a regression to more. The means of 250 train losses are such evaluations: of 505 of them, from
# eleven healthy runs, none is warned of by this, and two are by `eval_rise` alone.
_NUM_RISES: Final = 20
_MIN_RISES: Final = 3
_USUAL_RISES: Final = 4.0

# How many evaluations of a long streak are told.
_MAX_TOLD: Final = 8

_REGRESSION: Final = "regression"
_NONFINITE: Final = "nonfinite"
_UNCHANGED: Final = "unchanged"


class _Evaluation(NamedTuple):
    step: int
    loss: float
    train_loss: float | None


class Evaluations:
    """Judges the evaluations of one dataset, in the order in which they took place.

    Args:
        config: Settings.
        name: What the dataset is called; empty where there is only one.
    """

    def __init__(self, config: WatchConfig, *, name: str = "") -> None:
        self._config = config
        self._name = name
        self._said = Said()
        self._streak: list[_Evaluation] = []
        """The last one that was not worse than the one before it, and the worse ones since."""
        self._rises = Window(_NUM_RISES)
        """From one evaluation to a worse one, in streaks that were not warned of."""
        self._before: float | None = None
        """The evaluation before the streak that was said."""
        self.num_worse = 0
        self._num_better = 0
        self._num_equal = 0
        self.best: float | None = None
        self.best_step: int | None = None

    def judge(self, seen: ObservedEvaluation) -> tuple[WatchFinding, ...]:
        """Judges and absorbs one evaluation."""
        step, loss = seen.step, seen.loss
        if seen.weights_finite is False or not math.isfinite(loss):
            return self._nonfinite(step, loss, weights_finite=seen.weights_finite)
        self._said.end(_NONFINITE)
        if seen.may_be_best and (self.best is None or loss < self.best):
            self.best, self.best_step = loss, step
        if self._streak and step < self._streak[-1].step:  # a resume from before it: what came after never was
            self._streak.clear()
            self._said.end(_REGRESSION)
            self._said.end(_UNCHANGED)
            self.num_worse = self._num_better = self._num_equal = 0
        evaluation = _Evaluation(step, loss, seen.train_loss)
        if not self._streak:
            self._streak = [evaluation]
            return ()
        if step == self._streak[-1].step:  # once more after the last step, of the same weights
            return ()
        before = self._streak[-1].loss
        if loss == before:
            return self._unchanged(step, loss)
        self._num_equal = 0
        self._said.end(_UNCHANGED)
        if loss > before:
            self.num_worse += 1
            self._num_better = 0
            self._streak.append(evaluation)
            del self._streak[1:-_MAX_TOLD]
            return self._regression(has_router=seen.has_router) if self.num_worse >= self._config.eval_patience else ()
        self._num_better += 1
        # Over as it began: as many better ones in a row, or one that is as good as before the streak.
        is_back = loss <= self._before_regression(else_=loss)
        self._keep_rises()  # before what was said of them is over
        if is_back or self._num_better >= self._config.eval_patience:
            self._said.end(_REGRESSION)
        self.num_worse = 0
        self._streak = [evaluation]
        return ()

    def standing(self) -> tuple[Standing, ...]:
        """What was said and is not over."""
        return self._said.now()

    def state_dict(self) -> dict[str, Any]:
        """Plain types, JSON-ready."""
        return {
            "said": self._said.state_dict(),
            "streak": [[one.step, one.loss, json_number(one.train_loss)] for one in self._streak],
            "rises": self._rises.state_dict(),
            "before": self._before,
            "num_worse": self.num_worse,
            "num_better": self._num_better,
            "num_equal": self._num_equal,
            "best": self.best,
            "best_step": self.best_step,
        }

    def load_state_dict(self, state: object) -> None:
        """Takes over a `state_dict()`; `UsageError` if it is none."""
        keys = ("said", "streak", "rises", "before", "num_worse", "num_better", "num_equal", "best", "best_step")
        said, streak, rises, before, num_worse, num_better, num_equal, best, best_step = read_entries(
            state, keys, where="an evaluation's state"
        )
        if before is not None and not is_finite(before):
            raise damaged(f"the evaluation before a streak is {spelled(before)}, not a finite number")
        if not isinstance(streak, list | tuple) or len(streak) > _MAX_TOLD + 1:
            raise damaged(f"an evaluation's streak is {spelled(streak)}, not a short list")
        if (best is None) is not (best_step is None) or (best is not None and not is_finite(best)):
            raise damaged(f"the best evaluation is {spelled(best)} at step {spelled(best_step)}")
        self._said.load_state_dict(said)
        self._rises.load_state_dict(rises)
        self._before = before
        self._streak = [_read_evaluation(entry) for entry in streak]
        self.num_worse = read_count(num_worse, name="an evaluation's num_worse")
        self._num_better = read_count(num_better, name="an evaluation's num_better")
        self._num_equal = read_count(num_equal, name="an evaluation's num_equal")
        self.best = best
        self.best_step = None if best_step is None else read_count(best_step, name="the best evaluation's step")

    @property
    def _what(self) -> str:
        return f"the loss of evaluation {plain(self._name)}" if self._name else "the evaluation loss"

    def _keep_rises(self) -> None:
        """Takes the rises of a streak that has ended as usual ones, unless it is what was warned of."""
        if self._is_marked():
            return
        for before, after in pairwise(self._streak):
            rise = float32(after.loss - before.loss)
            if math.isfinite(rise):
                self._rises.absorb(rise)

    def _is_marked(self) -> bool:
        """Whether a regression stands that marks checkpoints."""
        return any(one.finding.marks_unhealthy and one.finding.kind == "eval_regression" for one in self._said.now())

    def _before_regression(self, *, else_: float) -> float:
        """What the evaluation was before a streak that was said."""
        return self._before if self._before is not None and self._said.stands(_REGRESSION) else else_

    def _regression(self, *, has_router: bool) -> tuple[WatchFinding, ...]:
        first, *_, last = self._streak
        rise = last.loss - first.loss
        is_clear = rise >= self._config.eval_rise * abs(first.loss)
        if len(self._rises) >= _MIN_RISES:
            is_clear &= rise >= _USUAL_RISES * self._rises.median()
        is_clear |= self._is_marked()  # worse again, before it was over
        told = [f"{one.loss:.6g} at step {one.step}" for one in self._streak[-_MAX_TOLD:]]
        if self._streak[0] not in self._streak[-_MAX_TOLD:]:
            told[0] = f"{first.loss:.6g} at step {first.step}"
        finding = WatchFinding(
            kind="eval_regression",
            severity="warning" if is_clear else "notice",
            step=last.step,
            text=f"{self._what} became worse {self.num_worse} times in a row: {listed(told)}"
            f"{_beside(first, last, has_router=has_router)}",
            figures={
                **({"name": plain(self._name)} if self._name else {}),
                "num_worse": self.num_worse,
                "steps": [one.step for one in self._streak],
                "losses": [one.loss for one in self._streak],
                "train_losses": [json_number(one.train_loss) for one in self._streak],
                "best": self.best,
                "best_step": self.best_step,
            },
            marks_unhealthy=is_clear,
            since_step=first.step,
        )
        news = self._said.say(finding, cause=_REGRESSION)
        self._before = first.loss if news else self._before
        return news

    def _nonfinite(self, step: int, loss: float, *, weights_finite: bool | None) -> tuple[WatchFinding, ...]:
        broken = weights_finite is False
        spelling = json_number(loss)
        found = f"{self._what} is {spelling}"
        why = "while weights are NaN or infinite" if broken else "which is no number to compare"
        streak = ", and the streak of worse ones goes on without it" if self.num_worse else ""
        finding = WatchFinding(
            kind="eval_nonfinite",
            severity="critical" if broken else "warning",
            step=step,
            text=f"{found}, {why}: it is no best one{streak}",
            figures={
                **({"name": plain(self._name)} if self._name else {}),
                "loss": spelling,
                "weights_finite": weights_finite,
            },
            marks_unhealthy=True,
            since_step=self._streak[-1].step if self._streak else None,
        )
        return self._said.say(finding, cause=_NONFINITE)

    def _unchanged(self, step: int, loss: float) -> tuple[WatchFinding, ...]:
        self._num_equal += 1
        if self._num_equal < _NUM_UNCHANGED:
            return ()
        finding = WatchFinding(
            kind="eval_unchanged",
            severity="notice",
            step=step,
            text=f"{self._what} is exactly {loss:.6g} {self._num_equal + 1} times in a row: the weights, or what "
            "is evaluated, may not change any more",
            figures={
                **({"name": plain(self._name)} if self._name else {}),
                "loss": loss,
                "num_equal": self._num_equal + 1,
            },
            since_step=self._streak[-1].step,
        )
        return self._said.say(finding, cause=_UNCHANGED)


def _beside(first: _Evaluation, last: _Evaluation, *, has_router: bool) -> str:
    """What the train loss did over the same evaluations, and what that speaks for."""
    before, after = first.train_loss, last.train_loss
    if before is None or after is None or not (math.isfinite(before) and math.isfinite(after)):
        return ""
    if after < before:
        why = "the router, or overfitting" if has_router else "overfitting, or data unlike the training's"
        return f"; the train loss fell from {before:.4g} to {after:.4g} over the same evaluations: {why}"
    return (
        f"; the train loss went from {before:.4g} to {after:.4g} over the same evaluations: it is the training itself, "
        "not the evaluation"
    )


def _read_evaluation(entry: Any) -> _Evaluation:
    if not isinstance(entry, list | tuple) or len(entry) != 3 or not is_finite(entry[1]):
        raise damaged(f"an evaluation's streak holds {spelled(entry)}, not a step and two losses")
    train_loss = float(entry[2]) if is_finite(entry[2]) else None
    return _Evaluation(read_count(entry[0], name="an evaluation's step"), float(entry[1]), train_loss)
