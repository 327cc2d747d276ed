"""Steps of optimizers that a user calls: which of them a guard must not let happen, decided without the host.

Enters: an optimizer that is about to step, and what was decided so far. Leaves: a step that is dropped where it must
be, and one tensor that says why, for later. An optimizer that holds none of the model's parameters is let be, and so is
a step before which nothing was judged. Each optimizer has a window of its own: what came since its own last step.

What came since includes windows that were thrown away: by the user, by a gradient scaler that did not call the step, or
before the optimizer was there. Nobody tells of that, so their kept micro-batches seem to be in this window. If its
gradients are exactly zero they are not: but zero is also what a kept micro-batch can leave (a dead layer, a hinge that
is met). So a window begins anew with a call before which no gradient was left, and is empty if it is zero, something
was skipped and nothing kept in it; where zeros are left instead of none, if something was skipped.

Gradients that are not zero although everything was skipped are another's, and step: of another guard on the same
optimizer, or, where this one has none of the model's parameters, of the losses of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from trimtab.guard.words import GuardWords
from trimtab.torch.beside import ParametersBeside, parameters_of
from trimtab.torch.gradients import GradientNorms, gradient_norms
from trimtab.torch.step_verdict import judged_window
from trimtab.torch.veto import StepVeto
from trimtab.values import STEP_CODE, STEP_REASONS

JUDGED, KEPT, SKIPPED = 0, 1, 2
"""Places in `Decided.counts`."""


class _Window:
    """What one optimizer's steps are dropped by."""

    def __init__(self, optimizer: torch.optim.Optimizer, *, counts: torch.Tensor, is_beside: bool) -> None:
        veto = StepVeto(optimizer)
        # The optimizer's own hooks hold the veto, which holds the optimizer: held here, neither would ever go.
        self.veto = weakref.ref(veto)
        self.counts = counts
        self.num_steps = 0
        self.is_beside = is_beside


class GuardedSteps:
    """The optimizers that step a model's parameters, and their windows."""

    def __init__(self, model: nn.Module, *, beside: ParametersBeside, words: GuardWords) -> None:
        """Knows no optimizer before it steps.

        Args:
            model: Whose parameters are stepped.
            beside: What else is.
            words: For what is to be said of a step that did not happen.
        """
        self._model = model
        self._beside = beside
        self._windows: weakref.WeakKeyDictionary[torch.optim.Optimizer, _Window] = weakref.WeakKeyDictionary()
        self._words = words

    def holds(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it steps one of the model's parameters, or one that a guarded loss was computed from."""
        return self.knows(optimizer) or self._holds_of_model(optimizer) or self._beside.holds(optimizer)

    def knows(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether it has stepped before."""
        return optimizer in self._windows

    def is_cleared(self) -> bool:
        """Whether nothing that is stepped has a gradient, as far as that is known: then a window begins."""
        parameters = [parameter for optimizer in list(self._windows) for parameter in parameters_of(optimizer)]
        return all(parameter.grad is None for parameter in parameters or self._model.parameters())

    def before_step(
        self, optimizer: torch.optim.Optimizer, *, counts: torch.Tensor, begun: torch.Tensor, is_shared: bool = False
    ) -> tuple[torch.Tensor, Callable[[list[float]], None]]:
        """Drops the step that comes if nothing was kept for it, or if their norm is not finite; does not wait.

        Under a gradient scaler the gradients of a fused optimizer are measured as they are, scaled.

        Args:
            optimizer: One that `holds` says yes to.
            counts: (3,) int64, `Decided.counts`.
            begun: (3,) int64, the same at the last call before which `is_cleared`; -1 where there was none.
            is_shared: Whether another guard acts on it too.

        Returns:
            What became of the step, (3,) float64, and what is to be said of it when the host has it.
        """
        window = self._windows.get(optimizer)
        if window is None:
            window = self._windows[optimizer] = _Window(
                optimizer, counts=torch.zeros_like(counts), is_beside=not self._holds_of_model(optimizer)
            )
        last = window.counts.to(counts.device)
        since = counts - last
        window.counts = counts.clone()
        window.num_steps += 1
        is_judged = since[JUDGED] > 0
        parameters = parameters_of(optimizer)
        norms = gradient_norms(parameters)
        is_zero = _is_zero(norms, device=counts.device)
        is_known_to_begin = begun[JUDGED] >= last[JUDGED]
        within = counts - torch.where(is_known_to_begin, begun, last)
        is_empty = is_zero & (within[SKIPPED] > 0) & ~(is_known_to_begin & (within[KEPT] > 0))
        may_step = (since[KEPT] > 0) & ~is_empty
        if is_shared or window.is_beside:
            may_step = may_step | ~is_zero
        own_norms = None if window.is_beside else norms  # of other losses too, and so none of the guard's business
        verdict = judged_window(may_step=may_step, has_skips=since[SKIPPED] > 0, norms=own_norms)
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

    def _holds_of_model(self, optimizer: torch.optim.Optimizer) -> bool:
        known = set(map(id, self._model.parameters()))
        return any(id(parameter) in known for parameter in parameters_of(optimizer))

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


def _is_zero(norms: GradientNorms, *, device: torch.device) -> torch.Tensor:
    """0-d bool; in float32 also where every gradient is below 1e-23, whose square is none any more."""
    return (norms.total == 0).to(device)
