"""`Gate`: acts on verdicts, in a loop of one's own and in a trainer alike.

Enters: the reduced losses of a micro-batch, then the gradients of a window. Leaves: a verdict, a loss that is safe to
call backward on, the reason why a step must not be taken, and what was recorded of it. The verbs, in this order:

    take -> left_out (only if the verdict says so)      once a micro-batch
    lift_anchor -> drop_reason -> norm_reason -> end    once a window

Without a guard nothing here waits for the device. With one, `take` waits once a micro-batch, once more to name the row
of a skip, and `norm_reason` once a window.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from trimtab.notices import warn
from trimtab.run import RunCore
from trimtab.torch.gradients import first_nonfinite
from trimtab.torch.losses import RowLosses
from trimtab.torch.skip import anchored_zero
from trimtab.torch.transfer import to_host
from trimtab.values import StepReason, Verdict


class Gate:
    """What stands between the losses of a run and its weights.

    Attributes:
        core: The run whose guard decides and whose recorder writes.
    """

    def __init__(
        self, core: RunCore, *, model: nn.Module | None, optimizer: torch.optim.Optimizer | None = None
    ) -> None:
        """Guards the parameters of `model`, and those that only `optimizer` knows."""
        self.core = core
        self._model = model
        self._optimizer = optimizer
        self._anchored: list[nn.Parameter] = []
        self._said_nonfinite_norm = False

    def parameters(self) -> list[nn.Parameter]:
        """The model's parameters, and those that only the optimizer knows."""
        parameters = list(self._model.parameters()) if self._model is not None else []
        if self._optimizer is None:
            return parameters
        known = set(map(id, parameters))
        in_groups = (parameter for group in self._optimizer.param_groups for parameter in group["params"])
        return parameters + [parameter for parameter in in_groups if id(parameter) not in known]

    # Once a micro-batch.

    def take(
        self, micro_batch: RowLosses, *, extra: torch.Tensor | None = None, beyond: torch.Tensor | None = None
    ) -> Verdict | None:
        """Judges a micro-batch, where there is a guard, and records it.

        Args:
            micro_batch: Its losses, reduced to rows.
            extra: 0-d, what else the loss is made of (or the final loss itself): a micro-batch is also skipped when
                this is not finite.
            beyond: 0-d, finite, what else a host's loss holds, in the unit of its mean over tokens: it is judged too.

        Returns:
            The guard's verdict; None without a guard.

        Raises:
            GuardLockupError: If the guard is set to raise on a lock-up.
        """
        self.lift_anchor()
        verdict = self._judge(micro_batch, extra, beyond) if self.core.guard is not None else None
        self.core.record_micro_batch(
            to_host(micro_batch.rows),
            to_host(micro_batch.row_loss_sums),
            to_host(micro_batch.row_num_tokens),
            verdict=verdict,
            packed=micro_batch.packed,
        )
        return verdict

    def left_out(self, like: torch.Tensor) -> torch.Tensor:
        """What takes the place of a loss that is left out, 0-d; `lift_anchor` belongs after its backward."""
        parameters = self.parameters()
        self._anchored = [parameter for parameter in parameters if parameter.grad is None]
        return anchored_zero(parameters, like=like)

    # Once a window.

    def lift_anchor(self) -> None:
        """Takes away the zeros that a skip left where there was no gradient: weight decay would act on them."""
        for parameter in self._anchored:
            parameter.grad = None
        self._anchored = []

    def drop_reason(self) -> StepReason | None:
        """Why the window must not be stepped, by what its micro-batches were; None if it may."""
        return self.core.drop_reason()

    def norm_reason(self, norm: torch.Tensor) -> StepReason | None:
        """Why the window must not be stepped, by the norm of its gradients, 0-d; None if it may, or without a guard."""
        if self.core.guard is None:
            return None
        value = float(norm)
        if math.isfinite(value):
            return None
        assert self._model is not None, "a guard comes with a model"
        name = first_nonfinite(self._model.named_parameters())
        self.core.event("nonfinite_norm", {"parameter": name, "grad_norm": value})
        if not self._said_nonfinite_norm:
            self._said_nonfinite_norm = True
            warn(
                "guard",
                f"Step {self.core.step}: the gradient norm is {value} though every kept loss is finite; first "
                f"parameter with such a gradient: {name}. The step was dropped. Look for an operation with an infinite "
                "derivative at the row's values (sqrt, log, norm at 0), or lower the learning rate. Said once.",
            )
        return "nonfinite_norm"

    def end(
        self,
        reason: StepReason,
        *,
        loss: torch.Tensor,
        num_tokens: torch.Tensor,
        norm: torch.Tensor | float | None,
        clip_at: float | None,
        lr: Any,
        loss_scale: float | None,
    ) -> None:
        """Records the step that just ended.

        Args:
            reason: What became of it.
            loss: What the run reports, 0-d.
            num_tokens: Supervised tokens of the window, 0-d.
            norm: Of the gradients before clipping; None where it was not measured.
            clip_at: The norm to which they were clipped; None without clipping.
            lr: Learning rate of the first parameter group; a tensor must be a copy, for schedulers change it in place.
            loss_scale: The scaler's scale before the step; None without one.
        """
        self.core.end_step(
            reason,
            loss=to_host(loss),
            num_tokens=to_host(num_tokens),
            grad_norm=_on_host(norm),
            lr=_on_host(lr),
            clipped=None if norm is None or clip_at is None else _on_host(norm > clip_at),
            loss_scale=loss_scale,
        )

    def _judge(self, micro_batch: RowLosses, extra: torch.Tensor | None, beyond: torch.Tensor | None) -> Verdict:
        device = micro_batch.loss_sum.device
        # One read of the host for all figures. Token counts are exact in float64; mps has no such type.
        wide = torch.float32 if device.type == "mps" else torch.float64
        nothing = torch.zeros((), device=device)
        further = [nothing if figure is None else figure for figure in (extra, beyond)]
        figures = [micro_batch.loss_sum, micro_batch.num_tokens, *further]
        loss_sum, num_tokens, aux, more = torch.stack([figure.detach().to(device, wide) for figure in figures]).tolist()
        return self.core.judge(loss_sum, int(num_tokens), aux=aux, beyond=more, leading_row=micro_batch.leading_row)


def _on_host(value: Any) -> Any:
    return to_host(value) if isinstance(value, torch.Tensor) else value
