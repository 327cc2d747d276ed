"""`Acting`: what a guard with a model needs of that which acts on the model, and how it is found.

Enters: a guard and a model. Leaves: what acts on that model by the guard's rule. Invariant: no framework is imported
but for a guard with a model; all others decide where torch is not even installed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from trimtab.errors import MissingExtraError
from trimtab.guard.history import History

if TYPE_CHECKING:
    from trimtab.guard.machine import Guard

TENSOR_GUARD: Final = "trimtab.torch.tensor_guard"
"""Loaded by its name, and only for a guard with a model: nothing here may import a framework."""


class Acting(Protocol):
    """What acts on a model for a guard: the same rule as tensor code, and what it does to gradients and steps."""

    def __call__(self, loss_sum: Any, num_tokens: Any) -> Any:
        """Judges one micro-batch and gives the loss to call backward on."""

    def settle(self) -> None:
        """Waits for the device, and lets the guard judge all that it has not heard of yet."""

    def load(self, history: History) -> None:
        """Goes on from the guard's history; the guard has heard of everything by then."""


def acting_on(model: Any, *, guard: Guard, process_group: Any) -> Acting:
    """What acts on a model for a guard that is on.

    Args:
        model: A torch module.
        guard: The guard that hears of what is decided.
        process_group: The ranks that see different rows, or None.

    Raises:
        MissingExtraError: torch is not installed.
        UsageError: `model` is no torch module, or one that cannot be guarded.
    """
    try:
        module = importlib.import_module(TENSOR_GUARD)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "torch":
            raise
        raise MissingExtraError(
            f"{type(guard).__name__}(model=...) acts on a model of PyTorch and needs torch, which is not installed: "
            "pip install 'trimtab[torch]'"
        ) from error
    return cast(Acting, module.TensorGuard(guard, model=model, process_group=process_group))
