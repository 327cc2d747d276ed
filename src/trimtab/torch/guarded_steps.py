"""Steps of optimizers that a user calls: which of them a guard must not let happen, decided without the host.

Enters: an optimizer that is about to step, and what was decided so far. Leaves: a step that is dropped where it must
be, and one tensor that says why, for later. An optimizer that holds none of the model's parameters is let be, and so is
a step before which nothing was judged. Each optimizer has a window of its own: what came since its own last step.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from trimtab.guard.words import GuardWords
from trimtab.torch.gradients import gradient_norms
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
        if optimizer in self._windows:
            return True
        known = set(map(id, self._model.parameters()))
        return any(id(parameter) in known for group in optimizer.param_groups for parameter in group["params"])

    def before_step(
        self, optimizer: torch.optim.Optimizer, *, counts: torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[list[float]], None]]:
        """Drops the step that comes if nothing was kept for it, or if its gradients are not finite; does not wait.

        Args:
            optimizer: One that holds parameters of the model.
            counts: (3,) int64, `Decided.counts`.

        Returns:
            What became of the step, (1,) or (3,) float64, and what is to be said of it when the host has it.
        """
        window = self._windows.get(optimizer)
        if window is None:
            window = self._windows[optimizer] = _Window(optimizer, counts=torch.zeros_like(counts))
        since = counts - window.counts.to(counts.device)
        window.counts = counts.clone()
        window.num_steps += 1
        is_judged = since[JUDGED] > 0
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        # A gradient scaler has looked for itself, and lowers its scale by what it saw.
        has_scaler = getattr(optimizer, "found_inf", None) is not None
        norms = None if has_scaler else gradient_norms(parameters)
        verdict = judged_window(may_step=since[KEPT] > 0, has_skips=since[SKIPPED] > 0, norms=norms)
        veto = window.veto()
        assert veto is not None, "its optimizer is alive"
        veto.drop_next(is_judged & verdict.dropped)
        facts = [torch.where(is_judged, verdict.code, STEP_CODE["stepped"])]
        if norms is not None:
            facts += [norms.first_nonfinite, norms.total.detach()]
        together = torch.stack([fact.to(counts.device, torch.float64) for fact in facts])
        return together, partial(self._tell, parameters, window.num_steps)

    def _tell(self, parameters: list[torch.Tensor], step: int, facts: list[float]) -> None:
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
            self._words.nonfinite_norm(step, norm=norm, parameter=next(names, None))
