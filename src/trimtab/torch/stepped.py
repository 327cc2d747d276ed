"""`SteppedParameters`: which of a model's parameters a run's optimizer steps, and what is left on those beside it.

Enters: a model and an optimizer, which may hold a part of the model, or more than it. Leaves: the parameters whose
gradients are measured, scaled and clipped. What the model has beside them is another's: nobody here clears or measures
it, or it would grow without end. Invariant: a step that is dropped for its norm leaves no NaN there where no gradient
was when its window began; where there was one, the other's window is spoilt by now, and its own step finds that out.
"""

from __future__ import annotations

import torch
from torch import nn

from trimtab.errors import UsageError
from trimtab.guard.words import GuardWords
from trimtab.torch.gradients import clear_nonfinite


class SteppedParameters:
    """Those of one model and one optimizer."""

    def __init__(self, model: nn.Module | None, optimizer: torch.optim.Optimizer) -> None:
        """Looks at nothing yet: modules may be sharded, frozen and exchanged later."""
        self._model = model
        self._optimizer = optimizer
        self._without_gradient: set[int] = set()

    @property
    def device(self) -> torch.device:
        """Where the gradients of the optimizer's first parameter are."""
        device: torch.device = self._in_groups()[0].device
        return device

    def begin_window(self) -> None:
        """Remembers which parameters beside the optimizer have no gradient; belongs before a window's first backward.

        Of those that `fully_shard` shows unsharded then nothing is known, and they are let be.
        """
        self._without_gradient = {id(parameter) for parameter in self._beside() if parameter.grad is None}

    def now(self) -> list[nn.Parameter]:
        """What the optimizer steps, those of the model first and in its order: norms are added up in that order."""
        in_groups = self._in_groups()
        places = {id(parameter): place for place, parameter in enumerate(self._of_model())}
        return sorted(in_groups, key=lambda parameter: places.get(id(parameter), len(places)))

    def look_for_motion(self, stepped: list[nn.Parameter], *, words: GuardWords, step: int) -> None:
        """Notices a step that would move nothing because no gradient has reached the optimizer.

        That of a model which the optimizer knows is said once: a backward was forgotten. An optimizer that holds none
        of the model's parameters is right where it holds what the model is fed with (a prompt, a latent), and has
        gradients there; where it has none and the model has, it was made for another model, or before `fully_shard`
        replaced the parameters, and no step would ever move anything: that is refused, with a guard or without.

        Args:
            stepped: What `now` gave, after the backwards of a window of which it is not known that anything is skipped.
            words: For what is to be said.
            step: Which.

        Raises:
            UsageError: The optimizer is that of another model.
        """
        if any(parameter.grad is not None for parameter in stepped):
            return
        of_model = set(map(id, self._of_model()))
        if not of_model.intersection(map(id, stepped)) and any(p.grad is not None for p in self._of_model()):
            raise UsageError(
                "run.step() would move nothing: none of the optimizer's parameters is one of the model's, and only the "
                "model's have gradients. The optimizer was made of another model, or before fully_shard (or to_empty, "
                "or a new head) replaced the parameters: make it of model.parameters() after that, then the Run."
            )
        words.no_gradient(step)

    def clear_beside(self, *, where: bool | torch.Tensor) -> None:
        """Takes what is not finite off the parameters that had no gradient when the window began.

        Args:
            where: Whether the step is dropped for its norm; a bool, or 0-d on the device, which nobody waits for.
        """
        left = [parameter for parameter in self._beside() if id(parameter) in self._without_gradient]
        clear_nonfinite(left, where=where)

    def _of_model(self) -> list[nn.Parameter]:
        return list(self._model.parameters()) if self._model is not None else []

    def _in_groups(self) -> list[nn.Parameter]:
        return [parameter for group in self._optimizer.param_groups for parameter in group["params"]]

    def _beside(self) -> list[nn.Parameter]:
        in_groups = set(map(id, self._in_groups()))
        return [parameter for parameter in self._of_model() if id(parameter) not in in_groups]
