"""Steps of optimizers that a user calls: which of them a guard must not let happen, decided without the host.

Enters: an optimizer that is about to step, and what was decided so far. Leaves: a step that is dropped where it must
be, and one tensor that says why, for later. An optimizer that holds none of the model's parameters is let be, and so is
a step before which nothing was judged. Each optimizer has a window of its own: what came since its own last step.

What came since includes windows that were thrown away: by the user, by a gradient scaler that did not call the step, or
before the optimizer was there. Nobody tells of that, so their kept micro-batches seem to be in this window. The
gradients tell: if something did not count and they are exactly zero, nothing of what was kept is in them.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from trimtab.guard.words import GuardWords
from trimtab.torch.gradients import GradientNorms, gradient_norms
from trimtab.torch.step_verdict import judged_window
from trimtab.torch.veto import StepVeto
from trimtab.values import STEP_CODE, STEP_REASONS

JUDGED, KEPT, SKIPPED = 0, 1, 2
"""Places in `Decided.counts`."""


class _Window:
    """What one optimizer's steps are dropped by."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, counts: torch.Tensor) -> None:
        veto = StepVeto(optimizer)
        # The optimizer's own hooks hold the veto, which holds the optimizer: held here, neither would ever go.
        self.veto = weakref.ref(veto)
        self.counts = counts
        self.num_steps = 0


class GuardedSteps:
    """The optimizers that step a model's parameters, and their windows."""

    def __init__(self, model: nn.Module, *, words: GuardWords) -> None:
        """Knows no optimizer before it steps.

        Args:
            model: Whose parameters are stepped.
            words: For what is to be said of a step that did not happen.
        """
        self._model = model
        self._windows: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Window] = weakref.WeakKeyDictionary()
        self._words = words

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it steps one of the model's parameters."""
        if self.knows(optimizer):
            return True
        known = set(map(id, self._model.parameters()))
        return any(id(parameter) in known for parameter in parameters_of(optimizer))

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it has stepped before."""
        return optimizer in self._windows

    def parameters(self) -> list[nn.Parameter]:
        """All parameters of the optimizers that have stepped and are still there, the model's and others'."""
        return [parameter for optimizer in list(self._windows) for parameter in parameters_of(optimizer)]

    def before_step(
        self, optimizer: torch.optim.Optimizer, *, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[list[float]], None]]:
        """Drops the step that comes if nothing was kept for it, or if their norm is not finite; does not wait.

        Under a gradient scaler the gradients of a fused optimizer are measured as they are, scaled.

        Args:
            optimizer: One that holds parameters of the model.
            counts: (3,) int64, `Decided.counts`.

        Returns:
            What became of the step, (3,) float64, and what is to be said of it when the host has it.
        """
        window = self._windows.get(optimizer)
        if window is None:
            window = self._windows[optimizer] = _Window(optimizer, counts=torch.zeros_like(counts))
        since = counts - window.counts.to(counts.device)
        window.counts = counts.clone()
        window.num_steps += 1
        is_judged = since[JUDGED] > 0
        parameters = parameters_of(optimizer)
        norms = gradient_norms(parameters)
        is_empty = _is_zero(norms, device=counts.device) & (since[JUDGED] > since[KEPT])
        may_step = (since[KEPT] > 0) & ~is_empty
        verdict = judged_window(may_step=may_step, has_skips=since[SKIPPED] > 0, norms=norms)
        found_inf = getattr(optimizer, "found_inf", None)
        if isinstance(found_inf, torch.Tensor):  # a gradient scaler has looked for itself, and lowers its scale by it
            verdict = verdict.after_scaler(overflowed=found_inf != 0)
        veto = window.veto()
        assert veto is not None, "its optimizer is alive"
        veto.drop_next(is_judged & verdict.dropped)
        code = torch.where(is_judged, verdict.code, STEP_CODE["stepped"])
        facts = [code, norms.first_nonfinite, norms.total.detach()]
        together = torch.stack([fact.to(counts.device, torch.float64) for fact in facts])
        return together, partial(self._tell, parameters, window.num_steps)

    def _tell(self, parameters: list[nn.Parameter], step: int, facts: list[float]) -> None:
        """Says why a step did not happen, where that is news.

        Args:
            parameters: Those that the optimizer stepped.
            step: Which of the optimizer's steps it was, counted from the guard's first.
            facts: What `before_step` gave.
        """
        reason = STEP_REASONS[int(facts[0])]
        if reason == "no_tokens":
            self._words.no_tokens(step)
        elif reason == "nonfinite_norm":
            _, first, norm = facts
            culprit = parameters[int(first)] if first >= 0 else None
            names = (name for name, parameter in self._model.named_parameters() if parameter is culprit)
            other = None if culprit is None else f"one of shape {tuple(culprit.shape)} that only the optimizer holds"
            self._words.nonfinite_norm(step, norm=norm, parameter=next(names, other))


def parameters_of(optimizer: torch.optim.Optimizer) -> list[nn.Parameter]:
    """What an optimizer steps, in the order of its groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _is_zero(norms: GradientNorms, *, device: torch.device) -> torch.Tensor:
    """0-d bool; in float32 also where every gradient is below 1e-23, whose square is none any more."""
    return (norms.total == 0).to(device)
