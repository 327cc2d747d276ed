"""The two guards that a user builds: one judges mean losses, the other the loss per supervised token.

Enters: one micro-batch, as numbers (`check`) or as tensors (a call). Leaves: a `Verdict`, or the loss to call backward
on. Both are the machine of `machine.py`; here is only what a call may hold, read strictly.
"""

from __future__ import annotations

from typing import Any, TypeVar

from trimtab.guard.machine import Guard
from trimtab.rules.scalar import MAX_WHOLE, real_number, step_number, token_count
from trimtab.values import Verdict

_Tensor = TypeVar("_Tensor")
"""A tensor of the model's framework, which nothing here imports."""


class LossGuard(Guard):
    """Judges the mean loss of each micro-batch against the losses kept before it.

    Settings are those of `GuardConfig` but `decide`, by name, or one `GuardConfig` in their place; rule "mean", the
    default, is off until it has a `multiplier`, and "robust" is the one to recommend. `decide` and `skipped_tokens`
    change no call. `check` needs no model and leaves acting on the verdict to you. With a `model` (a torch module; the
    wrapper, inner or compiled model of DDP and FSDP2 alike) `loss = guard(loss)` acts by itself: see `__call__`.
    `process_group` names the ranks that see different rows; None: the default group where torch.distributed is
    initialised, else this process alone.

    Attributes:
        num_judged: Micro-batches judged so far: all but those without tokens, and none while the guard is off.
        num_skipped: How many of them were skipped, spikes and losses that are not finite.
        nonfinite_hint: Set by whoever knows which row or parameter was the first that is not finite, in words ("first
            in row 17"), after a `nonfinite` verdict; stands in the warning about many of them in a row. A finite loss
            clears it.

    What `guard(loss)` decided reaches these attributes late, after the optimizer's next step; `state_dict()` and
    `check` bring them up to date, and wait for the device.

    Raises:
        UsageError: A setting makes no sense, or the model is none that can be guarded.
        MissingExtraError: A model was given, and torch is not installed.

    Example:
        >>> guard = LossGuard(multiplier=2.0)
        >>> [guard.check(loss).keep for loss in (10.8, 7.5, 6.3, 30.0)]
        [True, True, True, False]
    """

    def __call__(self, loss: _Tensor) -> _Tensor:
        """Judges one micro-batch on its device, without a wait, and gives the loss to call backward on.

            loss = model(batch)      # log this one: on a skip the guard gives back 0.0
            guard(loss).backward()   # always, one backward a call
            optimizer.step()         # as ever; dropped by the guard where nothing was kept

        The gradients of a skipped micro-batch are replaced by zeros on their way into `p.grad`. A step is dropped
        (parameters, moments and step count stay as they are) if everything since this optimizer's last one was skipped,
        or if the norm of its gradients is not finite; fused optimizers do that on the device, others need one look of
        the host a step. Every rank decides alike, by the mean of the ranks' losses: one all-reduce of three numbers a
        call, and before the first another, which waits, so that every rank is seen to have the same settings. Make the
        guard on every rank and call it equally often. Inside `torch.compile(fullgraph=True)` nothing breaks the graph.
        On mps, which has no float64, the figures are fetched and the call waits.

        Args:
            loss: 0-d, any float dtype, the unscaled mean loss of this micro-batch on this rank.

        Returns:
            0-d, same dtype and device: `loss` where it is kept, else a zero on the same graph. The loss itself while
            the guard is off.

        Raises:
            UsageError: The guard was given no model, or `loss` is no such tensor, or another rank's guard has other
                settings.
            GuardLockupError: Under `on_lockup="raise"`, at a later call or step: when the host hears of it. Until then
                the device keeps skipping.
        """
        acted: _Tensor = self._act(loss, 1)
        return acted

    def check(self, loss: Any, *, step: int | None = None) -> Verdict:
        """Judges one micro-batch and remembers it.

        A value on an accelerator is fetched, so that the call waits for the device.

        Args:
            loss: Mean loss of the micro-batch: a number, or anything with one element that holds one (a numpy scalar,
                a 0-d tensor).
            step: Optimizer step, a whole number; one that is smaller than the last clears the history.

        Returns:
            Whether to keep it, why, and what it was compared with.

        Raises:
            UsageError: `loss` is not one real number, or `step` no whole number.
            GuardLockupError: `max_consecutive_skips` reached under `on_lockup="raise"`; nothing is remembered of this
                micro-batch.
        """
        if step is not None:
            step = step_number(step)
        return self._check(loss if type(loss) is float else real_number(loss, name="loss"), 1, step)


class PerTokenLossGuard(Guard):
    """Judges micro-batches by their loss per supervised token, from the sum of the losses and the number of tokens.

    Settings, attributes and errors are those of `LossGuard`.

    Example:
        >>> guard = PerTokenLossGuard(multiplier=2.0)
        >>> [guard.check(100.0, 100).reason for _ in range(4)]
        ['warmup', 'warmup', 'warmup', 'normal']
        >>> guard.check(500.0, 400).keep, guard.check(500.0, 100).keep, guard.check(float("nan"), 0).keep
        (True, False, True)
    """

    def __call__(self, loss_sum: _Tensor, num_tokens: Any) -> _Tensor:
        """Judges one micro-batch on its device, without a wait, and gives the loss to call backward on.

        As `LossGuard.__call__`, judged by the sum over the ranks of `loss_sum` divided by that of `num_tokens`. A rank
        without tokens, whose loss is 0 / 0 or the like, contributes zeros and is no fault. A window without any token
        takes no step.

        Args:
            loss_sum: 0-d, any float dtype: the sum of the unscaled losses of this rank's supervised tokens.
            num_tokens: How many there are: a whole number, or a 0-d integer tensor.

        Returns:
            0-d, same dtype and device as `loss_sum`: `loss_sum` where it is kept, else a zero on the same graph.

        Raises:
            UsageError: The guard was given no model, or an argument is no such tensor or number.
            GuardLockupError: As in `LossGuard.__call__`.
        """
        acted: _Tensor = self._act(loss_sum, num_tokens)
        return acted

    def check(self, loss_sum: Any, num_tokens: Any, *, step: int | None = None) -> Verdict:
        """Judges one micro-batch and remembers it.

        The judged loss is `float32(loss_sum / num_tokens)`, divided in float64. Without tokens there is no loss,
        whatever `loss_sum` says: kept, and nothing is remembered. A value on an accelerator is fetched, so that the
        call waits for the device.

        Args:
            loss_sum: Sum of the losses of the supervised tokens: a number, or anything with one element.
            num_tokens: How many there are: a whole number of 0 or more, or anything with one element that holds one.
            step: Optimizer step, a whole number; one that is smaller than the last clears the history.

        Returns:
            Whether to keep it, why, and what it was compared with.

        Raises:
            UsageError: `loss_sum` is not one real number, `num_tokens` not one whole number of 0 or more, or `step` no
                whole number.
            GuardLockupError: `max_consecutive_skips` reached under `on_lockup="raise"`; nothing is remembered of this
                micro-batch.
        """
        if step is not None:
            step = step_number(step)
        total = loss_sum if type(loss_sum) is float else real_number(loss_sum, name="loss_sum")
        is_plain = type(num_tokens) is int and 0 <= num_tokens <= MAX_WHOLE
        count = num_tokens if is_plain else token_count(num_tokens, name="num_tokens")
        return self._check(total, count, step)
